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
