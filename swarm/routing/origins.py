"""All sessions whose origin is this node: finds the one a message or a verdict is about."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from swarm.config import RoutingConfig
from swarm.effects import Effect, Send
from swarm.errors import SessionLimitReached
from swarm.messages import (
    Credit,
    FailureCode,
    Gap,
    HopFailed,
    HopTimes,
    Opened,
    Progress,
    Refused,
    Release,
    SessionProgress,
    Token,
)
from swarm.routing.avoidance import BadWires
from swarm.routing.followed import FromHop
from swarm.routing.planner import Planner
from swarm.routing.prefix import PrefixMemory
from swarm.routing.session import OriginSession
from swarm.routing.watch import SlowHop
from swarm.snapshot import SessionView
from swarm.terms import Epoch, ModelId, ModelSpec, NodeId, Order, SessionId

LAST_EPOCH = Epoch(1 << 62)
"""Releases a session whatever its epoch."""

ENDED_KEPT = 16
"""Sessions shown after their end; a few kilobytes each."""


class Origins:
    def __init__(self, me: NodeId, config: RoutingConfig, planner: Planner) -> None:
        self._me = me
        self._config = config
        self._planner = planner
        self._sessions: dict[SessionId, OriginSession] = {}
        self._effects: list[Effect] = []
        self._steps: dict[NodeId, tuple[int, float]] = {}
        """Per hop its worker's count of finished steps, and when that last rose."""
        self.token_at: dict[ModelId, float] = {}
        """When a token last came through a whole route, per model."""
        self.bad_wires = BadWires(config)
        self._prefixes = PrefixMemory()
        self._ended: deque[tuple[float, SessionView]] = deque(maxlen=ENDED_KEPT)
        self.changed = False
        """Set when other peers than before may be in use; whoever looks at it clears it."""

    # ------------------------------------------------------------ views

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def session_count(self) -> int:
        return len(self._sessions)

    def views(self) -> tuple[SessionView, ...]:
        return tuple(_view(s) for s in self._sessions.values())

    def recent(self, now: float) -> tuple[SessionView, ...]:
        """Some that ended, the last one last."""
        return tuple(replace(view, ended_age_s=now - at) for at, view in self._ended)

    def monitored(self) -> list[NodeId]:
        return [node for s in self._sessions.values() for node in s.monitored()]

    def in_use(self) -> list[NodeId]:
        """Peers to which sessions need their links, or will."""
        return [node for s in self._sessions.values() for node in s.nodes()]

    def audience(self) -> dict[NodeId, list[SessionProgress]]:
        """Hops of running sessions must hear that their origin lives."""
        nodes = (
            node
            for s in self._sessions.values()
            if s.route is not None
            for node in s.route.nodes
            if node != self._me
        )
        return {node: [] for node in nodes}

    def next_deadline(self) -> float | None:
        if not self._sessions:
            return None
        moments = (s.deadline for s in self._sessions.values())
        return min((m for m in moments if m is not None), default=None)

    # ------------------------------------------------------------ facts in

    def start(self, session: SessionId, order: Order, model: ModelSpec, now: float) -> None:
        """Raises NoRoute or CapacityError when the session cannot start now."""
        if len(self._sessions) >= self._config.sessions_max:
            raise SessionLimitReached(
                f"this node already runs {len(self._sessions)} answers, its limit"
            )
        s = OriginSession(session, order, model, self._me, self._config, self._planner)
        s.start(now, self._prefixes)
        self._sessions[session] = s
        self._settle(s, now)

    def cancel(self, session: SessionId, now: float) -> None:
        s = self._sessions.get(session)
        if s is not None:
            s.cancel()
            self._settle(s, now)

    def receive(self, peer: NodeId, message: FromHop, now: float) -> None:
        s = self._sessions.get(message.session)
        if s is None:
            return
        before = (s.epoch, s.phase)
        if s.standby_says(peer, message, now):
            self._settle(s, now)
            return
        match message:
            case Opened():
                s.opened(peer, message, now)
            case Refused():
                if message.waited and message.peer and s.uses(peer):
                    self.bad_wires.missed(peer, message.peer, now)
                s.refused(peer, message, now)
            case Token():
                if s.token(peer, message, now):
                    self.token_at[s.model.model_id] = now
            case Credit():
                s.credit(peer, message, now)
            case Gap():
                s.gap(peer, message, now)
            case HopFailed():
                s.hop_failed(peer, message, now)
            case HopTimes():
                s.hop_took(peer, message)
        if isinstance(message, Opened) or before != (s.epoch, s.phase):
            self._settle(s, now)
        else:
            self._effects += s.take_effects()

    def progress(self, peer: NodeId, message: Progress, now: float) -> None:
        """How far a hop is. What it still holds for an answer that ended or moved, it may free."""
        if message.steps_done != self._steps.get(peer, (-1, 0.0))[0]:
            self._steps[peer] = (message.steps_done, now)
        for entry in message.sessions:
            s = self._sessions.get(entry.session)
            if s is not None:
                s.hop_says(peer, entry, now)
                self._effects += s.take_effects()
            if entry.is_yours and (s is None or not s.uses(peer)):
                self._effects.append(Send(peer, Release(entry.session, LAST_EPOCH)))

    def node_failed(self, node: NodeId, code: FailureCode, detail: str, now: float) -> None:
        self._each(lambda s: s.node_failed(node, code, detail, now), now)

    def out_of_reach(self, node: NodeId, now: float) -> None:
        """No link to a node came about that some session has asked for."""
        self._each(lambda s: s.out_of_reach(node, now), now)

    def suspect(self, node: NodeId, now: float, session: SessionId | None = None) -> None:
        """A soft alarm about a node: for one session, or for all that use it."""
        for s in list(self._sessions.values()):
            if session in (None, s.session):
                s.suspect(node, now)
                self._settle(s, now)

    def began_anew(self, node: NodeId) -> None:
        """A new life of a node is known, or a new place of it."""
        self.bad_wires.began_anew(node)
        for s in self._sessions.values():
            s.avoidance.began_anew(node)

    def joined(self, node: NodeId) -> None:
        """It and this node have a link."""
        self.bad_wires.joined(self._me, node)
        for s in self._sessions.values():
            s.avoidance.joined(self._me, node)

    def view_changed(self, now: float) -> None:
        self._each(lambda s: s.view_changed(now), now)

    def loads(self) -> dict[NodeId, int]:
        """How many of this node's sessions run through each node."""
        counts: dict[NodeId, int] = {}
        for s in self._sessions.values():
            for node in s.route.nodes if s.route else ():
                counts[node] = counts.get(node, 0) + 1
        return counts

    def forget(self, node: NodeId) -> None:
        """Its link is gone; a new one counts afresh."""
        self._steps.pop(node, None)

    def stalled(self, lag_s: float) -> None:
        for s in self._sessions.values():
            s.stalled(lag_s)

    def tick(self, now: float) -> None:
        self._each(lambda s: s.tick(now), now)

    def slow_hops(self, now: float) -> list[SlowHop]:
        def busy_at(node: NodeId) -> float:
            return self._steps.get(node, (0, 0.0))[1]

        found = (s.slow_hop(busy_at, now) for s in self._sessions.values())
        return [slow for slow in found if slow is not None]

    def hop_stuck(self, slow: SlowHop, now: float) -> None:
        """Nothing moves: the hop's worker stands still, or what it should get does not come."""
        s = self._sessions.get(slow.session)
        if s is None:
            return
        if slow.has_work:
            s.node_failed(slow.node, FailureCode.STUCK, "its step does not end", now)
        else:
            s.wire_failed(slow, now)
        self._settle(s, now)

    def _each(self, act: Callable[[OriginSession], None], now: float) -> None:
        for s in list(self._sessions.values()):
            act(s)
            self._settle(s, now)

    def _settle(self, s: OriginSession, now: float) -> None:
        self.changed = True
        if s.is_done:
            s.tell_times()
        self._effects += s.take_effects()
        if s.is_done:
            self._sessions.pop(s.session, None)
            self._ended.append((now, _view(s)))
            if s.route is not None:
                self._prefixes.remember(s.chain, s.route)


def _view(s: OriginSession) -> SessionView:
    stats = s.stats()
    return SessionView(
        session=s.session,
        model_name=s.model.name,
        route=s.route,
        position=s.position,
        epoch=s.epoch,
        reroutes=s.reroutes,
        phase=s.phase.value,
        prompt_count=len(s.order.prompt_ids),
        token_limit=s.order.max_tokens,
        stalls_s=stats.stall_s,
        exact=stats.exact,
        legs=s.trace.views(),
        outcome=s.outcome if s.is_done else "",
    )
