"""Bytes on all links of a node, by what they are for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("upkeep", "gossip", "sessions", "rows", "files")
_OF_TENS = (0, 1, 1, 2, 2, 3, 4, 0)
"""Messages are numbered by what they are for: 10 to 29 are gossip's, and so on."""


@dataclass(frozen=True, slots=True)
class TrafficCounts:
    """Sealed bytes since the node started, in the order of `KINDS`; handshakes are left out."""

    received: tuple[int, ...] = (0,) * len(KINDS)
    sent: tuple[int, ...] = (0,) * len(KINDS)


class Traffic:
    """Counts as messages pass."""

    __slots__ = ("_received", "_sent")

    def __init__(self) -> None:
        self._received = [0] * len(KINDS)
        self._sent = [0] * len(KINDS)

    def received(self, number: int, byte_count: int) -> None:
        self._received[_OF_TENS[min(number // 10, len(_OF_TENS) - 1)]] += byte_count

    def sent(self, number: int, byte_count: int) -> None:
        self._sent[_OF_TENS[min(number // 10, len(_OF_TENS) - 1)]] += byte_count

    @property
    def counts(self) -> TrafficCounts:
        return TrafficCounts(tuple(self._received), tuple(self._sent))
