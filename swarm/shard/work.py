"""What an engine keeps of a session, and what it gives a runner to do: slices of runs.

Legend: `R` rows, `E` hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from swarm.messages import Begin, RowType, Run
from swarm.shard.batch import Table
from swarm.shard.choice import Choice
from swarm.shard.cut import Part
from swarm.shard.kv_cache import SessionCache
from swarm.shard.scheduler import Slice
from swarm.shard.speed import sampled_rows
from swarm.shard.stage import ELEMENT_TYPES, Stage
from swarm.terms import SampledToken


@dataclass(slots=True)
class Output:
    """What the slices of the run in progress have given so far."""

    rows: list[torch.Tensor] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    compute_s: float = 0.0


@dataclass(slots=True)
class Session:
    begin: Begin
    part: Part
    kv: SessionCache | Table | None
    """None once a step failed: the session waits for its end or a new beginning."""
    reserved_bytes: int = 0
    output: Output = field(default_factory=Output)
    choice: Choice | None = None
    """Of a head whose tokens depend on more than their logits."""
    parked: list[Run] = field(default_factory=list)
    """Wait for the guide: the first of them samples, the others come after it."""

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is all there is to know."""
        sampling = self.begin.sampling
        return sampling.temperature == 0.0 and sampling.logprobs is None and sampling.is_plain


@dataclass(frozen=True, slots=True)
class Work:
    """A slice of a session's run."""

    session: Session
    slice: Slice

    @property
    def sampled(self) -> int:
        """How many of its rows a head samples: always the last ones."""
        if not self.session.begin.head:
            return 0
        return sampled_rows(self.slice.run, self.slice.first, self.slice.count)


@dataclass(frozen=True, slots=True)
class Result:
    """What a slice gave: rows [count, E] of a stage without head, tokens of one with."""

    rows: torch.Tensor | None
    tokens: Sequence[SampledToken]


def input_rows(stage: Stage, works: Sequence[Work]) -> torch.Tensor:
    """[R] int64 ids or [R, E] rows of all slices below each other, on the device."""
    types = {work.slice.run.row_type for work in works}
    if len(types) > 1:
        return torch.cat([input_rows(stage, [work]) for work in works])
    (row_type,) = types
    is_ids = row_type is RowType.IDS
    element = 4 if is_ids else ELEMENT_TYPES[row_type].itemsize * stage.hidden_size
    data = bytearray().join(
        memoryview(work.slice.run.payload)[
            work.slice.first * element : (work.slice.first + work.slice.count) * element
        ]
        for work in works
    )
    if is_ids:
        return torch.frombuffer(data, dtype=torch.int32).to(stage.device, torch.int64)
    rows = torch.frombuffer(data, dtype=ELEMENT_TYPES[row_type])
    return rows.view(-1, stage.hidden_size).to(stage.device, stage.dtype)
