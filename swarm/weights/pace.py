"""How fast weights may leave. Pure."""

from __future__ import annotations

import math


class Pacer:
    """Spaces out what is sent so that a rate is kept, without saving up for bursts."""

    def __init__(self, debt_max_s: float = math.inf) -> None:
        """`debt_max_s`: nobody waits longer, however slow a rate was, since it may be another."""
        self._debt_max_s = debt_max_s
        self._free_at = 0.0

    def wait_s(self, byte_count: int, bytes_s: float, now: float) -> float:
        """How long to wait before sending so many bytes; they count as sent. 0 `bytes_s`: freely.

        The rate may be another one each time.
        """
        if bytes_s <= 0:
            return 0.0
        start = max(now, self._free_at)
        self._free_at = min(start + byte_count / bytes_s, now + self._debt_max_s)
        return start - now


class Effort:
    """Lets work be done in a share of the time: whoever has worked waits before it goes on."""

    def __init__(self, share: float, debt_max_s: float) -> None:
        self._share = share
        self._debt_max_s = debt_max_s
        self._free_at = 0.0

    def spent(self, work_s: float, now: float) -> None:
        due = max(now, self._free_at) + work_s / self._share
        self._free_at = min(due, now + self._debt_max_s)

    def wait_s(self, now: float) -> float:
        """How long to wait before more is done."""
        return max(0.0, self._free_at - now)
