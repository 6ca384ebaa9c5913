"""What a node in the middle keeps of the streams it passes on: who asked, limits, pace. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from swarm.messages import TICKET_BYTES, Lane
from swarm.terms import NodeId

_BURST_S = 0.05
"""Of the rate that may pass at once: what the network's own buffers hold anyway."""
END_LANES = (Lane.CONTROL, Lane.DATA, Lane.BULK)


@dataclass(frozen=True, slots=True)
class Passage:
    """One stream of a relayed link: `source` asked for it, `target` is to take it."""

    ticket: bytes
    source: NodeId
    target: NodeId
    lane: Lane

    @property
    def ends(self) -> tuple[NodeId, NodeId]:
        return (self.source, self.target)


class Passages:
    """All streams of a node in the middle, from the asking to the end."""

    def __init__(self, streams_max: int, per_peer_max: int) -> None:
        self._streams_max = streams_max
        self._per_peer_max = per_peer_max
        self._passages: dict[bytes, Passage] = {}
        self._of_peer: Counter[NodeId] = Counter()

    def __len__(self) -> int:
        return len(self._passages)

    def get(self, ticket: bytes) -> Passage | None:
        return self._passages.get(ticket)

    def begin(self, passage: Passage) -> str | None:
        """Take it in; else why not."""
        objection = self._objection(passage)
        if objection is None:
            self._passages[passage.ticket] = passage
            self._of_peer.update(passage.ends)
        return objection

    def end(self, ticket: bytes) -> None:
        passage = self._passages.pop(ticket, None)
        if passage is not None:
            self._of_peer.subtract(passage.ends)
            self._of_peer += Counter()  # forgets who has none left

    def through(self, peer: NodeId) -> list[Passage]:
        """Those that begin or end at `peer`."""
        return [p for p in self._passages.values() if peer in p.ends]

    def _objection(self, passage: Passage) -> str | None:
        if len(passage.ticket) != TICKET_BYTES or passage.ticket in self._passages:
            return "its ticket cannot be used"
        if passage.lane not in END_LANES:
            return "links have no such lane"
        if len(self._passages) >= self._streams_max:
            return f"it passes on {self._streams_max} streams already"
        if any(self._of_peer[end] >= self._per_peer_max for end in passage.ends):
            return f"it passes on {self._per_peer_max} streams of one of the two already"
        return None


class Pace:
    """A rate in bytes, over all streams of a node: those who go on owe nothing."""

    __slots__ = ("_burst", "_level", "_rate", "_updated")

    def __init__(self, bytes_s: float, now: float) -> None:
        self._rate = bytes_s
        self._burst = bytes_s * _BURST_S
        self._level = self._burst
        self._updated = now

    def spent(self, byte_count: int, now: float) -> float:
        """So many bytes pass; how long whoever sent them must wait before the next, seconds."""
        earned = max(0.0, now - self._updated) * self._rate
        self._level = min(self._burst, self._level + earned) - byte_count
        self._updated = now
        return max(0.0, -self._level / self._rate)
