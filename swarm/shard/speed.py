"""How fast a worker is: measured at load, then kept true from its own steps.

A step's time is split as layers x per-layer time, plus the head's time where it sampled. The
figures follow by an exponential average, so that a machine that got busy or hot is seen so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarm.messages import Run, StepKind
from swarm.shard.scheduler import Slice
from swarm.terms import ModelId, ShardSpeed

SMOOTHING = 0.1
"""Weight of the newest step; figures follow a lasting change within some twenty steps."""
OUTLIER_FACTOR = 8.0
"""A step counts at most as this many times the present figure: one hiccup is no trend."""
REPORT_CHANGE = 0.15
REPORT_QUEUE_S = 0.02
"""Change of the predicted wait that is worth a report."""
REPORT_INTERVAL_S = 3.0
"""Between reports of a busy worker whose figures hardly change."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds. Decode: one layer, one step of 1 (or 8) sessions; prefill: one layer, one token."""

    decode_s: float
    decode8_s: float
    prefill_s: float
    head_s: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that was run: `rows` positions through `layers` layers, `sampled` rows of them."""

    kind: StepKind
    rows: int
    layers: int
    sampled: int
    compute_s: float


class SpeedTracker:
    def __init__(self, model_id: ModelId, figures: Figures) -> None:
        self.figures = figures
        self._model_id = model_id
        self._reported: ShardSpeed | None = None
        self._reported_at = 0.0

    def step_done(self, step: StepTime) -> None:
        """Learn from one step. A head's steps teach head and layers in their present ratio."""
        predicted = self.predict_s(step.kind, step.rows, step.layers, step.sampled)
        if predicted <= 0.0 or step.rows == 0:
            return
        ratio = min(step.compute_s / predicted, OUTLIER_FACTOR)
        factor = 1.0 + SMOOTHING * (ratio - 1.0)
        now = self.figures
        if step.kind is StepKind.PREFILL:
            now = replace(now, prefill_s=now.prefill_s * factor)
        else:
            now = replace(now, decode_s=now.decode_s * factor, decode8_s=now.decode8_s * factor)
        if step.sampled:
            now = replace(now, head_s=now.head_s * factor)
        self.figures = now

    def predict_s(self, kind: StepKind, rows: int, layers: int, sampled: int) -> float:
        per_row = self.figures.prefill_s if kind is StepKind.PREFILL else self.figures.decode_s
        return rows * layers * per_row + sampled * self.figures.head_s

    def queue_s(self, waiting: Iterable[tuple[Slice, int, int]]) -> float:
        """Time to run what waits: slices with the layers they use and the rows they sample."""
        return sum(
            self.predict_s(part.run.kind, part.count, layers, sampled)
            for part, layers, sampled in waiting
        )

    def speed(self, queue_s: float, kv_free_bytes: int) -> ShardSpeed:
        return ShardSpeed(
            model_id=self._model_id,
            decode_s_per_layer=self.figures.decode_s,
            decode8_s_per_layer=self.figures.decode8_s,
            prefill_s_per_token_layer=self.figures.prefill_s,
            head_s=self.figures.head_s,
            queue_s=queue_s,
            kv_free_bytes=kv_free_bytes,
        )

    def due(self, speed: ShardSpeed, now: float) -> bool:
        """Whether `speed` is worth a report; if so, it counts as reported."""
        last = self._reported
        if last is not None and not _differs(last, speed):
            if now - self._reported_at < REPORT_INTERVAL_S:
                return False
            if last == speed:
                return False
        self._reported, self._reported_at = speed, now
        return True


def _differs(old: ShardSpeed, new: ShardSpeed) -> bool:
    pairs = (
        (old.decode_s_per_layer, new.decode_s_per_layer),
        (old.prefill_s_per_token_layer, new.prefill_s_per_token_layer),
        (old.head_s, new.head_s),
    )
    if abs(new.queue_s - old.queue_s) > REPORT_QUEUE_S:
        return True
    return any(abs(after - before) > REPORT_CHANGE * before for before, after in pairs)


def sampled_rows(run: Run, first: int, count: int) -> int:
    """How many of rows [first, first + count) of a run a head samples."""
    start = max(run.sample_from - run.position, first)
    return max(0, min(run.count, first + count) - start)
