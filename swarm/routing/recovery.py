"""Where each hop of a new route starts: the one rule behind first starts and recoveries.

Rows of a position never change, so a route can continue from whatever its hops hold. A hop that
cannot deliver the rows its successor lacks (its outbox is gone) drops its KV and is fed again,
and so on upstream, down to the origin, which holds the ids. A prefix that a hop kept of another
sequence counts as KV without rows: whoever starts from one needs a successor that has as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """What a hop holds: KV for [0, kv_length), output rows for [outbox_start, kv_length).

    One that holds nothing may begin at any multiple of `cache_unit` up to `cached_length`.
    """

    kv_length: int
    outbox_start: int
    cached_length: int = 0
    cache_unit: int = 0

    def kept(self, want: int) -> int:
        """With how many positions it starts where its successor lacks the rows from `want` on."""
        if not self.kv_length and self.cache_unit:
            depth = min(self.cached_length, want)
            return depth - depth % self.cache_unit
        can_deliver = want >= min(self.outbox_start, self.kv_length)
        return self.kv_length if can_deliver else 0


@dataclass(frozen=True, slots=True)
class HopStart:
    """How a hop starts: keeping `kv_length` positions (0: nothing), sending from `send_from`."""

    kv_length: int
    send_from: int


def starts(holdings: Sequence[Holding], needed_from: int) -> tuple[tuple[HopStart, ...], int]:
    """Per hop its start, and the position from which the origin must feed ids.

    `needed_from` is the first row whose result the origin lacks.
    """
    want = needed_from
    result: list[HopStart] = []
    for holding in reversed(holdings):
        kept = holding.kept(want)
        result.append(HopStart(kept, want))
        want = kept
    return tuple(reversed(result)), want
