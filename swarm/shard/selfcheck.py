"""Proves at load that a stage computes what it should, and measures how fast.

Random input stands in for text: what is checked is that pieces give what the whole gives.

Legend: `T` tokens, `E` hidden size.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from swarm.errors import ShardError
from swarm.kernels.sampling import sample
from swarm.shard.kv_cache import SessionCache
from swarm.shard.speed import Figures
from swarm.shard.stage import Stage
from swarm.terms import Sampling

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
    rows = _random_rows(stage, 1, CHECK_TOKENS)
    third = CHECK_TOKENS // 3
    pieces = [(0, third), (third, 2 * third)]
    pieces += [(index, index + 1) for index in range(2 * third, CHECK_TOKENS)]
    kind = stage.config.model_type
    try:
        whole = _outputs(stage, rows, [(0, CHECK_TOKENS)])
        cut = _outputs(stage, rows, pieces)
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


def _outputs(stage: Stage, rows: torch.Tensor, pieces: list[tuple[int, int]]) -> torch.Tensor:
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
    decode = _decode_s(stage, clock, sessions=1) / layers
    decode8 = _decode_s(stage, clock, sessions=8) / layers
    head = _head_s(stage, clock) if stage.part.head else 0.0
    return Figures(decode, decode8, _prefill_s(stage, clock) / layers, head)


def _decode_s(stage: Stage, clock: Clock, *, sessions: int) -> float:
    cache = _warm_cache(stage, sessions)
    row = _random_rows(stage, sessions, 1)
    return _median_s(stage, clock, lambda: stage.forward(row, cache.length, cache))


def _head_s(stage: Stage, clock: Clock) -> float:
    """What one sampled row adds to a step."""
    cache = _warm_cache(stage, 1)
    row = _random_rows(stage, 1, 1)

    def step() -> torch.Tensor:
        logits = stage.forward(row, cache.length, cache, (0,))
        sample(logits[0, 0], Sampling(temperature=1.0, top_p=0.95), cache.length)
        return logits

    plain = _decode_s(stage, clock, sessions=1)
    return max(_median_s(stage, clock, step) - plain, 1e-6)


def _prefill_s(stage: Stage, clock: Clock) -> float:
    count = min(PREFILL_TOKENS, int(getattr(stage.config, "max_position_embeddings", 1 << 30)))
    rows = _random_rows(stage, 1, count)
    return (
        _median_s(stage, clock, lambda: stage.forward(rows, 0, stage.new_cache(stage.part, count)))
        / count
    )


def _warm_cache(stage: Stage, sessions: int) -> SessionCache:
    cache = stage.new_cache(stage.part, WARM_TOKENS + 2 * DECODE_STEPS)
    stage.forward(_random_rows(stage, sessions, WARM_TOKENS), 0, cache)
    return cache


def _median_s(stage: Stage, clock: Clock, step: Callable[[], torch.Tensor]) -> float:
    """The first run only warms up, unless it used the whole budget."""
    times: list[float] = []
    begun = clock()
    while len(times) <= DECODE_STEPS and clock() - begun < _BUDGET_S:
        start = clock()
        step().cpu()
        times.append(clock() - start)
    return statistics.median(times[1:] or times)


def _random_rows(stage: Stage, sessions: int, count: int) -> torch.Tensor:
    """[sessions, count] ids or [sessions, count, E] rows, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    if stage.part.embed:
        shape = (sessions, count)
        return torch.randint(stage.vocab_size, shape, generator=generator).to(stage.device)
    rows = torch.randn((sessions, count, stage.hidden_size), generator=generator)
    return rows.to(stage.device, stage.dtype)
