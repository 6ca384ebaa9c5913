"""Invariants about answers: right, whole, in order, in time, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sims.inside import generation_count, hop_states, outbox_bytes, steps_on_credit
from sims.invariants import Invariant, Violation
from sims.invariants_pace import DETECTION_S, reroutes_explained
from sims.node import SimNode
from sims.request import Outcome, Request
from sims.stage import oracle
from sims.world import World
from swarm.effects import Finished, Generated, SessionEvent, Started
from swarm.errors import CapacityError, RerouteLimitReached
from swarm.terms import LayerRange, NumericClass, Route

FORGOTTEN_S = 1.0
"""A hop that lost a session's place this long ago has had its origin told of it."""
UNANSWERED = (Outcome.FAILED, Outcome.REFUSED)


class OracleIds(Invariant):
    name = "ids equal the oracle"
    says = "every token is the one that an undisturbed run gives"

    def __init__(self, world: World, report: Callable[[Violation], None]) -> None:
        super().__init__(world, report)
        self._oracles: dict[int, list[int]] = {}

    def on_event(self, request: Request, event: SessionEvent) -> None:
        if isinstance(event, Generated):
            index = len(request.tokens) - 1
            expected = self._expected(request)
            if request.tokens[index] != expected[index] and self._is_binding(request):
                self.violated(
                    f"{request}: token {index} is {request.tokens[index]}, not {expected[index]}"
                )

    def _expected(self, request: Request) -> list[int]:
        if request.number not in self._oracles:
            assert request.first_route is not None
            ids = oracle(request.order, classes_of(request.first_route))
            self._oracles[request.number] = ids
        return self._oracles[request.number]

    def _is_binding(self, request: Request) -> bool:
        """Rows of another numeric class are allowed where the answer says so."""
        route, first = request.route, request.first_route
        return route is None or first is None or same_classes(route, first)


def classes_of(route: Route) -> Sequence[tuple[LayerRange, NumericClass]]:
    return [(hop.layers, hop.numeric_class) for hop in route.hops]


def same_classes(a: Route, b: Route) -> bool:
    def by_layer(route: Route) -> list[NumericClass]:
        return [hop.numeric_class for hop in route.hops for _ in range(len(hop.layers))]

    return by_layer(a) == by_layer(b)


class OnceInOrder(Invariant):
    name = "each position once"
    says = "positions come one after the other, none twice, none missing"

    def on_event(self, request: Request, event: SessionEvent) -> None:
        if isinstance(event, Generated):
            due = len(request.order.prompt_ids) + len(request.tokens) - 1
            if event.token.position != due:
                self.violated(f"{request}: position {event.token.position}, due was {due}")


class HonestEnd(Invariant):
    name = "no false end"
    says = (
        "an answer that was cut never ends as if it were whole; one that is called exact equals the"
        " oracle, and any other has changed its numeric class"
    )

    def on_event(self, request: Request, event: SessionEvent) -> None:
        if not isinstance(event, Finished):
            return
        whole = len(request.tokens) == request.order.max_tokens
        if event.reason != "length" or not whole:
            self.violated(f"{request} ends with {event.reason!r}")
        expected = oracle(request.order, classes_of(request.first_route)) if (
            request.first_route is not None
        ) else []  # fmt: skip
        if event.stats.exact and request.tokens != expected:
            self.violated(f"{request} is called exact and is not")
        if not event.stats.exact and self._kept_its_classes(request):
            self.violated(f"{request} is called inexact, and no layer changed its numeric class")

    def _kept_its_classes(self, request: Request) -> bool:
        routes = [heard.event.route for heard in request.heard if isinstance(heard.event, Started)]
        return all(same_classes(route, routes[0]) for route in routes)


class EveryAnswer(Invariant):
    """A failure is excused where the layers were really gone, or a stated limit was reached."""

    name = "every request is answered"
    says = "started = finished + failed, and failed only without cover or at a stated limit"

    def on_end(self) -> None:
        for request in self.world.requests:
            if request.outcome is Outcome.RUNNING:
                self.violated(f"{request} has no end")
            elif request.outcome in UNANSWERED and not self._is_excused(request):
                self.violated(
                    f"{request} failed at {request.ended_s}, with cover: {request.error!r}"
                )

    def _is_excused(self, request: Request) -> bool:
        error = request.error
        if error is None or (self.world.is_tight and isinstance(error, CapacityError)):
            return True
        assert request.ended_s is not None
        if isinstance(error, RerouteLimitReached):
            limit = self.world.config.routing.reroutes_max
            return reroutes_explained(self.world, request, request.ended_s) > limit
        wait_s = self.world.config.routing.cover_wait_s if request.tokens else 0.0
        since_s = request.ended_s - wait_s - DETECTION_S
        return self.world.cover.was_lost(request.origin, since_s, request.ended_s)


class KvAgrees(Invariant):
    """The first token of a later route may be one that the head had sampled already: then hops
    still rebuild what lies before it, and hold less."""

    name = "kv length agrees"
    says = "whenever a token comes, each hop of its route holds exactly the positions before it"

    def __init__(self, world: World, report: Callable[[Violation], None]) -> None:
        super().__init__(world, report)
        self._rerouted: set[int] = set()

    def on_event(self, request: Request, event: SessionEvent) -> None:
        if isinstance(event, Started) and event.epoch > 1:
            self._rerouted.add(request.number)
        elif isinstance(event, Generated):
            is_first = request.number in self._rerouted
            self._rerouted.discard(request.number)
            self._check(request, event.token.position, may_rebuild=is_first)

    def _check(self, request: Request, position: int, *, may_rebuild: bool) -> None:
        for hop in request.route.hops if request.route is not None else ():
            node = self.world.holder_of(hop.node)
            if node is None:
                continue  # its last token came, and it begins anew
            held = kv_length(node, request)
            if held == position or (may_rebuild and held is not None and held < position):
                continue
            if held is None and self._may_forget(request, node):
                continue
            what = "nothing" if held is None else f"{held} positions"
            self.violated(f"{request}: {node} holds {what} at token {position}")

    def _may_forget(self, request: Request, node: SimNode) -> bool:
        """With the last token all are released; any other may be on its way while a hop behind it
        is lost, or gives up its origin."""
        is_last = len(request.tokens) == request.order.max_tokens
        if is_last or not node.is_running or not node.is_up:
            return True
        truth, now_s = self.world.truth, self.world.now_s
        parties = self.world.trails.of(request) | {node.number}
        return bool(truth.harm(parties, now_s - FORGOTTEN_S, now_s)) or (
            self.world.has_gaps(*parties)
        )


def kv_length(node: SimNode, request: Request) -> int | None:
    """Positions a hop has computed under the request's present epoch; None: it knows it not."""
    if not node.is_running or not node.is_up:
        return None
    for state in hop_states(node):
        same = state.origin == request.origin.id and state.session == request.session
        if same and state.epoch == request.epoch:
            return state.produced
    return None


class OutboxBudget(Invariant):
    name = "outboxes within budget"
    says = "the rows a node keeps for resending never take more than their budget"

    def on_step(self, node: SimNode) -> None:
        budget = self.world.config.routing.outbox_bytes_max
        held, droppable = outbox_bytes(node) if node.is_up else (0, 0)
        if held > budget and droppable:
            self.violated(f"{node} keeps {held} bytes of rows, {budget} are allowed")


class Credits(Invariant):
    name = "credits are kept"
    says = "no feeder has more steps under way than its credits allow"

    def on_step(self, node: SimNode) -> None:
        allowed = self.world.config.routing.credit_steps
        if node.is_up and steps_on_credit(node) > allowed:
            self.violated(f"{node} was sent {steps_on_credit(node)} steps, {allowed} are allowed")


class NothingLeft(Invariant):
    name = "nothing is left"
    says = "when all is over no session, KV byte, outbox byte, job or waiting client is left"

    def on_end(self) -> None:
        for node in self.world.running():
            for what, count in leftovers(node).items():
                if count:
                    self.violated(f"{node}: {count} {what}")


def leftovers(node: SimNode) -> dict[str, int]:
    """What sessions leave on a node while they run; all 0 on one that is idle."""
    snapshot = node.io.snapshot()
    return {
        "origin sessions": len(snapshot.sessions),
        "hop sessions": len(snapshot.hops),
        "KV bytes": snapshot.kv_used_bytes,
        "outbox bytes": sum(hop.outbox_bytes for hop in snapshot.hops),
        "jobs of the worker": sum(worker.session_count for worker in node.workers),
        "generations": generation_count(node),
    }
