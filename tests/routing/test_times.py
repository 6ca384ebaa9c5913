"""Where a session's time goes: counted on each hop, told now and then, joined by the origin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from relay_bench import LAST, MIDDLE, ORIGIN, Bench, chunk, decode_step, rows_ran, shard_of, under

from swarm.messages import HopTimes, StepKind
from swarm.routing.step_clock import StepClock
from swarm.routing.trace import LEGS_KEPT, SessionTrace
from swarm.terms import (
    Epoch,
    Hop,
    LayerRange,
    NodeId,
    NumericClass,
    Route,
    SessionId,
    StepTimes,
)

A, B, C = (NodeId(name * 32) for name in "abc")
SESSION = SessionId("0" * 16)


def route(*nodes: NodeId) -> Route:
    hops = tuple(
        Hop(node, LayerRange(i, i + 1), i == 0, i == len(nodes) - 1, NumericClass("c"))
        for i, node in enumerate(nodes)
    )
    return Route(hops, 0.01, 0.1)


def said(epoch: int, rows: int, held_s: float, compute_s: float) -> HopTimes:
    return HopTimes(SESSION, Epoch(epoch), StepTimes(), StepTimes(rows, held_s, compute_s))


# ---------------------------------------------------------------- a hop's clock


def test_chunks_that_overlap_count_each_moment_once() -> None:
    clock = StepClock()
    clock.arrived(10.0)
    clock.arrived(10.5)
    clock.done(StepKind.PREFILL, 256, 0.75, 11.0)
    clock.done(StepKind.PREFILL, 100, 0.5, 11.75)
    assert clock.prompt == StepTimes(356, 1.75, 1.25)
    assert clock.prompt.wait_s == 0.5
    assert clock.tokens == StepTimes()


def test_time_at_rest_is_nobodys() -> None:
    clock = StepClock()
    for at in (10.0, 20.0):
        clock.arrived(at)
        clock.done(StepKind.DECODE, 1, 0.25, at + 0.5)
        clock.rest()
    assert clock.tokens == StepTimes(2, 1.0, 0.5)


def test_a_clock_is_told_often_first_and_then_every_sixteen_tokens() -> None:
    clock = StepClock()
    clock.arrived(10.0)
    clock.done(StepKind.PREFILL, 5, 0.1, 10.1)
    assert not clock.is_worth_telling(0.0), "more of the prompt is under way"
    clock.rest()
    assert clock.is_worth_telling(0.0)
    told = []
    for token in range(1, 70):
        clock.done(StepKind.DECODE, 1, 0.001, 10.1)
        if clock.is_worth_telling(0.0):
            told.append(token)
    assert told == [1, 2, 4, 8, 16, 32, 48, 64]


def test_slow_tokens_are_told_as_time_passes() -> None:
    clock = StepClock()
    for token in range(20):
        clock.done(StepKind.DECODE, 1, 1.0, token)
        assert clock.is_worth_telling(float(token + 1))


# ---------------------------------------------------------------- a hop


def test_a_hop_tells_the_origin_what_its_steps_took() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.step(chunk(0, 10))
    bench.now += 0.5
    bench.ran(replace(rows_ran(0, 10, StepKind.PREFILL), compute_s=0.25))
    ((peer, times),) = bench.times
    assert peer == ORIGIN
    assert times.prompt == StepTimes(10, 0.5, 0.25)
    assert times.tokens == StepTimes()


def test_a_new_epoch_counts_afresh() -> None:
    bench = Bench(shard_of(8, 12))
    bench.hold(LAST, 22)
    before = bench.times[-1][1]
    assert (before.epoch, before.tokens.rows) == (Epoch(1), 2)
    bench.open(under(LAST, 2))
    bench.resume(22, 22, epoch=2)
    bench.step(decode_step(22, epoch=2))
    bench.ran(rows_ran(22, 1, StepKind.DECODE, head=True))
    after = bench.times[-1][1]
    assert (after.epoch, after.prompt.rows, after.tokens.rows) == (Epoch(2), 0, 1)


# ---------------------------------------------------------------- the origin's trace


def test_what_no_hop_accounts_for_is_the_wire() -> None:
    trace = SessionTrace()
    trace.resumed(route(A, B), Epoch(1), 6, 100.0)
    for at in (100.5, 100.75, 101.0):
        trace.token(at)
    trace.hop_said(A, said(1, 2, 0.2, 0.1))
    trace.hop_said(B, said(1, 2, 0.2, 0.2))
    (leg,) = trace.views()
    assert (leg.first_token_s, leg.token_count, leg.tokens_s) == (0.5, 2, 0.5)
    assert leg.wire_s == pytest.approx(0.05)
    first = {
        "node": "a" * 8, "tokens": 2, "wait_ms": 100.0, "compute_ms": 100.0,
        "prompt_rows": 0, "prompt_wait_ms": 0.0, "prompt_compute_ms": 0.0,
    }  # fmt: skip
    last = first | {"node": "b" * 8, "wait_ms": 0.0, "compute_ms": 200.0, "wire_ms": 100.0}
    assert trace.figures() == [first, last]


def test_a_leg_without_word_of_all_hops_has_no_wire_time() -> None:
    trace = SessionTrace()
    trace.resumed(route(A, B), Epoch(1), 6, 100.0)
    trace.token(100.5)
    trace.token(100.6)
    trace.hop_said(B, said(1, 1, 0.01, 0.01))
    assert trace.views()[0].wire_s is None


@pytest.mark.parametrize(
    ("node", "times", "why"),
    [
        (C, said(1, 9, 1.0, 1.0), "not in the route"),
        (A, said(2, 9, 1.0, 1.0), "another epoch"),
        (A, said(1, 2, 1.0, 1.0), "fewer rows than before"),
        (A, said(1, 9, 0.1, 1.0), "less time than before"),
        (A, said(1, 9, 1.0, -1.0), "less computing than before"),
    ],
)
def test_what_makes_no_sense_is_not_taken(node: NodeId, times: HopTimes, why: str) -> None:
    trace = SessionTrace()
    trace.resumed(route(A, B), Epoch(1), 6, 100.0)
    trace.hop_said(A, said(1, 4, 0.5, 0.25))
    before = trace.views()
    trace.hop_said(node, times)
    assert trace.views() == before, why


def test_each_route_is_a_leg_and_the_oldest_are_forgotten() -> None:
    trace = SessionTrace()
    for epoch in range(1, LEGS_KEPT + 3):
        trace.resumed(route(A, B), Epoch(epoch), epoch, 100.0 + epoch)
        trace.token(100.5 + epoch)
    legs = trace.views()
    assert [leg.epoch for leg in legs] == list(range(3, LEGS_KEPT + 3))
    assert all(leg.first_token_s == 0.5 for leg in legs)
