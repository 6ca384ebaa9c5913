"""What others may ask of a node's relay: who takes part in its sessions, and how far they are."""

from __future__ import annotations

from swarm.config import RoutingConfig
from swarm.messages import SessionProgress
from swarm.routing.hop_session import HopPhase, HopSession, SessionKey, peers_of
from swarm.snapshot import HopView
from swarm.terms import ModelId, NodeId, SessionId


class RelayViews:
    def __init__(self, me: NodeId, config: RoutingConfig) -> None:
        self._me = me
        self._config = config
        self._sessions: dict[SessionKey, HopSession] = {}

    def session_count(self, model_id: ModelId | None = None) -> int:
        """`model_id`: only those of this model."""
        if model_id is None:
            return len(self._sessions)
        return sum(s.order.model_id == model_id for s in self._sessions.values())

    def views(self) -> tuple[HopView, ...]:
        return tuple(
            HopView(s.session, s.origin, s.order.layers, s.produced, s.outbox.byte_count)
            for s in self._sessions.values()
        )

    def neighbours(self) -> tuple[tuple[SessionId, NodeId], ...]:
        """(session, peer) whose silence this hop must notice: who feeds it and whom it feeds."""
        return tuple(
            (s.session, peer)
            for s in self._sessions.values()
            if s.phase is HopPhase.RUNNING
            for peer in dict.fromkeys(s.neighbours)
            if peer not in (self._me, s.origin)
        )

    def audience(self) -> dict[NodeId, list[SessionProgress]]:
        """Who must hear of life from here, and how far their common sessions are."""
        return peers_of(list(self._sessions.values()), self._me)

    def in_use(self) -> list[NodeId]:
        """Peers to which sessions need their links."""
        return [
            peer
            for s in self._sessions.values()
            for peer in (s.origin, s.order.previous, s.order.next, *s.mirrored_to)
        ]

    def origins(self) -> list[NodeId]:
        """Others for whom sessions run here."""
        return [
            o for o in dict.fromkeys(s.origin for s in self._sessions.values()) if o != self._me
        ]

    def own_progress(self) -> tuple[SessionProgress, ...]:
        """How far sessions are whose origin is this very node."""
        return tuple(s.progress(self._me) for s in self._sessions.values() if s.origin == self._me)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        if not self._sessions:
            return None
        opened_max_s = self._config.opened_max_s
        moments = (s.next_deadline(opened_max_s) for s in self._sessions.values())
        return min((moment for moment in moments if moment is not None), default=None)
