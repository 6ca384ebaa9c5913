"""The hop's side of standbys: a feeder sends its rows to a second reader, when told to."""

from __future__ import annotations

from swarm.config import RoutingConfig
from swarm.effects import Effect, Send
from swarm.errors import RemoteProtocolError
from swarm.messages import FailureCode, HopFailed, Message, MirrorTo
from swarm.routing.hop_session import HopPhase, HopSession
from swarm.routing.mirror import Mirror
from swarm.routing.outbox import step_of
from swarm.routing.relay_views import RelayViews
from swarm.terms import NodeId


class RelayMirrors(RelayViews):
    def __init__(self, me: NodeId, config: RoutingConfig) -> None:
        super().__init__(me, config)
        self._effects: list[Effect] = []

    def mirror_to(self, peer: NodeId, message: MirrorTo) -> None:
        """Raises RemoteProtocolError for what no origin that keeps the rules sends."""
        s = self._sessions.get((peer, message.session))
        if s is None or message.epoch != s.epoch or s.phase is not HopPhase.RUNNING:
            return
        if s.order.head or s.order.standby or message.to in (self._me, s.order.next):
            raise RemoteProtocolError("a standby that this hop cannot feed")
        if not 0 <= message.position <= s.order.position_limit:
            raise RemoteProtocolError(f"a standby at {message.position}")
        s.mirror = Mirror(message.to, message.position)
        self._pump_mirror(s)

    def _pump_mirror(self, s: HopSession) -> None:
        mirror = s.mirror
        if mirror is None or s.phase is not HopPhase.RUNNING:
            return
        if mirror.is_cut_off(s.outbox):
            self._end_mirror(s, "the rows that it needs are gone")
            return
        while rows := mirror.take(s.outbox):
            self._send(mirror.to, step_of(s.session, s.epoch, rows, s.origin))

    def _mirror_acknowledged(self, s: HopSession, peer: NodeId, kv_length: int) -> None:
        if s.mirror is not None and s.mirror.to == peer:
            s.mirror.acknowledged(kv_length)
            self._pump_mirror(s)

    def _end_mirror(self, s: HopSession, detail: str) -> None:
        assert s.mirror is not None
        to, s.mirror = s.mirror.to, None
        code = FailureCode.UNREACHABLE
        self._send(s.origin, HopFailed(s.session, s.epoch, to, code, detail))

    def _send(self, peer: NodeId, message: Message) -> None:
        self._effects.append(Send(peer, message))
