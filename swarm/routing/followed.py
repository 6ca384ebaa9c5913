"""An origin's session that others follow: standbys are chosen, fed, lost, and taken into use.

    (no standby) ──chosen──► opened ──► fed ──► caught up ──► a hop of the next route
         ▲                     │ refused, gone, behind a feeder that has no rows
         └─────────────────────┘

Beside losses there is the hop that says it leaves: its standby is warmed first, and the route
changes between two tokens.
"""

from __future__ import annotations

from dataclasses import replace

from swarm.config import RoutingConfig
from swarm.messages import (
    Credit,
    Gap,
    HopFailed,
    HopTimes,
    MirrorTo,
    Opened,
    Refused,
    Release,
    Resume,
    SessionProgress,
    Token,
)
from swarm.notes import Level
from swarm.routing.mirror import Mirror
from swarm.routing.opening import open_orders
from swarm.routing.outbox import step_of
from swarm.routing.phases import Phase
from swarm.routing.planner import Planner
from swarm.routing.reserved import ReservedSession
from swarm.routing.seeking import is_possible
from swarm.routing.standby import HAND_OVER_ROWS, Standby, Standbys, is_caught_up
from swarm.terms import LayerRange, ModelSpec, NodeId, Order, Route, SessionId, short

FromHop = Opened | Refused | Token | Credit | Gap | HopFailed | HopTimes


class FollowedSession(ReservedSession):
    def __init__(
        self,
        session: SessionId,
        order: Order,
        model: ModelSpec,
        me: NodeId,
        config: RoutingConfig,
        planner: Planner,
    ) -> None:
        super().__init__(session, order, model, me, config, planner)
        self._standbys = Standbys()
        self._mirror: Mirror | None = None
        """To the first hop's standby, which the origin feeds itself."""
        self._look_at: float | None = None
        """When hops that have no standby are looked at again."""
        self._leaver: tuple[NodeId, float] | None = None
        """A hop that leaves while its standby is warmed, and when the route changes anyhow."""

    # ------------------------------------------------------------ facts in

    def standby_says(self, peer: NodeId, message: FromHop, now: float) -> bool:
        """Take in what comes from a standby, or is about one; False: it is neither."""
        if isinstance(message, HopFailed) and self._says_feeder(peer, message):
            self._lose_standby(message.node, message.detail, now)
            return True
        standby = self._standbys.get(peer)
        if standby is None:
            return False
        if message.epoch != standby.epoch or self.phase is not Phase.RUNNING:
            return True
        match message:
            case Opened():
                self._standby_opened(standby, message, now)
            case Credit():
                if self._mirror is not None and self._mirror.to == peer:
                    self._mirror.acknowledged(message.kv_length)
                    self._pump_mirror()
            case Refused() | HopFailed():
                if isinstance(message, Refused) and message.peer is not None:
                    self._seeker.avoidance.no_link(peer, message.peer, message.waited, now)
                if not isinstance(message, HopFailed) or message.node == peer:
                    self._lose_standby(peer, message.detail, now)
            case Gap():
                self._lose_standby(peer, "it lost its place", now)
            case Token() | HopTimes():
                pass
        return True

    def hop_says(self, peer: NodeId, entry: SessionProgress, now: float) -> None:
        standby = self._standbys.get(peer)
        if standby is None:
            super().hop_says(peer, entry, now)
            return
        standby.kv_length = entry.kv_length
        if not is_caught_up(standby, len(self._ids)):
            return
        if peer not in self._seeker.followers:
            self._seeker.followers[peer] = standby.layers
            self._tell("session.standby", Level.INFO, node=short(peer),
                       layers=str(standby.layers), position=len(self._ids))  # fmt: skip
        if self._leaver is not None and self.phase is Phase.RUNNING:
            leaver, _ = self._leaver
            is_warm = is_caught_up(standby, len(self._ids), HAND_OVER_ROWS)
            if is_warm and self._layers_of(leaver) == standby.layers:
                self._let_go(leaver, now)

    def standby_gone(self, node: NodeId, now: float) -> None:
        """A verdict on a node, whoever reached it."""
        if self._standbys.get(node) is not None:
            self._lose_standby(node, "it is gone", now)

    # ------------------------------------------------------------ for the session

    def _hands_over(self, node: NodeId, now: float) -> bool:
        """Whether a hop that leaves is kept until its standby is warm."""
        if self.phase is not Phase.RUNNING or self.generated_count == 0 or self.route is None:
            return False
        if not self._config.standby:
            return False
        index = self.route.index_of(node)
        assert index is not None
        standby = self._standbys.for_layers(self.route.hops[index].layers)
        if standby is None:
            standby = self._find_standby(index, now)
        if standby is None or is_caught_up(standby, len(self._ids), HAND_OVER_ROWS):
            return False
        if self._leaver is None or self._leaver[0] != node:
            self._leaver = (node, now + self._config.hand_over_max_s)
        return True

    def _let_go(self, node: NodeId, now: float) -> None:
        """The time has come to do without a hop that leaves."""
        raise NotImplementedError

    def _tend_standbys(self, now: float) -> None:
        if self._leaver is not None and now >= self._leaver[1]:
            self._let_go(self._leaver[0], now)
            return
        if self._look_at is None or now < self._look_at or self.route is None:
            return
        self._look_at = now + self._config.standby_retry_s
        if self.generated_count == 0:
            return
        for index in self._seeker.in_danger(self.route):
            hop = self.route.hops[index]
            if hop.node != self._me and self._standbys.for_layers(hop.layers) is None:
                self._find_standby(index, now)

    def _follow_on(self, now: float) -> None:
        """A route runs: standbys of layers that are still a hop's follow it under its epoch."""
        assert self.route is not None
        self._leaver = self._mirror = None
        self._look_at = now + self._config.standby_after_s if self._config.standby else None
        for standby in self._standbys:
            index = self._place_of(standby.layers)
            if index is None:
                self._standbys.pop(standby.node)
                self._seeker.followers.pop(standby.node, None)
                self._send(standby.node, Release(self.session, standby.epoch))
                continue
            self._open_standby(standby.node, index)

    def _take_over(self, route: Route) -> None:
        """Standbys that are hops of the next route are standbys no more."""
        for node in route.nodes:
            self._standbys.pop(node)
            self._seeker.followers.pop(node, None)

    def _is_open_at(self, node: NodeId) -> bool:
        return super()._is_open_at(node) or self._standbys.get(node) is not None

    def _dismiss_standbys(self) -> None:
        for standby in self._standbys:
            self._standbys.pop(standby.node)
            self._seeker.followers.pop(standby.node, None)
            self._send(standby.node, Release(self.session, standby.epoch))

    def _pump_mirror(self) -> None:
        mirror = self._mirror
        if mirror is None:
            return
        while rows := mirror.take(self._outbox):
            self._send(mirror.to, step_of(self.session, self.epoch, rows))

    # ------------------------------------------------------------ inside

    def _find_standby(self, index: int, now: float) -> Standby | None:
        assert self.route is not None
        taken = self._standbys.nodes
        node = self._seeker.standby(self.route, index, self.generated_count, taken, now)
        return None if node is None else self._open_standby(node, index)

    def _open_standby(self, node: NodeId, index: int) -> Standby:
        assert self.route is not None
        hops = list(self.route.hops)
        hops[index] = replace(hops[index], node=node)
        route = replace(self.route, hops=tuple(hops))
        orders = open_orders(
            self.session, self.epoch, self.order, route, self._me, self._so_far(route)
        )
        self._send(node, replace(orders[index][1], standby=True))
        return self._standbys.add(node, hops[index].layers, self.epoch)

    def _standby_opened(self, standby: Standby, message: Opened, now: float) -> None:
        """It starts from what it has; its feeder is told to go on from there."""
        index = self._place_of(standby.layers)
        if index is None or standby.is_fed or not is_possible(message, len(self._ids)):
            self._lose_standby(standby.node, "it claims what cannot be", now)
            return
        assert self.route is not None
        cached = message.cached_length
        start = message.kv_length or (cached - cached % message.cache_unit if cached else 0)
        limit = len(self.order.prompt_ids) + self.order.max_tokens
        if self.route.hops[index].head:
            self._tell_head(standby.node)
        self._send(standby.node, Resume(self.session, self.epoch, start, limit))
        standby.is_fed, standby.kv_length = True, start
        if index == 0:
            self._mirror = Mirror(standby.node, start)
            self._pump_mirror()
        else:
            feeder = self.route.hops[index - 1].node
            self._send(feeder, MirrorTo(self.session, self.epoch, standby.node, start))

    def _lose_standby(self, node: NodeId, why: str, now: float) -> None:
        standby = self._standbys.pop(node)
        assert standby is not None
        self._seeker.followers.pop(node, None)
        if self._mirror is not None and self._mirror.to == node:
            self._mirror = None
        self._tell("session.standby_lost", Level.INFO, node=short(node), detail=why)
        self._send(node, Release(self.session, standby.epoch))
        if self._look_at is not None:
            self._look_at = now + self._config.standby_retry_s

    def _says_feeder(self, peer: NodeId, message: HopFailed) -> bool:
        """Whether it is the feeder of a standby who says that this one cannot be fed."""
        standby = self._standbys.get(message.node)
        index = self._place_of(standby.layers) if standby else None
        if self.route is None or not index or message.epoch != self.epoch:
            return False
        return self.route.hops[index - 1].node == peer

    def _place_of(self, layers: LayerRange) -> int | None:
        hops = self.route.hops if self.route else ()
        return next((index for index, hop in enumerate(hops) if hop.layers == layers), None)

    def _layers_of(self, node: NodeId) -> LayerRange | None:
        index = self.route.index_of(node) if self.route else None
        return None if self.route is None or index is None else self.route.hops[index].layers
