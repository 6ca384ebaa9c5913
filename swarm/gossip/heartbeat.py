"""Idle heartbeats and silence, measured in the time that this node was itself awake."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.terms import NodeId


class AwakeTime:
    """Time without our own stalls: a stalled loop hears nobody, which proves nothing.

    `of` and `real` translate; both grow alike except across `stalled`.
    """

    def __init__(self) -> None:
        self._stalled_s = 0.0

    def of(self, now: float) -> float:
        return now - self._stalled_s

    def real(self, awake: float) -> float:
        return awake + self._stalled_s

    def stalled(self, lag_s: float) -> None:
        self._stalled_s += lag_s


@dataclass(slots=True)
class _Peer:
    heard_at: float
    sent_at: float
    beat_at: float
    is_reported: bool = False


class Heartbeats:
    """Per linked peer: when to send a heartbeat, and when its silence is worth a probe.

    All times are awake time. `hash_interval_s`: a busy lane still carries the state hash.
    """

    def __init__(self, interval_s: float, missed_max: int, hash_interval_s: float) -> None:
        self._interval_s = interval_s
        self._missed_max = missed_max
        self._hash_interval_s = hash_interval_s
        self._peers: dict[NodeId, _Peer] = {}

    @property
    def peers(self) -> list[NodeId]:
        return sorted(self._peers)

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._peers

    def add(self, peer: NodeId, now: float) -> None:
        """A link is up; its first heartbeat is due at once."""
        before = now - max(self._interval_s, self._hash_interval_s)
        self._peers[peer] = _Peer(now, before, before)

    def remove(self, peer: NodeId) -> None:
        self._peers.pop(peer, None)

    def heard(self, peer: NodeId, now: float) -> None:
        state = self._peers.get(peer)
        if state:
            state.heard_at = now
            state.is_reported = False

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

    def silence_s(self, peer: NodeId, now: float) -> float:
        return now - self._peers[peer].heard_at

    def due(self, now: float) -> list[NodeId]:
        return [peer for peer in self.peers if now >= self._beat_due(self._peers[peer])]

    def silent(self, now: float, factor: float) -> list[NodeId]:
        """Peers that missed too many heartbeats, each once until it is heard again."""
        found = []
        for peer in self.peers:
            state = self._peers[peer]
            if not state.is_reported and now >= self._silence_due(state, factor):
                state.is_reported = True
                found.append(peer)
        return found

    def next_deadline(self, factor: float) -> float | None:
        beats = [self._beat_due(state) for state in self._peers.values()]
        waits = [s for s in self._peers.values() if not s.is_reported]
        return min([*beats, *(self._silence_due(s, factor) for s in waits)], default=None)

    def _beat_due(self, state: _Peer) -> float:
        return min(state.sent_at + self._interval_s, state.beat_at + self._hash_interval_s)

    def _silence_due(self, state: _Peer, factor: float) -> float:
        return state.heard_at + self._interval_s * self._missed_max * factor
