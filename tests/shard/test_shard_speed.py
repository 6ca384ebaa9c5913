"""Speeds that follow the steps, and reports that come when there is news."""

from __future__ import annotations

import pytest
from engine_chain import FIGURES, MODEL, ids_run

from swarm.messages import StepKind
from swarm.shard.speed import REPORT_INTERVAL_S, SpeedTracker, StepTime, sampled_rows


def decode_step(compute_s: float, *, sampled: int = 0) -> StepTime:
    return StepTime(StepKind.DECODE, 1, 10, sampled, compute_s)


def test_a_lasting_change_is_followed() -> None:
    tracker = SpeedTracker(MODEL, FIGURES)
    for _ in range(60):
        tracker.step_done(decode_step(0.030))
    assert tracker.figures.decode_s == pytest.approx(0.003, rel=0.01)
    assert tracker.figures.decode8_s == pytest.approx(0.006, rel=0.01)
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
