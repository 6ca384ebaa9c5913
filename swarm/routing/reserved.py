"""An origin's session that is ready for a loss: it knows other routes, and reserves the next one.

A soft alarm about a hop opens what the best other route has beside the present one, under the
epoch to come, so that a verdict finds it open.
"""

from __future__ import annotations

from swarm.config import RoutingConfig
from swarm.messages import Release
from swarm.routing.opening import RESERVE_S, Reserve, SoFar, open_orders
from swarm.routing.outbox import Outbox
from swarm.routing.phases import Phase
from swarm.routing.planner import Planner
from swarm.routing.prefix import PrefixChain
from swarm.routing.seeking import RouteSeeker
from swarm.routing.session_watch import WatchedSession
from swarm.terms import Epoch, ModelSpec, NodeId, Order, Route, SessionId


class ReservedSession(WatchedSession):
    def __init__(
        self,
        session: SessionId,
        order: Order,
        model: ModelSpec,
        me: NodeId,
        config: RoutingConfig,
        planner: Planner,
    ) -> None:
        super().__init__(session, order, me, config)
        self.model = model
        self._config = config
        self._seeker = RouteSeeker(order, model, me, planner)
        self._outbox = Outbox()
        self._prefix = PrefixChain(order.model_id, self._ids)
        self._reserve: Reserve | None = None
        self._suspected: set[NodeId] = set()

    def suspect(self, node: NodeId, now: float) -> None:
        """A soft alarm: have the next best route ready in case it becomes a verdict."""
        route = self.route if self.phase is Phase.RUNNING and self._reserve is None else None
        if route is None or route.index_of(node) is None or node in self._suspected:
            return
        self._suspected.add(node)
        route = self._route_without(node, now)
        if route is None:
            return
        epoch = Epoch(self.epoch + 1)
        orders = open_orders(
            self.session, epoch, self.order, route, self._me, self._so_far(route)
        )  # fmt: skip
        fresh = [(peer, order) for peer, order in orders if not self._is_open_at(peer)]
        self._reserve = Reserve(tuple(peer for peer, _ in fresh), epoch, now + RESERVE_S)
        self._set_deadline()
        for peer, order in fresh:
            self._send(peer, order)

    def _is_open_at(self, node: NodeId) -> bool:
        """Whether it has room for the session already, which a reserve must not take away."""
        return node in self._seeker.held

    def _set_deadline(self) -> None:
        """Of a session that runs."""
        raise NotImplementedError

    def _tend_reserve(self, now: float) -> None:
        if self._reserve is not None and now >= self._reserve.until:
            self._drop_reserve(set())
            self._suspected.clear()

    def _drop_reserve(self, kept: set[NodeId]) -> None:
        reserve, self._reserve = self._reserve, None
        for node in reserve.nodes if reserve else ():
            if reserve and node not in kept:
                self._send(node, Release(self.session, reserve.epoch))

    def _route_without(self, node: NodeId, now: float) -> Route | None:
        return self._seeker.find_without(node, self.generated_count, now)

    def _so_far(self, route: Route) -> SoFar:
        """Blocks may be shared only where all rows are of the classes that the hashes name."""
        chain = self._prefix.whole() if self._seeker.keeps_rows(route) else b""
        return SoFar(len(self._ids), chain)
