"""Direct pushes to linked peers. Orders wait here until they are taken.

A message that several peers get is one object, so that whoever encodes it may do so once.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarm.effects import Effect, Send, Tell
from swarm.gossip.heartbeat import Heartbeats
from swarm.messages import Heartbeat, Message, Records, SignedRecord
from swarm.notes import Note
from swarm.terms import NodeId

BATCH_BYTES_MAX = 44 * 1024
"""Bodies in one message: with keys and signatures it must fit the 64 KiB control frame."""
RECORD_OVERHEAD_BYTES = 160


def batches(records: Iterable[SignedRecord], count_max: int) -> list[Records]:
    """Messages that carry the records in order, each within the limits of the wire."""
    groups: list[list[SignedRecord]] = []
    room = 0
    for record in records:
        size = len(record.body) + RECORD_OVERHEAD_BYTES
        if not groups or len(groups[-1]) >= count_max or size > room:
            groups.append([])
            room = BATCH_BYTES_MAX
        groups[-1].append(record)
        room -= size
    return [Records(tuple(group)) for group in groups]


class Spread:
    """Collects effects and keeps the heartbeats told of what was sent."""

    def __init__(self, heartbeats: Heartbeats, records_per_message: int) -> None:
        self._heartbeats = heartbeats
        self._records_per_message = records_per_message
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def audience(self) -> list[NodeId]:
        """Everybody linked, in the order of node ids. Not to be changed."""
        return self._heartbeats.peers

    def send(self, peer: NodeId, message: Message, now: float) -> None:
        if peer not in self._heartbeats:
            return
        self._effects.append(Send(peer, message))
        if isinstance(message, Heartbeat):
            self._heartbeats.beaten(peer, now)
        else:
            self._heartbeats.sent(peer, now)

    def push(self, message: Message, now: float) -> None:
        for peer in self.audience():
            self.send(peer, message, now)

    def records(self, peers: Iterable[NodeId], records: Iterable[SignedRecord], now: float) -> None:
        messages = batches(records, self._records_per_message)
        for peer in peers:
            for message in messages:
                self.send(peer, message, now)

    def order(self, effect: Effect) -> None:
        self._effects.append(effect)

    def tell(self, entry: Note) -> None:
        self._effects.append(Tell(entry))

    def take(self) -> list[Effect]:
        if not self._effects:
            return []
        effects, self._effects = self._effects, []
        return effects
