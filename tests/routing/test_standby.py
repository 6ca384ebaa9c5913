"""Standbys: who is chosen, what feeds them, and how a session goes on over one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import relay_bench as hop
from relay_bench import AFTER, BEFORE, MIDDLE, ORIGIN, OTHER, chunk, decode_step, rows_ran, under
from test_planner import CONFIG as PLANNER
from test_planner import MODEL as PLANNED
from test_planner import REQUEST as WANTED
from test_planner import candidate, view
from test_session import CONFIG, ME, SESSION, A, B, Bench, C, D, kinds, route

from swarm.effects import Effect, Send, ToWorker
from swarm.errors import RemoteProtocolError
from swarm.messages import (
    Credit,
    FailureCode,
    HopFailed,
    MirrorTo,
    Open,
    Opened,
    RefusalCode,
    Refused,
    Release,
    Resume,
    Run,
    SessionProgress,
    Step,
    StepKind,
)
from swarm.routing.cost import PlanRequest
from swarm.routing.mirror import MIRROR_ROWS, MIRROR_STEPS, Mirror
from swarm.routing.opening import RESERVE_S
from swarm.routing.outbox import Outbox, decode_row, prompt_rows
from swarm.routing.planner import plan
from swarm.routing.standby import CAUGHT_UP_ROWS, choose
from swarm.terms import Epoch, Hop, LayerRange, NodeId, NumericClass, Route

# ---------------------------------------------------------------- who

THIRDS = Route(
    tuple(
        Hop(NodeId(name), LayerRange(start, start + 4), start == 0, start == 8, NumericClass("c"))
        for name, start in (("a", 0), ("b", 4), ("c", 8))
    ),
    0.01,
    0.1,
)


def standing(*spares: object, request: PlanRequest = WANTED, index: int = 1) -> str | None:
    everyone = view(
        candidate("a", 0, 4),
        candidate("b", 4, 8),
        candidate("c", 8, 12),
        *spares,  # type: ignore[arg-type]
    )
    return choose(everyone, request, THIRDS, index, PLANNER)


def test_who_has_the_hops_layers_in_its_class_and_is_idle_stands_by() -> None:
    assert standing() is None
    assert standing(candidate("d", 4, 8)) == "d"
    assert standing(candidate("d", 0, 12)) == "d"
    assert standing(candidate("d", 5, 12)) is None
    assert standing(candidate("d", 4, 8, numeric_class="other")) is None
    busy = candidate("d", 4, 8)
    busy = replace(busy, speed=replace(busy.speed, queue_s=1.0))
    assert standing(busy) is None


def test_the_faster_one_is_chosen_and_nobody_who_takes_part_or_is_avoided() -> None:
    slow, fast = candidate("d", 4, 8, layer_s=0.002), candidate("e", 4, 8)
    assert standing(slow, fast) == "e"
    assert standing(slow, fast, request=replace(WANTED, avoid=frozenset({NodeId("e")}))) == "d"
    held = ((NodeId("e"), LayerRange(4, 8)),)
    assert standing(slow, fast, request=replace(WANTED, held=held)) == "d"
    assert standing(candidate("origin", 4, 8)) is None
    cut = frozenset({(NodeId("a"), NodeId("e"))})
    assert standing(slow, fast, request=replace(WANTED, bad_wires=cut)) == "d"


def test_a_standby_leaves_as_much_room_as_it_takes() -> None:
    needed = -(-(WANTED.prompt_count + PLANNER.kv_growth_tokens) // 32) * 32 * 4 * 100
    needed = min(needed, 32 * 4 * 100)
    assert standing(candidate("d", 4, 8, kv_free=2 * needed)) == "d"
    assert standing(candidate("d", 4, 8, kv_free=2 * needed - 1)) is None


def test_a_survivor_wins_over_a_standby_and_a_standby_over_a_stranger() -> None:
    everyone = view(
        candidate("a", 0, 6), candidate("b", 6, 12), candidate("d", 6, 12), candidate("e", 6, 12)
    )
    layers = LayerRange(6, 12)
    held = ((NodeId("a"), LayerRange(0, 6)), (NodeId("d"), layers), (NodeId("b"), layers))
    request = PlanRequest(PLANNED, WANTED.origin, 900, 50, 20, held=held,
                          followers=frozenset({NodeId("d")}))  # fmt: skip
    found = plan(everyone, request, PLANNER)
    assert found is not None and found.nodes == ("a", "b")
    found = plan(everyone, replace(request, avoid=frozenset({NodeId("b")})), PLANNER)
    assert found is not None and found.nodes == ("a", "d")


# ---------------------------------------------------------------- what it is fed


def outbox(prompt: int, generated: int) -> Outbox:
    box = Outbox()
    for rows in prompt_rows(list(range(prompt)), 4):
        box.append(rows)
    for position in range(prompt, prompt + generated):
        box.append(decode_row(position, 7))
    return box


def test_a_mirror_sends_the_prompt_in_its_chunks_few_at_a_time() -> None:
    mirror, box = Mirror(C, 0), outbox(20, 1)
    taken = [mirror.take(box) for _ in range(MIRROR_STEPS + 1)]
    assert [(r.position, r.count) if r else None for r in taken] == [(0, 4), (4, 4), None]
    mirror.acknowledged(4)
    rows = mirror.take(box)
    assert rows is not None and (rows.position, rows.kind) == (8, StepKind.PREFILL)


def test_a_mirror_never_sends_the_newest_row() -> None:
    assert Mirror(C, 16).take(outbox(20, 0)) is None
    for count in range(3 * MIRROR_ROWS):
        rows = Mirror(C, 20).take(outbox(20, count))
        if count <= MIRROR_ROWS:
            assert rows is None
        else:
            assert rows is not None and rows.count == min(16, count - 1)
            assert len(rows.payload) == 4 * rows.count


def test_a_mirror_whose_rows_are_gone_knows_it() -> None:
    box = outbox(20, 20)
    box.drop_before(24)
    assert Mirror(C, 8).is_cut_off(box)
    assert not Mirror(C, 24).is_cut_off(box)


# ---------------------------------------------------------------- the hop's side


def mirror_to(bench: hop.Bench, position: int, to: NodeId = OTHER, epoch: int = 1) -> list[Effect]:
    bench.relay.told(ORIGIN, MirrorTo(hop.SESSION, Epoch(epoch), to, position))
    return bench.effects()


def test_a_feeder_sends_what_it_has_and_what_comes() -> None:
    bench = hop.Bench()
    bench.hold(MIDDLE, 20)
    assert mirror_to(bench, 0) == [Send(OTHER, chunk(0, 10))]
    assert bench.credit(10, peer=OTHER) == []
    for position in range(20, 20 + MIRROR_ROWS + 1):
        bench.step(decode_step(position))
        sent = bench.ran(rows_ran(position, 1, StepKind.DECODE))
        others = [e for e in sent if isinstance(e, Send) and e.peer == OTHER]
        expected = {20: [Send(OTHER, chunk(10, 10))], 28: [Send(OTHER, decode_step(20, 8))]}
        assert others == expected.get(position, [])
        bench.credit(min(position, 28), peer=OTHER)


def test_a_feeder_without_the_rows_says_so_and_goes_on() -> None:
    bench = hop.Bench(config=replace(hop.CONFIG, outbox_bytes_max=1))
    bench.hold(MIDDLE, 25)
    code = FailureCode.UNREACHABLE
    said = HopFailed(hop.SESSION, Epoch(1), OTHER, code, "the rows that it needs are gone")
    assert mirror_to(bench, 0) == [Send(ORIGIN, said)]
    bench.step(decode_step(25))
    assert Send(AFTER, decode_step(25)) in bench.ran(rows_ran(25, 1, StepKind.DECODE))


def test_a_standby_that_lost_the_session_or_its_link_ends_the_mirror_alone() -> None:
    bench = hop.Bench()
    bench.hold(MIDDLE, 20)
    mirror_to(bench, 0)
    bench.relay.gap(OTHER, hop.gap(0, 0).message)  # type: ignore[arg-type]
    told = [e.message for e in bench.effects() if isinstance(e, Send)]
    assert [(m.node, m.code) for m in told if isinstance(m, HopFailed)] == [
        (OTHER, FailureCode.UNREACHABLE)
    ]
    mirror_to(bench, 0)
    bench.relay.neighbour_failed(OTHER, FailureCode.LINK_DOWN, "reset")
    assert bench.effects() == []
    assert bench.credit(10, peer=OTHER) == []


def test_a_mirror_ends_with_its_epoch() -> None:
    bench = hop.Bench()
    bench.hold(MIDDLE, 20)
    mirror_to(bench, 0)
    bench.open(under(MIDDLE, 2))
    assert mirror_to(bench, 0) == []
    assert OTHER not in bench.relay.in_use()


@pytest.mark.parametrize(("to", "position"), [(AFTER, 0), (hop.ME, 0), (OTHER, -1), (OTHER, 61)])
def test_an_order_that_no_honest_origin_gives_closes_its_link(to: NodeId, position: int) -> None:
    bench = hop.Bench()
    bench.hold(MIDDLE, 20)
    with pytest.raises(RemoteProtocolError):
        mirror_to(bench, position, to)


STANDBY = replace(MIDDLE, standby=True)


def test_a_standby_takes_rows_in_the_background_and_sends_none() -> None:
    bench = hop.Bench(linked={hop.ME, ORIGIN, BEFORE}, dialable={AFTER})
    assert Send(ORIGIN, Opened(hop.SESSION, Epoch(1), 0, 0)) in bench.open(STANDBY)
    bench.resume(0, hop.LIMIT)
    runs = [e.message for e in bench.step(chunk(0, 10)) if isinstance(e, ToWorker)]
    assert [r.is_background for r in runs if isinstance(r, Run)] == [True]
    assert kinds_of(bench.ran(rows_ran(0, 10, StepKind.PREFILL))) == [(BEFORE, Credit)]
    assert bench.relay.neighbours() == ()
    bench.relay.neighbour_failed(BEFORE, FailureCode.LINK_DOWN, "reset")
    assert bench.effects() == [] and bench.relay.session_count() == 1


def kinds_of(effects: list[Effect]) -> list[tuple[NodeId, type]]:
    return [(e.peer, type(e.message)) for e in effects if isinstance(e, Send)]


def test_a_standby_becomes_a_hop_with_all_it_has() -> None:
    bench = hop.Bench()
    bench.open(STANDBY)
    bench.resume(0, hop.LIMIT)
    for position in (0, 10):
        bench.step(chunk(position, 10))
        bench.ran(rows_ran(position, 10, StepKind.PREFILL))
    assert Send(ORIGIN, Opened(hop.SESSION, Epoch(2), 20, 0)) in bench.open(under(MIDDLE, 2))
    assert bench.resume(20, 15, epoch=2) == [Send(AFTER, step_from(15, 5))]
    runs = [e.message for e in bench.step(decode_step(20, epoch=2)) if isinstance(e, ToWorker)]
    assert [r.is_background for r in runs if isinstance(r, Run)] == [False]


def step_from(position: int, count: int) -> Step:
    return replace(chunk(position, count, epoch=2), payload=hop.data(position, count))


def test_standbys_make_room_for_whoever_is_read_from() -> None:
    bench = hop.Bench(blocks=hop.LIMIT_BLOCKS)
    bench.open(STANDBY)
    fresh = replace(MIDDLE, session=hop.SessionId("cd" * 8))
    sent = kinds_of(bench.open(fresh))
    assert (ORIGIN, HopFailed) in sent and (ORIGIN, Opened) in sent
    assert [v.session for v in bench.relay.views()] == [fresh.session]


# ---------------------------------------------------------------- the origin's side


class Followed(Bench):
    """Two hops; C may stand by for the first of them, D for the second."""

    def __init__(self) -> None:
        super().__init__(route(A, B), route(C, B), route(A, D), route(C, D), max_tokens=400)
        self.plans.idle = {0: (C,), 1: (D,)}
        self.running()
        self.length = 6

    def tokens(self, count: int) -> list[tuple[NodeId, object]]:
        sent: list[tuple[NodeId, object]] = []
        for _ in range(count):
            assert self.session.route is not None
            assert self.token(self.length, node=self.session.route.hops[-1].node)
            self.length += 1
            sent += self.sent()
        return sent

    def look(self) -> list[tuple[NodeId, object]]:
        """The moment at which standbys are looked for."""
        assert self.session.deadline is not None
        self.now = self.session.deadline
        self.session.tick(self.now)
        return list(self.sent())

    def says(self, peer: NodeId, message: object) -> list[tuple[NodeId, object]]:
        assert self.session.standby_says(peer, message, self.now)  # type: ignore[arg-type]
        return list(self.sent())

    def followed(self) -> None:
        self.tokens(1)
        self.look()
        for node in (C, D):
            self.says(node, Opened(SESSION, self.session.epoch, 0, 0))
            self.caught_up(node)

    def caught_up(self, node: NodeId, lag: int = 0) -> None:
        self.session.hop_says(node, SessionProgress(SESSION, self.length - lag, 0), self.now)


def test_hops_get_standbys_once_an_answer_has_lasted() -> None:
    bench = Followed()
    assert bench.session.deadline == bench.now + CONFIG.standby_after_s
    assert kinds(bench.look()) == []  # type: ignore[arg-type]
    bench.tokens(1)
    opens = bench.look()
    assert [(n, m.standby, m.layers.start) for n, m in opens if isinstance(m, Open)] == [
        (C, True, 0), (D, True, 1),
    ]  # fmt: skip
    first, last = (m for _, m in opens if isinstance(m, Open))
    assert (first.previous, first.next, last.previous, last.next) == (ME, B, A, ME)
    assert {C, D} <= set(bench.session.nodes()) and not bench.session.monitored().count(C)


def test_one_spare_stands_by_for_one_hop_and_is_not_asked_for_another() -> None:
    bench = Followed()
    bench.plans.idle = {0: (C,), 1: (C, D)}
    bench.tokens(1)
    opens = [(n, m.layers.start) for n, m in bench.look() if isinstance(m, Open)]
    assert opens == [(C, 0), (D, 1)]
    bench.says(C, Opened(SESSION, Epoch(1), 0, 0))
    bench.says(D, Refused(SESSION, Epoch(1), RefusalCode.KV_EXHAUSTED, "no room"))
    bench.plans.idle = {0: (C,), 1: (C,)}
    assert [m for _, m in bench.look() if isinstance(m, Open)] == []
    bench.caught_up(C)
    assert [m for _, m in bench.look() if isinstance(m, Open)] == []


def test_the_origin_feeds_the_first_and_has_the_others_fed() -> None:
    bench = Followed()
    bench.tokens(1)
    bench.look()
    limit = 6 + 400
    sent = bench.says(D, Opened(SESSION, Epoch(1), 0, 0))
    assert sent == [
        (D, Resume(SESSION, Epoch(1), 0, limit)),
        (A, MirrorTo(SESSION, Epoch(1), D, 0)),
    ]
    sent = bench.says(C, Opened(SESSION, Epoch(1), 0, 0))
    assert kinds(sent) == [(C, "Resume"), (C, "Step"), (C, "Step")]  # type: ignore[arg-type]
    assert bench.says(C, Credit(SESSION, Epoch(1), 6)) == []
    mirrored = [m for n, m in bench.tokens(MIRROR_ROWS + 2) if n == C]
    assert [(m.position, m.count) for m in mirrored if isinstance(m, Step)] == [(6, MIRROR_ROWS)]


def test_a_loss_goes_over_to_the_standby_which_keeps_what_it_has() -> None:
    bench = Followed()
    bench.followed()
    bench.tokens(20)
    bench.session.node_failed(A, FailureCode.LINK_DOWN, "reset", bench.now)
    opens = [(n, m) for n, m in bench.sent() if isinstance(m, Open)]
    assert [(n, m.epoch, m.standby) for n, m in opens] == [(C, 2, False), (B, 2, False)]
    assert set(bench.plans.requests[-1].followers) == {C, D}
    bench.opened(C, 20, 0)
    bench.opened(B, bench.length - 1, 6)
    sent = bench.sent()
    resumes = [(n, m.kv_length) for n, m in sent if isinstance(m, Resume)]
    assert resumes == [(C, 20), (B, bench.length - 1)]
    again = [(n, m.epoch, m.standby, m.previous) for n, m in sent if isinstance(m, Open)]
    assert again == [(D, 2, True, C)], "the other standby follows the new route"


def test_a_standby_that_is_lost_hurts_nobody_and_another_is_sought_later() -> None:
    for message in (
        Refused(SESSION, Epoch(1), RefusalCode.KV_EXHAUSTED, "full"),
        HopFailed(SESSION, Epoch(1), D, FailureCode.PREEMPTED, "room"),
    ):
        bench = Followed()
        bench.tokens(1)
        bench.look()
        assert bench.says(D, message) == [(D, Release(SESSION, Epoch(1)))]
        assert bench.session.reroutes == 0
        bench.tokens(1)
        bench.plans.idle = {1: (D,)}
        assert [n for n, m in bench.look() if isinstance(m, Open)] == [D]


def test_a_soft_alarm_leaves_a_standby_as_it_is() -> None:
    bench = Followed()
    bench.followed()
    bench.session.suspect(A, bench.now)
    assert bench.sent() == [], "the next best route is warm already"
    bench.now += RESERVE_S
    bench.session.tick(bench.now)
    assert bench.sent() == []


def test_standbys_that_were_let_go_for_want_of_room_hold_nothing() -> None:
    bench = Followed()
    bench.followed()
    bench.plans.routes, bench.plans.full = [], True
    bench.session.node_failed(A, FailureCode.LINK_DOWN, "reset", bench.now)
    assert {n for n, m in bench.sent() if isinstance(m, Release)} == {A, B, C, D}
    bench.session.view_changed(bench.now)
    assert bench.plans.requests[-1].followers == frozenset()
    assert bench.plans.requests[-1].held == ()


def test_a_standby_that_cannot_be_fed_is_not_asked_again_and_again() -> None:
    bench = Followed()
    bench.tokens(1)
    bench.look()
    refused = Refused(SESSION, Epoch(1), RefusalCode.NO_LINK, "no link", peer=A, waited=True)
    bench.says(D, refused)
    assert (D, A) in bench.session.avoidance.wires_at(bench.now)


def test_only_its_feeder_speaks_for_a_standby() -> None:
    bench = Followed()
    bench.followed()
    failed = HopFailed(SESSION, Epoch(1), D, FailureCode.UNREACHABLE, "gone")
    assert not bench.session.standby_says(B, failed, bench.now)
    assert bench.says(A, failed) == [(D, Release(SESSION, Epoch(1)))]


def test_an_end_frees_every_standby() -> None:
    bench = Followed()
    bench.followed()
    bench.session.cancel()
    assert {n for n, m in bench.sent() if isinstance(m, Release)} == {A, B, C, D}


def test_a_hop_that_leaves_is_used_until_its_standby_is_warm() -> None:
    bench = Followed()
    bench.tokens(1)
    bench.session.node_failed(B, FailureCode.LEAVING, "leaving", bench.now)
    assert [(n, m.standby) for n, m in bench.sent() if isinstance(m, Open)] == [(D, True)]
    bench.says(D, Opened(SESSION, Epoch(1), 0, 0))
    bench.tokens(30)
    bench.caught_up(D, lag=20)
    assert bench.session.epoch == 1, "it lacks too much still"
    bench.caught_up(D, lag=3)
    assert [(n, m.standby) for n, m in bench.sent() if isinstance(m, Open)] == [
        (A, False), (D, False),
    ]  # fmt: skip
    assert bench.session.epoch == 2


def test_a_leaver_is_not_waited_for_without_end() -> None:
    bench = Followed()
    bench.tokens(1)
    bench.session.node_failed(B, FailureCode.LEAVING, "leaving", bench.now)
    bench.sent()
    bench.now += CONFIG.hand_over_max_s
    bench.session.tick(bench.now)
    assert bench.session.epoch == 2


def test_what_lags_is_no_better_than_a_stranger() -> None:
    bench = Followed()
    bench.followed()
    bench.tokens(CAUGHT_UP_ROWS + 1)
    fresh = Followed()
    fresh.tokens(1)
    fresh.look()
    fresh.says(D, Opened(SESSION, Epoch(1), 0, 0))
    fresh.tokens(CAUGHT_UP_ROWS + 1)
    fresh.caught_up(D, lag=CAUGHT_UP_ROWS + 1)
    fresh.session.node_failed(B, FailureCode.LINK_DOWN, "reset", fresh.now)
    assert fresh.plans.requests[-1].followers == frozenset()
