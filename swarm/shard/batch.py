"""Rows of many sessions as one forward pass: which block each row is in, and what it may see.

Integers and places only. Two shapes of batch: decode rows lie below each other, [R, 1], a prefill
piece beside each other, [1, T]. Where exactness asks for it both are padded to shapes that do not
depend on the company: decode rows to whole tiles, and the rows of a piece sit where its position
puts them, whatever chunk they came in. Rows that pad belong to no session; they are written to
scratch blocks behind the pool.

Legend: `R` rows, `N` sessions, `B` positions per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

from swarm.errors import ShardError
from swarm.kernels.attention import Places
from swarm.kernels.tiles import TILE_ROWS, Company
from swarm.messages import StepKind
from swarm.worker_messages import KV_BLOCK_TOKENS

PIECE_TOKENS = 64
"""Prompt positions that run together: long enough to amortise, short enough for others' tokens."""
MIX_ROWS = 8
"""Steps with rows of both kinds are filled up to a multiple of it."""
SCRATCH_BLOCKS = -(-max(PIECE_TOKENS, TILE_ROWS) // KV_BLOCK_TOKENS)
"""Behind the pool, for rows that only pad."""


class Table:
    """One session's blocks, and how many positions they hold."""

    def __init__(self, position_limit: int, block_count: int) -> None:
        """`block_count`: of the pool; a number at or above it is no block."""
        self.position_limit = position_limit
        self.length = 0
        self.blocks = numpy.empty(0, dtype=numpy.int32)
        self._block_count = block_count

    @property
    def room(self) -> int:
        """Positions that the blocks can hold."""
        return len(self.blocks) * KV_BLOCK_TOKENS

    def extend(self, blocks: bytes) -> None:
        """Append [count] int32. Raises ShardError for what is no block of the pool."""
        if not blocks:
            return
        if len(blocks) % 4:
            raise ShardError(f"{len(blocks)} bytes are no list of KV blocks")
        added = numpy.frombuffer(blocks, dtype="<i4")
        if int(added.min()) < 0 or int(added.max()) >= self._block_count:
            raise ShardError(f"a KV block outside the pool of {self._block_count}")
        self.blocks = numpy.concatenate((self.blocks, added))

    def check(self, position: int, count: int) -> None:
        """Raises ShardError when rows [position, position + count) cannot come next."""
        if position != self.length:
            raise ShardError(f"rows start at {position}, the KV holds {self.length} positions")
        stop = position + count
        if stop > self.position_limit:
            raise ShardError(f"position {stop} is above the {self.position_limit} reserved")
        if stop > self.room:
            raise ShardError(f"the KV blocks of the session end at {self.room}, not at {stop}")


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [position, position + count) of the session that owns `table`."""

    table: Table
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A forward pass of `rows` rows, of which those from `first` on are real, in a row."""

    kind: StepKind
    rows: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """positions [R, 1] or [1, R] int64; `real`: the rows that belong to sessions"""

    shape: Shape
    places: Places
    positions: torch.Tensor
    real: slice


def decode_shape(count: int, company: Company) -> Shape:
    return Shape(StepKind.DECODE, count + -count % company.padding)


def mixed_shape(count: int) -> Shape:
    """Of decode rows and rows of prompts, where no row's bits depend on its company: few of them,
    since known ones run faster (`kernels/capture.py`)."""
    return Shape(StepKind.DECODE, count + -count % MIX_ROWS)


def piece_shape(span: Span, prompt_count: int, *, fixed: bool) -> Shape:
    """Of rows of one prompt, all in one piece, which ends where the prompt does.

    fixed  the shape, and the place of the rows, are those of the whole piece
    """
    if not fixed:
        return Shape(StepKind.PREFILL, span.count)
    start = span.position // PIECE_TOKENS * PIECE_TOKENS
    stop = min(start + PIECE_TOKENS, max(prompt_count, span.position + span.count))
    return Shape(StepKind.PREFILL, stop - start, span.position - start)


def make_batch(
    spans: Sequence[Span], shape: Shape, scratch_block: int, device: torch.device
) -> Batch:
    """The spans below each other, padded to the shape. `scratch_block`: the first of them."""
    counts = [span.count for span in spans]
    count, last = sum(counts), len(spans)
    real = slice(shape.first, shape.first + count)
    positions = numpy.zeros(shape.rows, dtype=numpy.int64)
    owner = numpy.full(shape.rows, last, dtype=numpy.int32)
    owner[real] = numpy.repeat(numpy.arange(last, dtype=numpy.int32), counts)
    positions[real] = numpy.concatenate(
        [numpy.arange(span.position, span.position + span.count) for span in spans]
    )
    width = 1 + int(positions.max()) // KV_BLOCK_TOKENS
    table = numpy.full((last + 1, width), scratch_block, dtype=numpy.int32)
    for line, span in zip(table, spans, strict=False):
        used = min(width, len(span.table.blocks))
        line[:used] = span.table.blocks[:used]
    slots = table[owner, positions // KV_BLOCK_TOKENS].astype(numpy.int64) * KV_BLOCK_TOKENS
    slots += positions % KV_BLOCK_TOKENS
    pads = numpy.ones(shape.rows, dtype=bool)
    pads[real] = False
    first_slot = scratch_block * KV_BLOCK_TOKENS
    slots[pads] = numpy.arange(first_slot, first_slot + shape.rows - count)
    places = Places(
        _on(table, device),
        _on(owner, device),
        _on((positions + 1).astype(numpy.int32), device),
        _on(slots, device),
    )
    side = (-1, 1) if shape.kind is StepKind.DECODE else (1, -1)
    return Batch(shape, places, _on(positions, device).view(side), real)


def _on(values: numpy.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device)
