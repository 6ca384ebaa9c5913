"""Idle heartbeats and silence, measured in the time that this node was itself awake."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swarm.terms import NodeId

IN_STEP = 0.2
"""Part of the interval by which a heartbeat may come early to go with others."""


class AwakeTime:
    """Time without our own stalls: a stalled loop hears nobody, which proves nothing.

    `of` and `real` translate; both grow alike except across `stalled`.
    """

    def __init__(self) -> None:
        self.stalled_s = 0.0

    def of(self, now: float) -> float:
        return now - self.stalled_s

    def real(self, awake: float) -> float:
        """The first moment at which `of` says at least `awake`: nothing due then is put off again
        by the last bit of a sum."""
        moment = awake + self.stalled_s
        while self.of(moment) < awake:
            moment = math.nextafter(moment, math.inf)
        return moment

    def stalled(self, lag_s: float) -> None:
        self.stalled_s += lag_s


@dataclass(slots=True)
class _Peer:
    heard_at: float
    sent_at: float
    beat_at: float
    is_reported: bool = False


class Heartbeats:
    """Per linked peer: when to send a heartbeat, and when its silence is worth a probe.

    All times are awake time. `hash_interval_s`: a busy lane still carries the state hash.
    What is heard and sent only puts deadlines off, so that the earliest ones are kept as bounds
    and sought anew when they are reached.
    """

    def __init__(self, interval_s: float, missed_max: int, hash_interval_s: float) -> None:
        self._interval_s = interval_s
        self._silence_s = interval_s * missed_max
        self._hash_interval_s = hash_interval_s
        self._peers: dict[NodeId, _Peer] = {}
        self._sorted: list[NodeId] | None = []
        self._beat_bound: float | None = None
        """No heartbeat is due before; None: to be sought."""
        self._heard_bound: float | None = None
        """No unreported peer was heard last before this; None: to be sought."""

    @property
    def peers(self) -> list[NodeId]:
        """In the order of node ids. Not to be changed."""
        if self._sorted is None:
            self._sorted = sorted(self._peers)
        return self._sorted

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._peers

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, peer: NodeId, now: float) -> None:
        """A link is up; its first heartbeat is due at once."""
        before = now - max(self._interval_s, self._hash_interval_s)
        self._peers[peer] = _Peer(now, before, before)
        self._sorted = self._beat_bound = self._heard_bound = None

    def remove(self, peer: NodeId) -> None:
        if self._peers.pop(peer, None):
            self._sorted = None

    def heard(self, peer: NodeId, now: float) -> bool:
        """Whether its silence had been reported."""
        state = self._peers.get(peer)
        if state is None:
            return False
        state.heard_at = now
        if not state.is_reported:
            return False
        state.is_reported, self._heard_bound = False, None
        return True

    def sent(self, peer: NodeId, now: float) -> None:
        state = self._peers.get(peer)
        if state:
            state.sent_at = now

    def beaten(self, peer: NodeId, now: float) -> None:
        """A heartbeat was sent."""
        state = self._peers.get(peer)
        if state:
            state.sent_at = state.beat_at = now

    def hurry(self, now: float) -> None:
        """After an own stall everybody waits to hear from us."""
        for state in self._peers.values():
            state.sent_at = now - self._interval_s
        self._beat_bound = None

    def silence_s(self, peer: NodeId, now: float) -> float:
        return now - self._peers[peer].heard_at

    def due(self, now: float) -> list[NodeId]:
        """Whom to send a heartbeat. When one is due those due soon are too: links that idle come
        to beat in step, and the node wakes for all of them at once."""
        if self._beat_bound is not None and now < self._beat_bound:
            return []
        self._beat_bound = None
        dues = {peer: self._beat_due(self._peers[peer]) for peer in self.peers}
        if not dues or now < min(dues.values()):
            return []
        soon = now + self._interval_s * IN_STEP
        return [peer for peer, due in dues.items() if due <= soon]

    def silent(self, now: float, factor: float) -> list[NodeId]:
        """Peers that missed too many heartbeats, each once until it is heard again."""
        patience_s = self._silence_s * factor
        if self._heard_bound is not None and now < self._heard_bound + patience_s:
            return []
        self._heard_bound = None
        found = []
        for peer in self.peers:
            state = self._peers[peer]
            if not state.is_reported and now >= state.heard_at + patience_s:
                state.is_reported = True
                found.append(peer)
        return found

    def all_silent(self) -> list[NodeId]:
        """Those reported as silent and not heard since."""
        return [peer for peer, state in self._peers.items() if state.is_reported]

    def next_deadline(self, factor: float) -> float | None:
        """Not after anything is due; now and then a little before."""
        if not self._peers:
            return None
        if self._beat_bound is None:
            self._beat_bound = min(map(self._beat_due, self._peers.values()))
        if self._heard_bound is None:
            waits = (s.heard_at for s in self._peers.values() if not s.is_reported)
            self._heard_bound = min(waits, default=float("inf"))
        return min(self._beat_bound, self._heard_bound + self._silence_s * factor)

    def _beat_due(self, state: _Peer) -> float:
        return min(state.sent_at + self._interval_s, state.beat_at + self._hash_interval_s)
