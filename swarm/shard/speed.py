"""How fast a worker is: measured at load, then kept true from its own steps.

A step's time is split as layers x per-layer time, plus the head's time where it sampled; that of a
decode batch lies on a line between the times of one row and of eight. The figures follow by an
exponential average, so that a machine that got busy or hot is seen so. What the line misses, for
batches of the size now running, is learned beside it and counts for predictions only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarm.messages import Run, StepKind
from swarm.shard.scheduler import Slice
from swarm.terms import ModelId, ShardSpeed

SMOOTHING = 0.1
"""Weight of the newest step; figures follow a lasting change within some twenty steps."""
PREDICTION_SMOOTHING = 0.3
"""Of the newest step for the next one of its size: predictions are to follow at once."""
FULL_PIECE_ROWS = 32
"""Of a prompt's step that tells of prompts: in shorter ones the fixed costs are most of it."""
FAR_END_WEIGHT = 0.25
"""Of a step for the figure at the other end of the line: a busy machine is slower at both."""
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
    """A step that was run: `rows` positions through `layers` layers, `sampled` rows of them.

    kind         DECODE where rows of both kinds ran
    prompt_rows  of prompts, of a decode step
    """

    kind: StepKind
    rows: int
    layers: int
    sampled: int
    compute_s: float
    prompt_rows: int = 0


class SpeedTracker:
    def __init__(self, model_id: ModelId, figures: Figures, pass_rows: int | None = 1) -> None:
        """`pass_rows`: decode rows that one pass takes at most; None: any number."""
        self.figures = figures
        self._model_id = model_id
        self._pass_rows = pass_rows
        self._corrections: dict[tuple[StepKind, int, bool], float] = {}
        """By kind, size and whether it samples: what such steps take, over what figures say."""
        self._beside = 1.0
        """What a prompt's row beside tokens takes, over what it takes in a piece of its own."""
        self._reported: ShardSpeed | None = None
        self._reported_at = 0.0

    def step_done(self, step: StepTime) -> None:
        """Learn from one step. A head's steps teach head and layers in their present ratio; steps
        with rows of both kinds teach what prompts cost beside tokens."""
        if step.prompt_rows:
            self._learn_beside(step)
            return
        expected = self._by_figures_s(step.kind, step.rows, step.layers, step.sampled)
        if expected <= 0.0 or step.rows == 0:
            return
        ratio = min(step.compute_s / expected, OUTLIER_FACTOR)
        key = _key(step.kind, step.rows, step.sampled)
        before = self._corrections.get(key, ratio)
        self._corrections[key] = before + PREDICTION_SMOOTHING * (ratio - before)
        growth = SMOOTHING * (ratio - 1.0)
        now = self.figures
        if step.kind is StepKind.PREFILL:
            if step.rows < FULL_PIECE_ROWS:
                return
            now = replace(now, prefill_s=now.prefill_s * (1.0 + growth))
        else:
            place = self._place(step.rows)
            near_one, near_eight = max(1.0 - place, FAR_END_WEIGHT), max(place, FAR_END_WEIGHT)
            now = replace(
                now,
                decode_s=now.decode_s * (1.0 + near_one * growth),
                decode8_s=now.decode8_s * (1.0 + near_eight * growth),
            )
        if step.sampled:
            now = replace(now, head_s=now.head_s * (1.0 + growth))
        self.figures = now

    def predict_s(self, kind: StepKind, rows: int, layers: int, sampled: int) -> float:
        """Of one step of the batch size that runs now, or of any other by the figures alone."""
        expected = self._by_figures_s(kind, rows, layers, sampled)
        return expected * self._corrections.get(_key(kind, rows, sampled), 1.0)

    def predict_mixed_s(self, rows: int, prompt_rows: int, layers: int, sampled: int) -> float:
        """Of one step with so many decode rows, and rows of prompts beside them."""
        beside_s = self._beside * prompt_rows * layers * self.figures.prefill_s
        return self.predict_s(StepKind.DECODE, rows, layers, sampled) + beside_s

    def _learn_beside(self, step: StepTime) -> None:
        rows = step.rows - step.prompt_rows
        alone_s = self.predict_s(StepKind.DECODE, rows, step.layers, min(step.sampled, rows))
        expected = step.prompt_rows * step.layers * self.figures.prefill_s
        if expected > 0.0:
            ratio = (step.compute_s - alone_s) / expected
            ratio = min(max(ratio, 1.0 / OUTLIER_FACTOR), OUTLIER_FACTOR)
            self._beside += PREDICTION_SMOOTHING * (ratio - self._beside)

    def _by_figures_s(self, kind: StepKind, rows: int, layers: int, sampled: int) -> float:
        per_layer = rows * self.figures.prefill_s
        if kind is StepKind.DECODE:
            most = self._pass_rows or max(rows, 1)
            passes, rest = divmod(rows, most)
            per_layer = passes * self._pass_s(most) + (self._pass_s(rest) if rest else 0.0)
        return layers * per_layer + sampled * self.figures.head_s

    def _pass_s(self, rows: int) -> float:
        """One layer, one pass."""
        slope = (self.figures.decode8_s - self.figures.decode_s) / 7.0
        return self.figures.decode_s + max(slope, 0.0) * (rows - 1)

    def _place(self, rows: int) -> float:
        """Of a step's passes on the line: 0 for one row, 1 for eight and more."""
        in_pass = min(rows, self._pass_rows or rows)
        return min(1.0, (in_pass - 1) / 7.0)

    def queue_s(self, waiting: Iterable[tuple[Slice, int, int]]) -> float:
        """Time to run what waits: slices with the layers they use and the rows they sample. Decode
        rows run together."""
        prefill_s, rows, most_layers, decode_sampled = 0.0, 0, 0, 0
        for part, layers, sampled in waiting:
            if part.run.kind is StepKind.PREFILL:
                prefill_s += self._by_figures_s(part.run.kind, part.count, layers, sampled)
                continue
            rows, decode_sampled = rows + part.count, decode_sampled + sampled
            most_layers = max(most_layers, layers)
        if not rows:
            return prefill_s
        return prefill_s + self.predict_s(StepKind.DECODE, rows, most_layers, decode_sampled)

    def speed(self, queue_s: float, kv_free_bytes: int, batch: int = 1) -> ShardSpeed:
        """`batch`: rows that decode together now, so what a token here takes."""
        batch = max(batch, 1)
        has_head = self.figures.head_s > 0.0
        key = _key(StepKind.DECODE, batch, batch if has_head else 0)
        correction = self._corrections.get(key, 1.0)
        layer_s = self._by_figures_s(StepKind.DECODE, batch, 1, 0)
        return ShardSpeed(
            model_id=self._model_id,
            decode_s_per_layer=layer_s * correction,
            decode8_s_per_layer=self.figures.decode8_s,
            prefill_s_per_token_layer=self.figures.prefill_s,
            head_s=self.figures.head_s * batch * correction,
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


def _key(kind: StepKind, rows: int, sampled: int) -> tuple[StepKind, int, bool]:
    return kind, (rows - 1).bit_length(), sampled > 0


def sampled_rows(run: Run, first: int, count: int) -> int:
    """How many of rows [first, first + count) of a run a head samples."""
    start = max(run.sample_from - run.position, first)
    return max(0, min(run.count, first + count) - start)
