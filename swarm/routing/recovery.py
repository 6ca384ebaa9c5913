"""Where each hop of a new route starts: the one rule behind first starts and recoveries.

Rows of a position never change, so a route can continue from whatever its hops hold. A hop that
cannot deliver the rows its successor lacks (its outbox is gone) drops its KV and is fed again,
and so on upstream, down to the origin, which holds the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """What a hop holds: KV for [0, kv_length), output rows for [outbox_start, kv_length)."""

    kv_length: int
    outbox_start: int


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
        can_deliver = want >= min(holding.outbox_start, holding.kv_length)
        kept = holding.kv_length if can_deliver else 0
        result.append(HopStart(kept, want))
        want = kept
    return tuple(reversed(result)), want
