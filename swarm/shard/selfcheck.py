"""Proves at load that a stage computes what it should, and measures how fast.

Random input stands in for text: what is checked is that pieces give what the whole gives.

Legend: `T` tokens, `E` hidden size.
"""

from __future__ import annotations

import statistics
import struct
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from swarm.errors import ShardError
from swarm.kernels.sampling import sample
from swarm.messages import StepKind
from swarm.shard.batch import PIECE_TOKENS, Shape, Span, Table, decode_shape, make_batch
from swarm.shard.speed import Figures
from swarm.shard.stage import Stage
from swarm.terms import Sampling
from swarm.worker_messages import KV_BLOCK_TOKENS

CHECK_TOKENS = 24
TOLERANCE = 0.1
"""Relative distance of the median row. Measured on tiny random models: other kernels for other
lengths cost up to 0.03 in bfloat16, a part of the past that gets lost 0.26 and more. The median,
since a mixture of experts may choose another expert for single rows."""

WARM_TOKENS = 16
PREFILL_TOKENS = 128
DECODE_STEPS = 12
_BUDGET_S = 0.3
"""Time for each figure; large models get one step instead of the median of many."""

Clock = Callable[[], float]


def check_pieces(stage: Stage) -> None:
    """A prompt in two chunks, then single steps, must give what one chunk gives.

    Raises ShardError for models whose code cannot continue a prompt, or cannot be run in part.
    """
    rows = random_rows(stage, 1, CHECK_TOKENS)
    third = CHECK_TOKENS // 3
    pieces = [(0, third), (third, 2 * third)]
    pieces += [(index, index + 1) for index in range(2 * third, CHECK_TOKENS)]
    kind = stage.config.model_type
    try:
        whole = outputs_of(stage, rows, [(0, CHECK_TOKENS)])
        cut = outputs_of(stage, rows, pieces)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ShardError(f"{kind} cannot be run in stages yet: {error}") from error
    distance = (cut - whole).norm(dim=-1) / whole.norm(dim=-1).clamp_min(1e-12)
    for span in (slice(0, third), slice(third, 2 * third), slice(2 * third, None)):
        worst = float(distance[span].median())
        if not worst <= TOLERANCE:
            raise ShardError(
                f"{kind} gives other results for a prompt in pieces (off by {worst:.1%}), "
                "so it cannot be served yet"
            )


def outputs_of(stage: Stage, rows: torch.Tensor, pieces: list[tuple[int, int]]) -> torch.Tensor:
    """[T, E] or [T, V] in float32, computed piece by piece."""
    cache = stage.new_cache(stage.part, CHECK_TOKENS)
    outputs = [
        stage.forward(rows[:, first:stop], first, cache, tuple(range(stop - first)))[0]
        for first, stop in pieces
    ]
    return torch.cat(outputs).float().cpu()


def measure(stage: Stage, clock: Clock) -> Figures:
    """Seconds per layer, token and head row, as medians of a few steps."""
    layers = len(stage.part.layers)
    steps: _Steps = _PlainSteps(stage) if stage.kv is None else _PagedSteps(stage)
    decode = _median_s(clock, steps.decode(1, sample_one=False))
    decode8 = _median_s(clock, steps.decode(8, sample_one=False))
    head = 0.0
    if stage.part.head:
        head = max(_median_s(clock, steps.decode(1, sample_one=True)) - decode, 1e-6)
    count = steps.piece_tokens
    prefill = _median_s(clock, steps.prefill(count)) / count
    return Figures(decode / layers, decode8 / layers, prefill / layers, head)


class _Steps(Protocol):
    """Makes steps to be timed."""

    @property
    def piece_tokens(self) -> int:
        """Of a prefill step."""

    def decode(self, sessions: int, *, sample_one: bool) -> Callable[[], torch.Tensor]:
        """One row of so many sessions; with the logits of one and its token if asked for."""

    def prefill(self, count: int) -> Callable[[], torch.Tensor]: ...


class _PlainSteps:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        longest = getattr(stage.config, "max_position_embeddings", None) or PREFILL_TOKENS
        self.piece_tokens = min(PREFILL_TOKENS, int(longest))

    def decode(self, sessions: int, *, sample_one: bool) -> Callable[[], torch.Tensor]:
        stage = self._stage
        cache = stage.new_cache(stage.part, WARM_TOKENS + 2 * DECODE_STEPS)
        stage.forward(random_rows(stage, sessions, WARM_TOKENS), 0, cache)
        row = random_rows(stage, sessions, 1)

        def step() -> torch.Tensor:
            output = stage.forward(row, cache.length, cache, (0,) if sample_one else ())
            return _sampled(output[0, 0], cache.length) if sample_one else output

        return step

    def prefill(self, count: int) -> Callable[[], torch.Tensor]:
        stage = self._stage
        rows = random_rows(stage, 1, count)
        return lambda: stage.forward(rows, 0, stage.new_cache(stage.part, count))


class _PagedSteps:
    """Over the stage's own blocks, which no session has yet."""

    def __init__(self, stage: Stage) -> None:
        assert stage.kv is not None
        self._stage = stage
        self._blocks = stage.kv.blocks
        self.piece_tokens = min(PIECE_TOKENS, self._blocks * KV_BLOCK_TOKENS)

    def decode(self, sessions: int, *, sample_one: bool) -> Callable[[], torch.Tensor]:
        stage = self._stage
        tables = [table_of(stage, [index % self._blocks]) for index in range(sessions)]
        spans = [Span(table, WARM_TOKENS, 1) for table in tables]
        rows = random_rows(stage, sessions, 1)[:, 0]

        def step() -> torch.Tensor:
            output = decode_rows(stage, rows, spans, [0] if sample_one else [])
            return _sampled(output[0], WARM_TOKENS) if sample_one else output

        return step

    def prefill(self, count: int) -> Callable[[], torch.Tensor]:
        stage = self._stage
        span = Span(table_of(stage, list(range(-(-count // KV_BLOCK_TOKENS)))), 0, count)
        rows, shape = random_rows(stage, 1, count)[0], Shape(StepKind.PREFILL, count)
        return lambda: run_rows(stage, rows, [span], shape, [])


def _sampled(logits: torch.Tensor, position: int) -> torch.Tensor:
    sample(logits, Sampling(temperature=1.0, top_p=0.95), position)
    return logits


def table_of(stage: Stage, blocks: list[int]) -> Table:
    assert stage.kv is not None
    table = Table(len(blocks) * KV_BLOCK_TOKENS, stage.kv.blocks)
    table.extend(struct.pack(f"<{len(blocks)}i", *blocks))
    return table


def decode_rows(
    stage: Stage, rows: torch.Tensor, spans: Sequence[Span], picked: list[int] | None = None
) -> torch.Tensor:
    """As `run_rows`, as decode rows."""
    shape = decode_shape(sum(span.count for span in spans), stage.company)
    return run_rows(stage, rows, spans, shape, picked)


def run_rows(
    stage: Stage,
    rows: torch.Tensor,
    spans: Sequence[Span],
    shape: Shape,
    picked: list[int] | None = None,
) -> torch.Tensor:
    """rows [count] or [count, E]; returns [count, E], or for a head [picked rows, V], all of them
    unless said otherwise"""
    assert stage.kv is not None
    batch = make_batch(spans, shape, stage.kv.scratch_block, stage.device)
    padded = rows.new_zeros((shape.rows, *rows.shape[1:]))
    padded[batch.real] = rows
    side = (shape.rows, 1) if shape.kind is StepKind.DECODE else (1, shape.rows)
    wanted = list(range(shape.rows))[batch.real] if picked is None else picked
    output = stage.run(batch, stage.part, padded.view(*side, *rows.shape[1:]), wanted)
    return output if stage.part.head else output[batch.real]


def _median_s(clock: Clock, step: Callable[[], torch.Tensor]) -> float:
    """The first run only warms up, unless it used the whole budget."""
    times: list[float] = []
    begun = clock()
    while len(times) <= DECODE_STEPS and clock() - begun < _BUDGET_S:
        start = clock()
        step().cpu()
        times.append(clock() - start)
    return statistics.median(times[1:] or times)


def random_rows(stage: Stage, sessions: int, count: int) -> torch.Tensor:
    """[sessions, count] ids or [sessions, count, E] rows, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    if stage.part.embed:
        shape = (sessions, count)
        return torch.randint(stage.vocab_size, shape, generator=generator).to(stage.device)
    rows = torch.randn((sessions, count, stage.hidden_size), generator=generator)
    return rows.to(stage.device, stage.dtype)
