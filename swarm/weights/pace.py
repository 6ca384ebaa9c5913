"""How fast weights may leave. Pure."""

from __future__ import annotations


class Pacer:
    """Spaces out what is sent so that a rate is kept, without saving up for bursts."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def wait_s(self, byte_count: int, bytes_s: float, now: float) -> float:
        """How long to wait before sending so many bytes; they count as sent. 0 `bytes_s`: freely.

        The rate may be another one each time.
        """
        if bytes_s <= 0:
            return 0.0
        start = max(now, self._free_at)
        self._free_at = start + byte_count / bytes_s
        return start - now


def upload_rate(*, limit: float, busy_share: float, goodput: float, is_busy: bool) -> float:
    """Bytes a second for uploads to a peer; 0: as fast as it goes.

    goodput  of the link to it, measured or estimated
    """
    if not is_busy:
        return limit
    polite = busy_share * goodput
    return min(limit, polite) if limit else polite
