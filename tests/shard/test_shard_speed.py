"""Speeds that follow the steps, and reports that come when there is news."""

from __future__ import annotations

import random
import statistics

import pytest
from engine_chain import FIGURES, MODEL, ids_run

from swarm.messages import StepKind
from swarm.shard.scheduler import Slice
from swarm.shard.speed import REPORT_INTERVAL_S, SpeedTracker, StepTime, sampled_rows


def decode_step(compute_s: float, *, sampled: int = 0) -> StepTime:
    return StepTime(StepKind.DECODE, 1, 10, sampled, compute_s)


def test_a_lasting_change_is_followed() -> None:
    tracker = SpeedTracker(MODEL, FIGURES)
    for _ in range(60):
        tracker.step_done(decode_step(0.030))
    assert tracker.figures.decode_s == pytest.approx(0.003, rel=0.01)
    assert 0.002 < tracker.figures.decode8_s < 0.006, "eight rows may be as slow now: who knows"
    assert tracker.figures.prefill_s == FIGURES.prefill_s
    assert tracker.figures.head_s == FIGURES.head_s


def test_one_hiccup_is_no_trend() -> None:
    tracker = SpeedTracker(MODEL, FIGURES)
    tracker.step_done(decode_step(5.0))
    assert tracker.figures.decode_s < 2 * FIGURES.decode_s


def test_prefill_and_head_learn_from_their_own_steps() -> None:
    tracker = SpeedTracker(MODEL, FIGURES)
    for _ in range(60):
        tracker.step_done(StepTime(StepKind.PREFILL, 100, 10, 0, 0.2))
        tracker.step_done(decode_step(0.022, sampled=1))
    assert tracker.figures.prefill_s == pytest.approx(2e-4, rel=0.01)
    assert tracker.figures.head_s == pytest.approx(2e-3, rel=0.01)
    assert tracker.predict_s(StepKind.DECODE, 1, 10, 1) == pytest.approx(0.022, rel=0.01)


def test_a_batch_lies_on_the_line_between_one_row_and_eight() -> None:
    tracker = SpeedTracker(MODEL, FIGURES, pass_rows=None)
    times = [tracker.predict_s(StepKind.DECODE, rows, 10, 0) for rows in (1, 8, 15)]
    assert times == pytest.approx([0.010, 0.020, 0.030])
    tiled = SpeedTracker(MODEL, FIGURES, pass_rows=16)
    assert tiled.predict_s(StepKind.DECODE, 17, 10, 0) == pytest.approx(0.010 * 22 / 7 + 0.010)
    alone = SpeedTracker(MODEL, FIGURES, pass_rows=1)
    assert alone.predict_s(StepKind.DECODE, 17, 10, 0) == pytest.approx(0.170)


def test_batches_of_the_size_that_runs_are_predicted_as_they_are() -> None:
    """Also where they are off the line, and with a head whose rows share one product."""
    tracker = SpeedTracker(MODEL, FIGURES, pass_rows=None)
    rng = random.Random(5)
    misses = []
    for index in range(60):
        real_s = 0.045 * rng.uniform(0.9, 1.1)
        predicted_s = tracker.predict_s(StepKind.DECODE, 16, 10, 16)
        if index >= 3:
            misses.append(abs(predicted_s - real_s) / real_s)
        tracker.step_done(StepTime(StepKind.DECODE, 16, 10, 16, real_s))
    assert statistics.median(misses) < 0.08
    assert tracker.predict_s(StepKind.DECODE, 1, 10, 0) > 0.0


def test_steps_of_eight_rows_teach_the_figure_for_eight() -> None:
    tracker = SpeedTracker(MODEL, FIGURES, pass_rows=None)
    for _ in range(100):
        tracker.step_done(StepTime(StepKind.DECODE, 8, 10, 0, 0.040))
    assert tracker.figures.decode8_s == pytest.approx(0.004, rel=0.01)


def test_short_pieces_tell_only_of_short_pieces() -> None:
    tracker = SpeedTracker(MODEL, FIGURES)
    for _ in range(20):
        tracker.step_done(StepTime(StepKind.PREFILL, 8, 10, 0, 0.030))
    assert tracker.figures == FIGURES
    assert tracker.predict_s(StepKind.PREFILL, 8, 10, 0) == pytest.approx(0.030)
    assert tracker.predict_s(StepKind.PREFILL, 64, 10, 0) == pytest.approx(0.064)


def test_rows_of_prompts_beside_tokens_are_predicted_by_what_they_took() -> None:
    """And teach nothing else: tokens cost what they did."""
    tracker = SpeedTracker(MODEL, FIGURES)
    alone_s = tracker.predict_s(StepKind.DECODE, 2, 10, 0)
    row_s = 10 * FIGURES.prefill_s
    assert tracker.predict_mixed_s(2, 30, 10, 0) == pytest.approx(alone_s + 30 * row_s)
    for _ in range(30):
        tracker.step_done(StepTime(StepKind.DECODE, 16, 10, 0, alone_s + 14 * 3 * row_s, 14))
    assert tracker.predict_mixed_s(2, 30, 10, 0) == pytest.approx(alone_s + 90 * row_s, rel=0.01)
    assert tracker.figures == FIGURES
    assert tracker.predict_s(StepKind.DECODE, 16, 10, 0) == pytest.approx(8 * alone_s)


def test_what_is_told_is_what_a_token_takes_in_the_batch_now_running() -> None:
    tracker = SpeedTracker(MODEL, FIGURES, pass_rows=None)
    alone, eight = tracker.speed(0.0, 1), tracker.speed(0.0, 1, batch=8)
    assert (alone.decode_s_per_layer, alone.head_s) == (FIGURES.decode_s, FIGURES.head_s)
    assert (eight.decode_s_per_layer, eight.head_s) == pytest.approx((0.002, 0.008))
    for _ in range(50):
        tracker.step_done(StepTime(StepKind.DECODE, 8, 10, 8, 0.050))
    told = tracker.speed(0.0, 1, batch=8)
    assert 10 * told.decode_s_per_layer + told.head_s == pytest.approx(0.050, rel=0.02)


def test_decode_rows_that_wait_run_together() -> None:
    def queue_s(pass_rows: int | None) -> float:
        tracker = SpeedTracker(MODEL, FIGURES, pass_rows)
        runs = [ids_run(str(index), 0, [5], kind=StepKind.DECODE) for index in range(8)]
        return tracker.queue_s([(Slice(run, 0, 1), 10, 0) for run in runs])

    assert queue_s(None) == pytest.approx(0.020)
    assert queue_s(1) == pytest.approx(0.080)


def test_reports_come_first_on_change_and_seldom_otherwise() -> None:
    tracker = SpeedTracker(MODEL, FIGURES)

    def due(now: float, queue_s: float = 0.0, kv_free: int = 100) -> bool:
        return tracker.due(tracker.speed(queue_s, kv_free), now)

    assert due(0.0)
    assert not due(0.1)
    assert not due(REPORT_INTERVAL_S + 1.0), "nothing has changed at all"
    assert due(REPORT_INTERVAL_S + 1.0, kv_free=50)
    assert not due(REPORT_INTERVAL_S + 1.1, kv_free=40)
    assert due(REPORT_INTERVAL_S + 1.2, queue_s=0.5)
    assert due(REPORT_INTERVAL_S + 1.3, queue_s=0.0)
    for _ in range(3):
        tracker.step_done(decode_step(0.030))
    assert due(REPORT_INTERVAL_S + 1.4)


@pytest.mark.parametrize(
    ("sample_from", "first", "count", "expected"),
    [(111, 0, 12, 1), (111, 0, 11, 0), (0, 0, 12, 12), (105, 4, 4, 3), (200, 0, 12, 0)],
)
def test_sampled_rows(sample_from: int, first: int, count: int, expected: int) -> None:
    run = ids_run("s", 100, [5] * 12, sample_from=sample_from)
    assert sampled_rows(run, first, count) == expected
