"""The small pure rules: recovery, outbox and credits, watches, avoidance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.config import RoutingConfig
from swarm.errors import LocalProtocolError
from swarm.messages import FailureCode, Opened, RowType, StepKind
from swarm.routing.avoidance import Avoidance, BadWires, Offence, PenaltyBox
from swarm.routing.outbox import (
    DECODE_BUNDLE,
    Feed,
    Outbox,
    Rows,
    decode_row,
    prefill_chunk,
    prompt_rows,
)
from swarm.routing.recovery import Holding, HopStart, starts
from swarm.routing.seeking import is_possible, may_accuse
from swarm.routing.vigil import Vigil
from swarm.routing.watch import Alarm, ProgressWatch, SilenceWatch, StallClock
from swarm.terms import (
    Epoch,
    Hop,
    Incarnation,
    LayerRange,
    NodeId,
    NumericClass,
    Route,
    SessionId,
)

CONFIG = RoutingConfig()
ONE = Incarnation(1)
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


# ---------------------------------------------------------------- recovery


@pytest.mark.parametrize(
    ("holdings", "needed", "expected", "feed"),
    [
        # a fresh start: everything is computed, only the last row's result is wanted
        ([(0, 0), (0, 0), (0, 0)], 9, [(0, 0), (0, 0), (0, 9)], 0),
        # the middle was replaced: the first hop resends all it has, the last waits for news
        ([(30, 0), (0, 0), (29, 20)], 29, [(30, 0), (0, 29), (29, 29)], 30),
        # the first was replaced: ids from 0, rows go on only from what the second lacks
        ([(0, 0), (30, 0), (30, 20)], 29, [(0, 30), (30, 30), (30, 29)], 0),
        # the last was replaced
        ([(30, 0), (30, 0), (0, 0)], 29, [(30, 30), (30, 0), (0, 29)], 30),
        # the first hop's outbox begins too late: it starts again, and so does its feed
        ([(30, 10), (0, 0), (30, 20)], 29, [(0, 0), (0, 30), (30, 29)], 0),
        # nobody lost anything but the token: the head sends it again
        ([(30, 30), (30, 30), (30, 20)], 29, [(30, 30), (30, 30), (30, 29)], 30),
    ],
)  # fmt: skip
def test_starts(
    holdings: list[tuple[int, int]], needed: int, expected: list[tuple[int, int]], feed: int
) -> None:
    found, feed_from = starts([Holding(*h) for h in holdings], needed)
    assert [(start.kv_length, start.send_from) for start in found] == expected
    assert feed_from == feed


PLAIN = st.builds(lambda a, b: Holding(a, min(a, b)), st.integers(0, 50), st.integers(0, 50))
KEPT = st.builds(
    lambda depth, unit: Holding(0, 0, depth * unit, unit), st.integers(0, 6), st.integers(1, 16)
)


@given(st.lists(PLAIN | KEPT, min_size=1, max_size=5), st.integers(0, 49))
def test_every_row_that_is_lacked_will_come(holdings: list[Holding], needed: int) -> None:
    """Whatever the hops hold, each gets the rows from its length on, from somebody who has them."""
    found, feed_from = starts(holdings, needed)
    ends = [*[start.kv_length for start in found], needed]
    for index, (holding, start) in enumerate(zip(holdings, found, strict=True)):
        if holding.cache_unit:
            assert start.kv_length % holding.cache_unit == 0
            assert start.kv_length <= min(holding.cached_length, ends[index + 1])
            assert start.kv_length + holding.cache_unit > min(
                holding.cached_length, ends[index + 1]
            )
        else:
            assert start.kv_length in (0, holding.kv_length)
        assert start.send_from == ends[index + 1]
        resent_from_outbox = start.kv_length > 0 and start.send_from >= (
            holding.outbox_start if holding.kv_length else start.kv_length
        )
        computed_anew = start.send_from >= start.kv_length
        assert resent_from_outbox or computed_anew
    assert feed_from == found[0].kv_length
    assert isinstance(found[0], HopStart)


# ---------------------------------------------------------------- outbox and credits


def filled() -> Outbox:
    """A prompt of 20 in chunks of 8, then 20 generated ids."""
    outbox = Outbox()
    for rows in prompt_rows(range(20), 8):
        outbox.append(rows)
    for position in range(20, 40):
        outbox.append(decode_row(position, position))
    return outbox


def test_prompt_keeps_its_chunks_and_decode_rows_travel_in_bundles() -> None:
    feed, outbox = Feed(100), filled()
    sent = []
    while rows := feed.take(outbox, 1 << 20):
        sent.append((rows.position, rows.count, rows.kind))
    assert sent[:3] == [
        (0, 8, StepKind.PREFILL), (8, 8, StepKind.PREFILL), (16, 4, StepKind.PREFILL),
    ]  # fmt: skip
    assert sent[3:] == [(20, DECODE_BUNDLE, StepKind.DECODE), (36, 4, StepKind.DECODE)]


def test_chunks_let_all_hops_of_a_route_work_at_once() -> None:
    assert prefill_chunk(2000, 1, 256) == 256
    assert prefill_chunk(2000, 2, 256) == 256
    assert prefill_chunk(1000, 2, 256) == 128
    assert prefill_chunk(1000, 3, 256) == 128
    assert prefill_chunk(1000, 4, 256) == 64
    assert prefill_chunk(20, 3, 256) == 64
    assert prefill_chunk(1000, 8, 48) == 48


def test_rows_are_cut_at_the_position_asked_for() -> None:
    rows = filled().next_rows(11)
    assert rows is not None
    assert (rows.position, rows.count) == (11, 5)
    assert bytes(rows.payload) == b"".join(i.to_bytes(4, "little") for i in range(11, 16))


def test_credits_bound_what_is_in_flight() -> None:
    feed, outbox = Feed(2), filled()
    assert feed.take(outbox, 1 << 20)
    assert feed.take(outbox, 1 << 20)
    assert feed.take(outbox, 1 << 20) is None
    feed.acknowledged(8)
    third = feed.take(outbox, 1 << 20)
    assert third is not None
    assert third.position == 16


def test_a_single_decode_row_needs_no_credit() -> None:
    feed, outbox = Feed(1), Outbox()
    outbox.append(Rows(0, 4, StepKind.PREFILL, RowType.IDS, b"0" * 16))
    assert feed.take(outbox, 1 << 20)
    outbox.append(decode_row(4, 1))
    assert feed.take(outbox, 1 << 20)


def test_the_byte_budget_lets_one_step_pass() -> None:
    feed, outbox = Feed(8), filled()
    assert feed.take(outbox, 0)
    assert feed.take(outbox, 0) is None


def test_a_dropped_front_is_gone_and_said() -> None:
    outbox = filled()
    outbox.drop_before(16)
    assert outbox.start == 16
    assert outbox.stop == 40
    assert outbox.next_rows(3) is None
    assert outbox.byte_count == 24 * 4


def test_rows_out_of_order_are_our_own_mistake() -> None:
    outbox = filled()
    with pytest.raises(LocalProtocolError):
        outbox.append(decode_row(50, 1))


# ---------------------------------------------------------------- watches


def test_silence_is_soft_then_hard() -> None:
    watch = SilenceWatch(CONFIG, 0.0)
    assert watch.alarm(0.05) is Alarm.NONE
    assert watch.alarm(0.11) is Alarm.SOFT
    assert watch.alarm(0.26) is Alarm.HARD


def test_our_own_stall_is_not_the_peers_silence() -> None:
    watch = SilenceWatch(CONFIG, 0.0)
    watch.stalled(0.5, 0.5)
    assert watch.alarm(0.55) is Alarm.NONE


def test_a_link_that_showed_gaps_gets_more_time() -> None:
    watch = SilenceWatch(CONFIG, 0.0)
    watch.heard(0.15)
    assert watch.alarm(0.15 + 0.3) is Alarm.SOFT
    assert watch.alarm(0.15 + 0.46) is Alarm.HARD
    watch.heard(700.0)
    watch.begin(1400.0)
    assert watch.alarm(1400.3) is Alarm.HARD


def test_vigil_tells_each_alarm_once_and_forgets_it_when_heard() -> None:
    vigil = Vigil(CONFIG)
    vigil.watch([A, B], 0.0)
    vigil.heard(B, 0.1)
    assert vigil.new_alarms(0.12) == [(A, Alarm.SOFT)]
    assert vigil.new_alarms(0.13) == []
    vigil.heard(A, 0.14)
    assert vigil.new_alarms(0.15) == []
    assert vigil.new_alarms(0.7) == [(A, Alarm.HARD), (B, Alarm.HARD)]
    assert vigil.new_alarms(0.8) == []


def test_idle_links_are_not_watched() -> None:
    vigil = Vigil(CONFIG)
    vigil.watch([A], 0.0)
    vigil.watch([], 0.01)
    assert vigil.new_alarms(10.0) == []
    vigil.watch([A], 20.0)
    assert vigil.new_alarms(20.05) == []


def test_progress_goes_only_to_those_who_heard_nothing() -> None:
    vigil = Vigil(CONFIG)
    vigil.sent(A, 1.0)
    due = vigil.progress_due({A: [], B: []}, 0, 1.01)
    assert [peer for peer, _ in due] == [B]


def route_of(*nodes: NodeId) -> Route:
    hops = tuple(
        Hop(node, LayerRange(i, i + 1), i == 0, i == len(nodes) - 1, NumericClass("c"))
        for i, node in enumerate(nodes)
    )
    return Route(hops, predicted_token_s=0.01, slowest_step_s=0.1)


def test_the_hop_that_holds_up_is_found() -> None:
    watch, route = ProgressWatch(CONFIG), route_of(A, B, C)
    watch.restart([A, B, C], [10, 10, 10], 0.0)
    assert watch.culprit(route, 11) == A
    watch.hop_at(A, 11, 0.1)
    assert watch.culprit(route, 11) == B
    watch.hop_at(B, 11, 0.2)
    assert watch.culprit(route, 11) == C
    assert watch.alarm(0.01, 0.0, 0.5) is Alarm.NONE
    assert watch.alarm(0.01, 0.0, 0.7) is Alarm.SOFT
    assert watch.alarm(0.01, 0.0, 4.3) is Alarm.HARD


def test_a_hop_whose_worker_finishes_other_steps_is_busy_and_not_stuck() -> None:
    watch = ProgressWatch(CONFIG)
    watch.restart([A], [0], 0.0)
    assert watch.alarm(0.01, 100.0, 100.3) is Alarm.NONE
    assert watch.alarm(0.01, 100.0, 104.5) is Alarm.HARD


def test_only_hops_beside_each_other_may_accuse() -> None:
    route = route_of(A, B, C)
    assert may_accuse(route, A, A)
    assert may_accuse(route, A, B)
    assert not may_accuse(route, A, C)
    assert not may_accuse(route, NodeId("x"), A)


@pytest.mark.parametrize(
    ("kv_length", "outbox_start", "fits"),
    [(0, 0, True), (9, 3, True), (10, 10, True), (11, 0, False), (3, 4, False), (3, -1, False)],
)
def test_what_a_hop_can_hold(kv_length: int, outbox_start: int, fits: bool) -> None:
    opened = Opened(SessionId("s"), Epoch(1), kv_length, outbox_start)
    assert is_possible(opened, 10) is fits


def test_a_pause_and_its_parts() -> None:
    clock = StallClock()
    assert clock.token(1.0) is None
    clock.verdict(2.0, 2.1)
    clock.verdict(2.0, 2.2)
    clock.resumed(2.3)
    pause = clock.token(2.6)
    assert pause is not None
    assert pause.milliseconds() == pytest.approx(
        {"stall_ms": 600, "detection_ms": 100, "planning_ms": 200, "replay_ms": 300}
    )
    assert clock.stalls_s == [pytest.approx(0.6)]


# ---------------------------------------------------------------- avoidance


def test_avoidance_ends_by_itself() -> None:
    avoidance = Avoidance()
    avoidance.node(A, 0.0)
    avoidance.wire(A, B, FailureCode.SILENT, 0.0)
    avoidance.wire(A, C, FailureCode.UNREACHABLE, 0.0)
    assert avoidance.nodes_at(0.5) == {A}
    assert avoidance.nodes_at(1.5) == frozenset()
    assert avoidance.wires_at(5.0) == {(A, B)}
    assert avoidance.wires_at(11.0) == frozenset()
    assert avoidance.next_expiry(2.0) == 10.0


def test_a_silent_wire_is_better_than_none_after_a_moment() -> None:
    avoidance = Avoidance()
    avoidance.wire(A, B, FailureCode.SILENT, 100.0)
    avoidance.no_link(B, C, waited=True, now=100.0)
    both = frozenset({(A, B), (B, C)})
    assert avoidance.wires_at(100.5) == both
    assert avoidance.wires_at(100.5, sparing=False) == both
    assert avoidance.next_expiry(100.5) == 101.0
    assert avoidance.wires_at(101.5) == both
    assert avoidance.wires_at(101.5, sparing=False) == {(B, C)}


def test_penalties_double_and_a_new_incarnation_starts_clean() -> None:
    box = PenaltyBox(CONFIG)
    assert box.punish(A, Incarnation(1), Offence.SILENT, 0.0) == 2.0
    assert box.remaining_s(A, Incarnation(1), 1.0) == 1.0
    assert box.remaining_s(A, Incarnation(2), 1.0) == 0.0
    assert box.take_expired(1.0) is False
    assert box.take_expired(2.5) is True
    assert box.take_expired(3.0) is False
    assert box.punish(A, Incarnation(1), Offence.STUCK, 3.0) == 4.0
    assert box.punish(A, Incarnation(2), Offence.STUCK, 4.0) == 2.0
    assert box.punish(A, Incarnation(2), Offence.SILENT, 400.0) == 2.0


def boxed(offence: Offence, stays: int = 4) -> PenaltyBox:
    """A is in for 16 s from 0.0 on."""
    box = PenaltyBox(CONFIG)
    for _ in range(stays):
        box.punish(A, ONE, offence, 0.0)
    assert box.remaining_s(A, ONE, 0.0) == 16.0
    return box


def test_who_was_silent_leaves_when_it_is_heard_for_a_while() -> None:
    box = boxed(Offence.SILENT)
    for tenth in range(10, 49):
        box.heard(A, tenth / 10)
    assert box.remaining_s(A, ONE, 4.9) > 0
    box.heard(A, 5.0)
    assert box.remaining_s(A, ONE, 5.0) == 0
    assert box.take_expired(5.0)
    assert box.punish(A, ONE, Offence.SILENT, 6.0) == 32.0


def test_one_packet_now_and_then_proves_nothing() -> None:
    box = boxed(Offence.SILENT)
    for second in (1, 3, 5, 7, 9):
        box.heard(A, float(second))
    assert box.remaining_s(A, ONE, 9.0) == 7.0


def test_one_that_was_silent_and_speaks_again_is_better_than_nobody() -> None:
    box = boxed(Offence.SILENT)
    assert not box.is_heard(A, 0.5) and not box.is_heard(B, 0.5)
    box.heard(A, 0.6)
    assert box.is_heard(A, 1.5) and box.remaining_s(A, ONE, 1.5) > 0
    assert not box.is_heard(A, 1.7), "it is silent again"
    stuck = boxed(Offence.STUCK)
    stuck.heard(A, 0.6)
    assert not stuck.is_heard(A, 0.6), "it always spoke"


def test_who_was_stuck_leaves_when_its_worker_works() -> None:
    box = boxed(Offence.STUCK)
    box.heard(A, 1.0)
    box.worked(A, 7, 1.0)
    box.worked(A, 7, 2.0)
    assert box.remaining_s(A, ONE, 2.0) == 14.0
    box.worked(A, 8, 3.0)
    assert box.remaining_s(A, ONE, 3.0) == 0
    assert box.take_expired(3.0)


def test_who_was_stuck_leaves_when_it_serves_anew() -> None:
    box = boxed(Offence.STUCK)
    box.announced(A, is_serving=True, now=1.0)
    assert box.remaining_s(A, ONE, 1.0) == 15.0
    box.announced(A, is_serving=False, now=2.0)
    assert box.remaining_s(A, ONE, 2.0) == 14.0
    box.announced(A, is_serving=True, now=3.0)
    assert box.remaining_s(A, ONE, 3.0) == 0


def test_evidence_about_one_fault_does_not_excuse_the_other() -> None:
    silent, stuck = boxed(Offence.SILENT), boxed(Offence.STUCK)
    silent.worked(A, 1, 1.0)
    silent.worked(A, 2, 2.0)
    for tenth in range(10, 90):
        stuck.heard(A, tenth / 10)
    assert silent.remaining_s(A, ONE, 9.0) == stuck.remaining_s(A, ONE, 9.0) == 7.0


def test_pairs_that_cannot_be_joined_are_remembered_for_a_while() -> None:
    bad = BadWires(CONFIG)
    bad.missed(A, B, 0.0)
    assert bad.at(9.9) == {(A, B)}
    assert bad.at(10.1) == frozenset()
    avoidance = Avoidance()
    avoidance.no_link(A, B, False, 0.0)
    avoidance.no_link(B, C, True, 0.0)
    assert avoidance.wires_at(2.0) == {(B, C)}


def test_what_is_known_of_a_pair_ends_with_a_life_of_either() -> None:
    bad, avoidance = BadWires(CONFIG), Avoidance()
    for a, b in ((A, B), (B, C), (C, A)):
        bad.missed(a, b, 0.0)
        avoidance.no_link(a, b, True, 0.0)
    avoidance.wire(A, B, FailureCode.SILENT, 0.0)
    avoidance.node(B, 0.0)
    for known in (bad, avoidance):
        known.began_anew(B)
    assert bad.at(0.1) == avoidance.wires_at(0.1) == {(C, A)}
    assert avoidance.nodes_at(0.1) == frozenset()


def test_a_pair_that_has_a_link_can_be_joined() -> None:
    bad, avoidance = BadWires(CONFIG), Avoidance()
    for a, b in ((A, B), (B, C)):
        bad.missed(a, b, 0.0)
        avoidance.no_link(a, b, True, 0.0)
    for known in (bad, avoidance):
        known.joined(B, A)
    assert bad.at(0.1) == avoidance.wires_at(0.1) == {(B, C)}
