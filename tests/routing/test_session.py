"""The origin's session by its effect lists: what it orders on each fact, and what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace

import pytest

from swarm.config import RoutingConfig
from swarm.effects import Failed, Finished, Generated, Reply, Send, Stalled, Started
from swarm.errors import KvExhausted, LocalProtocolError, NoRoute, RerouteLimitReached, SwarmError
from swarm.messages import (
    Credit,
    FailureCode,
    Gap,
    HopFailed,
    Message,
    Open,
    Opened,
    RefusalCode,
    Refused,
    Release,
    Resume,
    SessionProgress,
    Step,
    StepKind,
    Token,
)
from swarm.routing.avoidance import AVOID_S
from swarm.routing.cost import PlanRequest
from swarm.routing.phases import Phase
from swarm.routing.session import OriginSession
from swarm.routing.watch import Alarm, SlowHop
from swarm.terms import (
    Epoch,
    Hop,
    LayerRange,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    Order,
    Route,
    SampledToken,
    Sampling,
    SessionId,
)

ME, A, B, C, D = (NodeId(name) for name in ("me", "a", "b", "c", "d"))
SESSION = SessionId("0" * 16)
MODEL = ModelSpec(ModelId("m"), "m", 2, 64, 100, 1000, (), False)
CONFIG = RoutingConfig(prefill_chunk_tokens=4, reroutes_max=3)


def route(*nodes: NodeId, classes: Iterable[str] = "cc") -> Route:
    names = [NumericClass(name) for name in classes]
    hops = tuple(
        Hop(node, LayerRange(i, i + 1), i == 0, i == len(nodes) - 1, names[i])
        for i, node in enumerate(nodes)
    )
    return Route(hops, 0.01, 0.1)


class Plans:
    """A planner that takes the first listed route without anybody to avoid."""

    def __init__(self, *routes: Route) -> None:
        self.routes = list(routes)
        self.requests: list[PlanRequest] = []
        self.idle: dict[int, tuple[NodeId, ...]] = {}
        """Who may stand by, per hop."""
        self.full = False
        """There is no route for want of room."""

    def plan(self, request: PlanRequest) -> Route | None:
        self.requests.append(request)
        bound = {name for _, name in request.classes}
        for candidate in self.routes:
            classes = {hop.numeric_class for hop in candidate.hops}
            if request.avoid.isdisjoint(candidate.nodes) and (not bound or classes <= bound):
                return candidate
        return None

    def why_not(self, request: PlanRequest) -> SwarmError:
        if self.full:
            return KvExhausted("no room anywhere")
        return NoRoute(MODEL.model_id, (LayerRange(1, 2),), "no reachable node serves 1:2")

    def in_danger(self, route: Route) -> tuple[int, ...]:
        return tuple(range(len(route.hops)))

    def standby(self, request: PlanRequest, route: Route, index: int) -> NodeId | None:
        taken = {*route.nodes, *request.avoid, *(node for node, _ in request.held)}
        return next((node for node in self.idle.get(index, ()) if node not in taken), None)


class Bench:
    PLANS = Plans

    def __init__(self, *routes: Route, prompt: int = 6, max_tokens: int = 3) -> None:
        self.plans = self.PLANS(*(routes or (route(A, B), route(A, C), route(D, C))))
        order = Order(MODEL.model_id, tuple(range(10, 10 + prompt)), max_tokens, Sampling(),
                      frozenset({99}))  # fmt: skip
        self.session = OriginSession(SESSION, order, MODEL, ME, CONFIG, self.plans)
        self.now = 100.0

    def sent(self) -> list[tuple[NodeId, Message]]:
        self.effects = self.session.take_effects()
        return [(e.peer, e.message) for e in self.effects if isinstance(e, Send)]

    def replies(self) -> list[object]:
        return [e.event for e in self.effects if isinstance(e, Reply)]

    def opened(self, node: NodeId, kv_length: int = 0, outbox_start: int = 0) -> None:
        message = Opened(SESSION, self.session.epoch, kv_length, outbox_start)
        self.session.opened(node, message, self.now)

    def token(self, position: int, token_id: int = 7, node: NodeId = B) -> bool:
        message = Token(SESSION, self.session.epoch, SampledToken(position, token_id))
        return self.session.token(node, message, self.now)

    def running(self) -> list[tuple[NodeId, Message]]:
        self.session.start(self.now)
        self.sent()
        assert self.session.route is not None
        for node in self.session.route.nodes:
            self.opened(node)
        return self.sent()


def kinds(sent: list[tuple[NodeId, Message]]) -> list[tuple[NodeId, str]]:
    return [(node, type(message).__name__) for node, message in sent]


def test_a_start_opens_every_hop_and_then_feeds_the_first() -> None:
    bench = Bench()
    bench.session.start(bench.now)
    opens = bench.sent()
    assert kinds(opens) == [(A, "Open"), (B, "Open")]
    first, last = (m for _, m in opens if isinstance(m, Open))
    assert (first.previous, first.next, last.previous, last.next) == (ME, B, A, ME)
    assert (first.position_limit, first.prompt_count) == (9, 6)
    bench.opened(B)
    assert bench.sent() == []
    bench.opened(A)
    sent = bench.sent()
    assert kinds(sent) == [(A, "Resume"), (B, "Resume"), (A, "Step"), (A, "Step")]
    assert [m for _, m in sent if isinstance(m, Resume)] == [
        Resume(SESSION, Epoch(1), 0, 0),
        Resume(SESSION, Epoch(1), 0, 5),
    ]
    assert [(m.position, m.count) for _, m in sent if isinstance(m, Step)] == [(0, 4), (4, 2)]
    assert isinstance(bench.replies()[0], Started)


def test_each_token_is_given_once_and_fed_back() -> None:
    bench = Bench()
    bench.running()
    assert bench.token(6, 7)
    assert not bench.token(6, 7)
    assert not bench.token(8, 7)
    (fed,) = bench.sent()
    assert fed[0] == A
    step = fed[1]
    assert isinstance(step, Step)
    assert (step.position, step.count, step.kind) == (6, 1, StepKind.DECODE)
    assert bytes(step.payload) == struct.pack("<i", 7)
    assert [type(reply) for reply in bench.replies()] == [Generated]


def test_the_end_releases_every_hop() -> None:
    for last, reason in ((99, "stop"), (7, "length")):
        bench = Bench(max_tokens=2)
        bench.running()
        bench.token(6)
        bench.sent()
        bench.token(7, last)
        sent = bench.sent()
        assert sent == [(A, Release(SESSION, Epoch(1))), (B, Release(SESSION, Epoch(1)))]
        end = bench.replies()[-1]
        assert isinstance(end, Finished)
        assert end.reason == reason
        assert bench.session.phase is Phase.DONE


def test_a_loss_replays_ids_from_where_the_first_hop_ends_and_never_text() -> None:
    """The first hop kept its KV and outbox: it resends, and the origin feeds nothing twice."""
    bench = Bench()
    bench.running()
    bench.token(6, 7)
    bench.sent()
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "gone", bench.now)
    assert kinds(bench.sent()) == [(B, "Release"), (A, "Open"), (C, "Open")]
    assert [type(reply) for reply in bench.replies()] == [Stalled]
    bench.opened(A, 7, 0)
    bench.opened(C)
    sent = bench.sent()
    assert [m for _, m in sent if isinstance(m, Resume)] == [
        Resume(SESSION, Epoch(2), 7, 0),
        Resume(SESSION, Epoch(2), 0, 6),
    ]
    assert not any(isinstance(m, Step) for _, m in sent)
    assert bench.token(7, node=C)


def test_a_lost_first_hop_is_fed_all_ids_again_in_the_same_pieces() -> None:
    bench = Bench(route(A, C), route(D, C))
    bench.running()
    bench.token(6, 7, node=C)
    bench.sent()
    bench.session.node_failed(A, FailureCode.SILENT, "quiet", bench.now)
    bench.sent()
    bench.opened(D)
    bench.opened(C, 6, 5)
    steps = [m for _, m in bench.sent() if isinstance(m, Step)]
    assert [(m.position, m.count, m.kind.name) for m in steps] == [
        (0, 4, "PREFILL"),
        (4, 2, "PREFILL"),
        (6, 1, "DECODE"),
    ]


def test_old_epochs_and_strangers_are_not_heard() -> None:
    bench = Bench()
    bench.running()
    old = Token(SESSION, Epoch(0), SampledToken(6, 7))
    assert not bench.session.token(B, old, bench.now)
    assert not bench.token(6, node=A)
    bench.session.hop_failed(D, HopFailed(SESSION, Epoch(1), A, FailureCode.SILENT, ""), bench.now)
    assert bench.sent() == []
    assert bench.session.reroutes == 0


def test_a_token_outside_the_vocabulary_costs_its_sender_the_session() -> None:
    for token_id in (-5, 100, 1 << 40):
        bench = Bench()
        bench.running()
        assert not bench.token(6, token_id)
        assert (C, "Open") in kinds(bench.sent())
        assert bench.session.position == 6


def test_a_hop_that_claims_what_cannot_be_is_left() -> None:
    bench = Bench()
    bench.session.start(bench.now)
    bench.sent()
    bench.opened(B, 10**9, 0)
    assert (C, "Open") in kinds(bench.sent())


def test_a_hop_that_loses_its_place_twice_is_left() -> None:
    bench = Bench()
    bench.running()
    bench.session.gap(B, Gap(SESSION, Epoch(1), 4, 0), bench.now)
    assert kinds(bench.sent()) == [(A, "Open"), (B, "Open")]
    bench.opened(A)
    bench.opened(B)
    bench.sent()
    bench.session.gap(B, Gap(SESSION, Epoch(2), 4, 0), bench.now)
    assert (C, "Open") in kinds(bench.sent())


def test_reroutes_are_bounded() -> None:
    bench = Bench()
    bench.running()
    for _ in range(CONFIG.reroutes_max):
        assert bench.session.route is not None
        lost = bench.session.route.nodes[0]
        bench.session.node_failed(lost, FailureCode.SILENT, "quiet", bench.now)
        bench.now += 2.0
        for node in bench.session.route.nodes:
            bench.opened(node)
        bench.sent()
    bench.session.node_failed(C, FailureCode.SILENT, "quiet", bench.now)
    bench.session.node_failed(B, FailureCode.SILENT, "quiet", bench.now)
    bench.sent()
    end = bench.replies()[-1]
    assert isinstance(end, Failed)
    assert isinstance(end.error, RerouteLimitReached)


def test_without_cover_it_waits_and_then_names_the_missing_layers() -> None:
    bench = Bench(route(A, B))
    bench.running()
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "gone", bench.now)
    bench.sent()
    assert bench.session.phase is Phase.WAITING
    bench.now += 0.5
    bench.session.view_changed(bench.now)
    assert bench.session.phase is Phase.WAITING
    bench.plans.routes = []
    bench.now += CONFIG.cover_wait_s
    bench.session.tick(bench.now)
    bench.sent()
    end = bench.replies()[-1]
    assert isinstance(end, Failed)
    assert "1:2" in str(end.error)


def test_cover_that_returns_is_used_at_once() -> None:
    bench = Bench(route(A, B))
    bench.running()
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "gone", bench.now)
    bench.plans.routes = [route(A, C)]
    bench.session.view_changed(bench.now + 0.1)
    assert (C, "Open") in kinds(bench.sent())


def test_a_full_swarm_is_said_before_any_token() -> None:
    bench = Bench(route(A, B))
    bench.session.start(bench.now)
    bench.sent()
    refusal = Refused(SESSION, Epoch(1), RefusalCode.KV_EXHAUSTED, "no room")
    bench.session.refused(B, refusal, bench.now)
    bench.sent()
    end = bench.replies()[-1]
    assert isinstance(end, Failed)
    assert isinstance(end.error, KvExhausted)


def test_a_hop_that_does_not_answer_is_passed_over() -> None:
    bench = Bench()
    bench.session.start(bench.now)
    bench.sent()
    bench.opened(A)
    bench.now += CONFIG.open_timeout_s
    bench.session.tick(bench.now)
    assert (C, "Open") in kinds(bench.sent())


def test_another_class_is_used_only_when_no_other_is_left_and_is_said() -> None:
    bench = Bench(route(A, B), route(A, C, classes="cx"))
    bench.running()
    bench.session.node_failed(B, FailureCode.LINK_DOWN, "gone", bench.now)
    bench.sent()
    bench.opened(A)
    bench.opened(C)
    bench.sent()
    assert not bench.session.stats().exact


def test_a_leaving_hop_is_kept_when_nobody_can_take_its_place() -> None:
    bench = Bench(route(A, B))
    bench.running()
    leaving = HopFailed(SESSION, Epoch(1), B, FailureCode.LEAVING, "leaving")
    bench.session.hop_failed(B, leaving, bench.now)
    assert bench.sent() == []
    assert bench.token(6)


def test_a_soft_alarm_reserves_once_and_lets_go() -> None:
    bench = Bench()
    bench.running()
    bench.session.suspect(B, bench.now)
    bench.session.suspect(B, bench.now)
    assert kinds(bench.sent()) == [(C, "Open")]
    assert bench.session.deadline is not None
    bench.session.tick(bench.session.deadline)
    assert bench.sent() == [(C, Release(SESSION, Epoch(2)))]


def test_credits_open_the_window() -> None:
    bench = Bench(prompt=40)
    steps = [m for _, m in bench.running() if isinstance(m, Step)]
    assert len(steps) == CONFIG.credit_steps
    bench.session.credit(A, Credit(SESSION, Epoch(1), 8), bench.now)
    assert len(bench.sent()) == 2
    bench.session.credit(B, Credit(SESSION, Epoch(1), 12), bench.now)
    assert bench.sent() == []


def test_cancel_releases_and_nothing_follows() -> None:
    bench = Bench()
    bench.running()
    bench.session.cancel()
    bench.session.cancel()
    assert kinds(bench.sent()) == [(A, "Release"), (B, "Release")]
    assert not bench.token(6)
    assert bench.sent() == []


def test_an_empty_order_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        Bench(prompt=0)


def test_a_hop_out_of_reach_is_left_out_without_being_called_lost() -> None:
    bench = Bench()
    bench.session.start(bench.now)
    bench.sent()
    bench.session.out_of_reach(C, bench.now)
    assert bench.sent() == []
    bench.session.out_of_reach(B, bench.now)
    assert kinds(bench.sent()) == [(B, "Release"), (A, "Open"), (C, "Open")]
    assert bench.session.reroutes == 0
    assert bench.plans.requests[-1].avoid == {B}


def test_nobody_in_reach_is_said_at_once() -> None:
    bench = Bench(route(A, B))
    bench.session.start(bench.now)
    bench.session.out_of_reach(B, bench.now)
    bench.sent()
    (end,) = (e for e in bench.replies() if isinstance(e, Failed))
    assert isinstance(end.error, NoRoute)
    assert "cannot be reached" in str(end.error)


def unlinked(bench: Bench, peer: NodeId, other: NodeId) -> None:
    """A hop refuses, for it has no link to its neighbour."""
    code = RefusalCode.NO_LINK
    message = Refused(SESSION, bench.session.epoch, code, f"no link to {other}", other)
    bench.session.refused(peer, message, bench.now)


class Wires(Plans):
    """Leaves out a route while its first wire is bad."""

    def plan(self, request: PlanRequest) -> Route | None:
        found = super().plan(request)
        is_bad = found is not None and found.nodes[:2] in request.bad_wires
        return None if is_bad else found


class WiredBench(Bench):
    PLANS = Wires


def test_hops_without_a_link_are_asked_again_at_a_slower_pace_until_cover_is_given_up() -> None:
    bench = Bench(route(A, B))
    bench.session.start(bench.now)
    begun = bench.now
    for _ in range(CONFIG.reroutes_max):
        unlinked(bench, A, B)
        assert bench.session.phase is Phase.OPENING, "nothing keeps it from the same route"
    unlinked(bench, A, B)
    while bench.session.phase is Phase.WAITING:
        assert bench.session.deadline is not None
        assert bench.now < bench.session.deadline <= bench.now + AVOID_S
        bench.now = bench.session.deadline
        bench.session.tick(bench.now)
        if bench.session.phase is Phase.OPENING:
            unlinked(bench, A, B)
    bench.sent()
    (end,) = (e for e in bench.replies() if isinstance(e, Failed))
    assert isinstance(end.error, NoRoute)
    assert bench.now - begun == pytest.approx(CONFIG.cover_wait_s, abs=AVOID_S)


def test_a_route_that_opens_ends_the_slower_pace() -> None:
    bench = Bench(route(A, B))
    bench.session.start(bench.now)
    for _ in range(CONFIG.reroutes_max + 1):
        unlinked(bench, A, B)
    bench.now += AVOID_S
    bench.session.tick(bench.now)
    for node in (A, B):
        bench.opened(node)
    assert bench.session.phase is Phase.RUNNING
    bench.now += CONFIG.cover_wait_s
    bench.session.node_failed(A, FailureCode.LINK_DOWN, "", bench.now)
    assert bench.session.phase is Phase.WAITING


def test_who_waits_is_not_failed_by_what_a_hop_said_before() -> None:
    """Two hops were out of reach, so it waits; then one is left out no more, the other still is."""
    bench = Bench(route(A, B))
    bench.session.start(bench.now)
    bench.session.avoidance.node(C, bench.now)
    bench.session.out_of_reach(B, bench.now)
    assert bench.session.phase is Phase.WAITING
    bench.session.avoidance.began_anew(C)
    bench.session.view_changed(bench.now + 0.1)
    assert bench.session.phase is Phase.WAITING
    bench.session.avoidance.began_anew(B)
    bench.session.view_changed(bench.now + 0.2)
    assert bench.session.phase is Phase.OPENING


def test_a_pair_is_tried_again_when_one_of_them_begins_anew() -> None:
    bench = WiredBench(route(A, B))
    bench.session.start(bench.now)
    message = Refused(SESSION, Epoch(1), RefusalCode.NO_LINK, "no link to b", B, waited=True)
    bench.session.refused(A, message, bench.now)
    bench.session.view_changed(bench.now + 2 * AVOID_S)
    assert bench.session.phase is Phase.WAITING
    bench.session.avoidance.began_anew(B)
    bench.session.view_changed(bench.now + 2 * AVOID_S)
    assert bench.session.phase is Phase.OPENING


def test_dials_have_their_time_before_an_opening_is_late() -> None:
    bench = Bench(replace(route(A, B), dials=(B,)))
    bench.session.start(bench.now)
    assert bench.session.deadline == bench.now + CONFIG.dial_wait_s + CONFIG.open_timeout_s


def still(bench: Bench, *reports: tuple[NodeId, int, int]) -> SlowHop:
    """Nothing has moved for long; (node, KV length, rows that wait for its worker)."""
    bench.running()
    for node, kv_length, pending in reports:
        bench.session.hop_says(node, SessionProgress(SESSION, kv_length, pending), bench.now)
    slow = bench.session.slow_hop(lambda _: 0.0, bench.now + 60.0)
    assert slow is not None
    assert slow.alarm is Alarm.HARD
    return slow


def test_a_hop_with_work_that_does_none_is_stuck() -> None:
    slow = still(Bench(), (A, 6, 0), (B, 4, 2))
    assert (slow.node, slow.feeder, slow.has_work) == (B, A, True)


def test_a_hop_without_work_is_not_to_blame_for_rows_that_do_not_come() -> None:
    bench = Bench()
    slow = still(bench, (A, 6, 0), (B, 4, 0))
    assert (slow.node, slow.has_work) == (B, False)
    bench.session.wire_failed(slow, bench.now + 60.0)
    assert bench.session.reroutes == 1
    request = bench.plans.requests[-1]
    assert request.avoid == frozenset()
    assert (A, B) in request.bad_wires


def test_a_token_that_the_head_still_had_is_no_credit_for_the_rebuild() -> None:
    """It came without the rows that are under way to the first hop."""
    bench = Bench(route(A, B), route(C, B), prompt=30, max_tokens=9)
    bench.running()
    for position in range(4, 32, 4):
        bench.session.credit(A, Credit(SESSION, Epoch(1), min(position, 30)), bench.now)
    bench.token(30)
    bench.sent()
    bench.session.node_failed(A, FailureCode.LINK_DOWN, "", bench.now)
    bench.opened(C)
    bench.opened(B, kv_length=31, outbox_start=30)
    steps = [m for _, m in bench.sent() if isinstance(m, Step)]
    assert len(steps) == CONFIG.credit_steps
    assert bench.token(31)
    assert bench.sent() == []
    bench.session.credit(C, Credit(SESSION, Epoch(2), 4), bench.now)
    assert [m.position for _, m in bench.sent() if isinstance(m, Step)] == [16]
