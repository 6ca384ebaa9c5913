"""A worker that has work and does none: when that is certain, and what is no such case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from relay_bench import FIRST as ORDER
from relay_bench import MODEL, begin_of, rows_ran, rows_run, under

from swarm.config import RoutingConfig, ShardConfig
from swarm.messages import (
    Begin,
    End,
    FailureCode,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Ran,
    RowType,
    Run,
    RunFailed,
    SpeedReport,
    StepKind,
    WorkerFailed,
)
from swarm.routing.worker_watch import TRIAL, WorkerWatch
from swarm.terms import LayerRange, ModelId, ModelSpec, NumericClass, ShardSpeed

ROUTING, SHARD = RoutingConfig(), ShardConfig()
SPEED = ShardSpeed(MODEL, 0.001, 0.001, 0.0001, 0.0, 0.0, 0)
PATIENCE_S = SHARD.worker_stuck_min_s
LOAD = Load("/a", MODEL, LayerRange(0, 4), True, False)


def watch(speed: ShardSpeed | None = SPEED, load_bytes: int = 0) -> WorkerWatch:
    return WorkerWatch(ROUTING, SHARD, lambda _: speed, lambda _: load_bytes)


def begin(session: str = "a", generation: int = 1) -> Begin:
    message = begin_of(under(ORDER, 1), generation).message
    assert isinstance(message, Begin)
    return replace(message, session=session)


def run(position: int = 0, session: str = "a", generation: int = 1, count: int = 10) -> Run:
    message = rows_run(position, count, StepKind.PREFILL, 0, generation).message
    assert isinstance(message, Run)
    return replace(message, session=session)


def ran(position: int = 0, session: str = "a", generation: int = 1) -> Ran:
    return replace(rows_ran(position, 10, StepKind.PREFILL), session=session, generation=generation)


def busy(it: WorkerWatch) -> WorkerWatch:
    """Work since 0.0."""
    it.sent(begin(), 0.0)
    it.sent(run(), 0.0)
    return it


def test_work_without_an_answer_is_a_verdict_in_plain_words() -> None:
    it = busy(watch())
    assert it.next_deadline() == PATIENCE_S
    assert it.verdict(PATIENCE_S - 0.1) is None
    assert it.verdict(PATIENCE_S) == "it has work and finished no step for 4.0 s"
    it.lost()
    assert it.next_deadline() is None
    assert it.verdict(100.0) is None


def test_each_finished_step_starts_the_time_anew() -> None:
    it = busy(watch())
    it.sent(run(10), 1.0)
    it.answered(ran(), 3.0)
    assert it.next_deadline() == 3.0 + PATIENCE_S
    it.answered(ran(10), 5.0)
    assert it.next_deadline() is None


@pytest.mark.parametrize("answer", [ran(), RunFailed("a", 1, FailureCode.STEP_FAILED, "")])  # type: ignore[arg-type]
def test_no_work_no_deadline(answer: Ran | RunFailed) -> None:
    it = busy(watch())
    it.answered(answer, 1.0)
    assert it.next_deadline() is None


def test_a_slow_shard_has_thirty_times_its_prediction() -> None:
    slow = replace(SPEED, prefill_s_per_token_layer=0.1)
    it = busy(watch(slow))
    assert it.next_deadline() == pytest.approx(ROUTING.stuck_factor * 4 * 10 * 0.1)


def test_own_stalls_do_not_count() -> None:
    it = busy(watch())
    it.stalled(10.0)
    assert it.verdict(13.0) is None
    assert it.verdict(14.0) is not None


def test_reports_of_speed_are_no_steps() -> None:
    it = busy(watch())
    it.answered(SpeedReport(SPEED, 0, 1), 3.0)
    assert it.next_deadline() == PATIENCE_S


def test_a_session_that_ends_early_is_no_evidence() -> None:
    it = busy(watch())
    it.sent(End(run().session), 0.2)
    assert it.next_deadline() is None
    assert not it.wants_trial


def test_sessions_that_leave_a_slow_worker_leave_a_doubt() -> None:
    it = busy(watch())
    it.sent(End(run().session), 2.0)
    assert it.wants_trial
    assert it.next_deadline() == PATIENCE_S
    for order in (replace(begin(), session=TRIAL), run(session=TRIAL)):
        it.sent(order, 2.0)
    assert it.verdict(PATIENCE_S) is not None
    it.answered(ran(session=TRIAL), 3.0)
    assert not it.wants_trial
    assert it.next_deadline() is None


def test_other_sessions_with_work_need_no_trial() -> None:
    it = busy(watch())
    it.sent(begin("b"), 0.0)
    it.sent(run(session="b"), 0.0)
    it.sent(End(run().session), 2.0)
    assert not it.wants_trial
    assert it.next_deadline() == PATIENCE_S


def test_a_session_begun_again_waits_for_its_new_rows_only() -> None:
    it = busy(watch())
    it.sent(begin(generation=2), 0.1)
    assert it.next_deadline() is None
    it.sent(run(generation=2), 0.2)
    it.answered(ran(), 0.3)
    assert it.next_deadline() == 0.3 + PATIENCE_S
    it.answered(ran(generation=2), 0.4)
    assert it.next_deadline() is None


# ---------------------------------------------------------------- loads


def loaded(model_id: ModelId = MODEL) -> Loaded:
    return Loaded(
        model_id, LayerRange(0, 4), NumericClass("c"), 1, RowType.FLOAT32, 4, SPEED, "cpu"
    )


def test_a_load_may_take_its_time_and_says_so() -> None:
    it = watch(load_bytes=int(40 * SHARD.load_floor_bytes_s))
    it.sent(LOAD, 0.0)
    patience_s = SHARD.load_quiet_s + 40
    assert it.next_deadline() == patience_s
    it.answered(LoadProgress(0.5, "weights"), 100.0)
    assert it.verdict(100.0 + patience_s - 1) is None
    assert it.verdict(100.0 + patience_s) == f"it said nothing for {patience_s:.0f} s of loading /a"
    it.answered(loaded(), 101.0)
    assert it.next_deadline() is None


def test_a_worker_that_was_given_up_at_its_start_may_take_longer_the_next_time() -> None:
    spec = ModelSpec(MODEL, "m", 12, 64, 100, 1000, (), False)
    it = watch()
    for factor in (1, 2, 4, 8, 8):
        it.sent(Inspect("/a", "m", ""), 0.0)
        assert it.next_deadline() == factor * SHARD.load_quiet_s
        it.lost()
    it.sent(Inspect("/a", "m", ""), 0.0)
    it.answered(Inspected(spec, 1, 1, 1, 1, "", "/a"), 10.0)
    it.lost()
    it.sent(Inspect("/a", "m", ""), 20.0)
    assert it.next_deadline() == 20.0 + SHARD.load_quiet_s


def test_steps_that_came_before_a_load_are_finished_before_it() -> None:
    it = busy(watch())
    it.sent(LOAD, 1.0)
    assert it.next_deadline() == PATIENCE_S and it.verdict(PATIENCE_S) is not None
    it.answered(LoadProgress(0.0, "checkpoint"), 2.0)
    assert it.next_deadline() == 2.0 + SHARD.load_quiet_s, "the load was taken up"
    it.answered(loaded(), 60.0)
    assert it.next_deadline() == 60.0 + PATIENCE_S


def test_a_worker_that_answered_its_steps_may_load_in_silence() -> None:
    it = busy(watch())
    it.sent(LOAD, 1.0)
    it.answered(ran(), 2.0)
    assert it.next_deadline() == 2.0 + SHARD.load_quiet_s


def test_steps_that_come_during_a_load_wait_for_it() -> None:
    it = watch()
    it.sent(LOAD, 0.0)
    busy(it)
    assert it.next_deadline() == SHARD.load_quiet_s


def test_a_worker_that_is_up_takes_an_order_up_at_once() -> None:
    it = watch()
    it.sent(Inspect("/a", "m", ""), 0.0)
    assert it.next_deadline() == SHARD.load_quiet_s, "it may be starting"
    it.answered(WorkerFailed("/a", "no such file"), 1.0)
    it.sent(LOAD, 10.0)
    assert it.next_deadline() == 10.0 + SHARD.first_word_s
    assert it.verdict(10.0 + SHARD.first_word_s) == "it said nothing for 15 s of loading /a"
    it.answered(LoadProgress(0.0, "checkpoint"), 11.0)
    assert it.next_deadline() == 11.0 + SHARD.load_quiet_s
    it.lost()
    it.sent(LOAD, 20.0)
    assert it.next_deadline() == 20.0 + 2 * SHARD.load_quiet_s, "another one has to start"


@pytest.mark.parametrize("is_before", [True, False])
def test_a_step_whose_session_has_gone_may_still_keep_the_worker(is_before: bool) -> None:
    it = watch()
    it.sent(Inspect("/a", "m", ""), 0.0)
    it.answered(WorkerFailed("/a", "no such file"), 0.0)
    busy(it)
    orders: list[End | Load] = [End(begin().session), LOAD]
    for order in orders if is_before else reversed(orders):
        it.sent(order, 0.1)
    assert it.next_deadline() == PATIENCE_S + SHARD.first_word_s


def test_inspections_and_loads_of_several_models() -> None:
    spec = ModelSpec(MODEL, "m", 12, 64, 100, 1000, (), False)
    it = watch()
    for path in ("/a", "/b"):
        it.sent(Inspect(path, "m", ""), 0.0)
    it.answered(Inspected(spec, 1, 1, 1, 1, "", "/a"), 10.0)
    assert it.next_deadline() == 10.0 + SHARD.load_quiet_s
    it.sent(LOAD, 10.0)
    it.answered(WorkerFailed("/b", "no such file"), 20.0)
    it.answered(loaded(ModelId("other")), 30.0)
    assert it.next_deadline() == 30.0 + SHARD.load_quiet_s
    it.answered(loaded(), 40.0)
    assert it.next_deadline() is None
