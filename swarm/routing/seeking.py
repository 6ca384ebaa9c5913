"""What one session knows about routes: whom it avoids, who holds its KV, which classes bind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from swarm.errors import SwarmError
from swarm.messages import FailureCode, Opened, RefusalCode, Refused
from swarm.routing.avoidance import Avoidance
from swarm.routing.cost import PlanRequest, same_classes
from swarm.routing.planner import Planner
from swarm.terms import LayerRange, ModelSpec, NodeId, NumericClass, Order, Route, short


class RouteSeeker:
    def __init__(self, order: Order, model: ModelSpec, me: NodeId, planner: Planner) -> None:
        self._order = order
        self._model = model
        self._me = me
        self._planner = planner
        self._classes: tuple[tuple[LayerRange, NumericClass], ...] = ()
        self.avoidance = Avoidance()
        self.cached: tuple[tuple[NodeId, LayerRange, int], ...] = ()
        """Who may have kept how much of the prompt."""
        self.held: dict[NodeId, LayerRange] = {}
        """Nodes that hold KV of the session for exactly these layers."""
        self.followers: dict[NodeId, LayerRange] = {}
        """Standbys that hold nearly all of it."""
        self.exact = True
        """False once layers were computed by another numeric class than at first."""

    def find(self, generated_count: int, now: float) -> Route | None:
        """The best route; where there is none, one over wires that were silent a moment ago;
        where none keeps the numeric classes, the best of all."""
        request = self._request(generated_count, now)
        route = self._planner.plan(request)
        spared = self.avoidance.wires_at(now, sparing=False)
        if route is None and spared != request.bad_wires:
            request = replace(request, bad_wires=spared)
            route = self._planner.plan(request)
        if route is None and self._classes:
            return self._planner.plan(replace(request, classes=()))
        return route

    def find_without(self, node: NodeId, generated_count: int, now: float) -> Route | None:
        """The best route in the same numeric classes that does without `node`."""
        request = self._request(generated_count, now)
        return self._planner.plan(replace(request, avoid=request.avoid | {node}))

    def standby(
        self, route: Route, index: int, generated_count: int, taken: Iterable[NodeId], now: float
    ) -> NodeId | None:
        """Who may stand by for a hop of the route, beside those who are about to stand by."""
        request = self._request(generated_count, now)
        request = replace(request, avoid=request.avoid | frozenset(taken))
        return self._planner.standby(request, route, index)

    def in_danger(self, route: Route) -> tuple[int, ...]:
        """Its hops, who is most likely to leave first."""
        return self._planner.in_danger(route)

    def why_not(self, generated_count: int, now: float) -> SwarmError:
        return self._planner.why_not(replace(self._request(generated_count, now), classes=()))

    def keeps_rows(self, route: Route) -> bool:
        """Whether every row that came and will come so is one of the first numeric classes."""
        return self.exact and same_classes(_classes_of(route), self._classes)

    def running_on(self, route: Route) -> None:
        self.held = {hop.node: hop.layers for hop in route.hops}
        present = _classes_of(route)
        if not self._classes:
            self._classes = present
        elif not same_classes(present, self._classes):
            self.exact = False
            self._classes = present

    def failed(self, node: NodeId, now: float, *, is_unlinked: bool = False) -> None:
        self.avoidance.node(node, now, is_unlinked=is_unlinked)
        self.held.pop(node, None)
        self.followers.pop(node, None)

    def _request(self, generated_count: int, now: float) -> PlanRequest:
        return PlanRequest(
            model=self._model,
            origin=self._me,
            prompt_count=len(self._order.prompt_ids),
            generated_count=generated_count,
            remaining_count=self._order.max_tokens - generated_count,
            avoid=self.avoidance.nodes_at(now),
            bad_wires=self.avoidance.wires_at(now),
            held=(*self.held.items(), *self.followers.items()),
            followers=frozenset(self.followers),
            classes=self._classes,
            cached=self.cached,
        )


def _classes_of(route: Route) -> tuple[tuple[LayerRange, NumericClass], ...]:
    return tuple((hop.layers, hop.numeric_class) for hop in route.hops)


def may_accuse(route: Route, accuser: NodeId, accused: NodeId) -> bool:
    """A hop speaks for itself and for its neighbours, for nobody else."""
    own, other = route.index_of(accuser), route.index_of(accused)
    return own is not None and other is not None and abs(own - other) <= 1


def is_possible(opened: Opened, length: int) -> bool:
    """Whether a hop can hold what it claims of a sequence of `length` tokens."""
    if not 0 <= opened.outbox_start <= opened.kv_length <= length:
        return False
    return opened.cached_length == 0 or (
        0 < opened.cached_length < length and opened.cache_unit > 0 and not opened.kv_length
    )


def unfit_head(opened: Opened, peer: NodeId, route: Route, order: Order) -> Refused | None:
    """What the head of an older build would have said, had it known the sampling asked for."""
    if order.sampling.is_plain or peer != route.hops[-1].node or opened.sampling_level:
        return None
    detail = f"the head at node {short(peer)} is of a build that knows no such sampling"
    return Refused(opened.session, opened.epoch, RefusalCode.UNFIT, detail)


def cause_of(code: FailureCode) -> str:
    return code.name.lower().replace("_", " ")
