"""Runs slices of sessions through a stage: over KV blocks many at a time, or one by one.

Legend: `R` rows, `E` hidden size, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from swarm.errors import ShardError
from swarm.kernels.history import NO_PAST
from swarm.kernels.sampling import sample
from swarm.kernels.tiles import Company
from swarm.messages import Begin, StepKind
from swarm.shard.batch import (
    Shape,
    Span,
    Table,
    decode_shape,
    make_batch,
    mixed_shape,
    piece_shape,
)
from swarm.shard.cut import Part
from swarm.shard.kv_cache import SessionCache
from swarm.shard.stage import Stage
from swarm.shard.work import Result, Session, Work, input_rows
from swarm.terms import SampledToken

Outcome = Result | ShardError
"""Of one slice: an error costs its session only."""
_NOT_FINITE = "a row is not a finite number"


class PlainRunner:
    """One session at a time, each with a cache of its own: for models that keep more than keys and
    values, or where no blocks were ordered."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def new_kv(self, begin: Begin, part: Part) -> SessionCache:
        if begin.kv_length:
            raise ShardError("this shard has no KV blocks, so a session cannot start from a prefix")
        return self._stage.new_cache(part, begin.position_limit)

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """Raises one of the errors of a step, or gives one outcome for each slice."""
        return [self._slice(work) for work in works]

    def _slice(self, work: Work) -> Result:
        """Prompt rows go through together, decode rows one position at a time, each through the
        very call that a single decode step makes: so rebuilt rows have the same bits."""
        cache, part = work.session.kv, work.slice
        assert isinstance(cache, SessionCache)
        rows = input_rows(self._stage, [work])[None]
        width = part.count if part.run.kind is StepKind.PREFILL else 1
        outputs: list[torch.Tensor] = []
        for first in range(0, part.count, width):
            sampled = max(0, min(width, first + width - (part.count - work.sampled)))
            wanted = tuple(range(width - sampled, width))
            piece = rows[:, first : first + width]
            outputs.append(self._stage.forward(piece, part.position + first, cache, wanted)[0])
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if not _is_finite(joined):
            raise ShardError(_NOT_FINITE)
        if not work.session.begin.head:
            return Result(joined, ())
        (tokens,) = tokens_of(joined, [work])
        if isinstance(tokens, ShardError):
            raise tokens
        return Result(None, tokens)


class PagedRunner:
    """Rows of many sessions in one forward pass, over the stage's KV blocks."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def new_kv(self, begin: Begin, part: Part) -> Table:
        assert self._stage.kv is not None
        self._stage.check_part(part)
        table = Table(begin.position_limit, self._stage.kv.blocks)
        table.extend(begin.blocks)
        if not 0 <= begin.kv_length <= table.room:
            raise ShardError(f"{begin.kv_length} positions in {table.room} of KV blocks")
        table.length = begin.kv_length
        return table

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """One piece of a prompt, or decode rows, or both where the stage lets rows mix; their
        sessions use one part. Raises one of the errors of a step, and no session has gone on then.
        """
        outcomes: list[Outcome | None] = [_problem(work) for work in works]
        sound = [work for work, found in zip(works, outcomes, strict=True) if found is None]
        results = iter(self._sound(sound) if sound else [])
        return [next(results) if found is None else found for found in outcomes]

    def _sound(self, works: Sequence[Work]) -> list[Outcome]:
        rows = input_rows(self._stage, works)
        outputs = [self._forward(works, rows, *each) for each in self._passes(works)]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        results = self._split(works, output)
        for work, result in zip(works, results, strict=True):
            if isinstance(result, Result):
                _table(work).length += work.slice.count
        return results

    def _passes(self, works: Sequence[Work]) -> Iterator[tuple[list[Span], Shape, int]]:
        """The forward passes that the slices take: spans, shape, and the first of their rows."""
        spans = [Span(_table(work), work.slice.position, work.slice.count) for work in works]
        kinds = {work.slice.run.kind for work in works}
        if kinds == {StepKind.PREFILL} and len(spans) == 1:
            prompt = works[0].session.begin.prompt_count
            fixed = self._stage.company is not Company.NONE and not self._stage.is_row_invariant
            yield spans, piece_shape(spans[0], prompt, fixed=fixed), 0
            return
        if StepKind.PREFILL in kinds:
            assert self._stage.is_row_invariant
            yield spans, mixed_shape(sum(span.count for span in spans)), 0
            return
        company, first = self._stage.company, 0
        rows_max = company.rows_max
        for group in [spans] if rows_max is None else _tiles(spans, rows_max):
            count = sum(span.count for span in group)
            yield group, decode_shape(count, company), first
            first += count

    def _forward(
        self, works: Sequence[Work], rows: torch.Tensor, spans: list[Span], shape: Shape, first: int
    ) -> torch.Tensor:
        """[rows, E] of the real rows, or [sampled rows, V]"""
        stage = self._stage
        assert stage.kv is not None
        part = works[0].session.part
        batch = make_batch(spans, shape, stage.kv.scratch_block, stage.device)
        count = batch.real.stop - batch.real.start
        padded = rows[first : first + count]
        if count < shape.rows:
            padded = rows.new_zeros((shape.rows, *rows.shape[1:]))
            padded[batch.real] = rows[first : first + count]
        picked = [
            shape.first + row - first
            for row in _sampled_indices(works)
            if first <= row < first + count
        ]
        side = (shape.rows, 1) if shape.kind is StepKind.DECODE else (1, shape.rows)
        given = stage.run(batch, part, padded.view(*side, *rows.shape[1:]), picked)
        return given if part.head else given[batch.real]

    def _split(self, works: Sequence[Work], output: torch.Tensor) -> list[Outcome]:
        """By slice. What is not finite is its own session's trouble."""
        head = works[0].session.part.head
        sound = _is_finite(output)
        outcomes: list[Outcome] = []
        counts = [work.sampled if head else work.slice.count for work in works]
        parts = output.split(counts)
        if head and sound:
            return [_result(tokens) for tokens in tokens_of(output, works)]
        for work, rows in zip(works, parts, strict=True):
            if not sound and not _is_finite(rows):
                outcomes.append(ShardError(_NOT_FINITE))
            else:
                outcomes.append(_result(*tokens_of(rows, [work])) if head else Result(rows, ()))
        return outcomes


def _is_finite(rows: torch.Tensor) -> bool:
    """One pass where all is well: a sum shows any value that is not finite. It may also overflow,
    so only its word that all are finite is taken."""
    return bool(torch.isfinite(rows.sum())) or bool(torch.isfinite(rows).all())


def _tiles(spans: Sequence[Span], rows: int) -> Iterator[list[Span]]:
    """The spans in groups of at most `rows` rows; a span may go on in the next group."""
    group: list[Span] = []
    room = rows
    for span in spans:
        position, count = span.position, span.count
        while count:
            taken = min(room, count)
            group.append(Span(span.table, position, taken))
            position, count, room = position + taken, count - taken, room - taken
            if not room:
                yield group
                group, room = [], rows
    if group:
        yield group


def _sampled_indices(works: Sequence[Work]) -> Iterator[int]:
    """Indices, among the rows of all slices, of those that a head samples."""
    stop = 0
    for work in works:
        stop += work.slice.count
        yield from range(stop - work.sampled, stop)


def _table(work: Work) -> Table:
    table = work.session.kv
    assert isinstance(table, Table)
    return table


def _result(tokens: list[SampledToken] | ShardError) -> Outcome:
    return tokens if isinstance(tokens, ShardError) else Result(None, tokens)


def _problem(work: Work) -> ShardError | None:
    try:
        _table(work).check(work.slice.position, work.slice.count)
    except ShardError as error:
        return error
    return None


def tokens_of(logits: torch.Tensor, works: Sequence[Work]) -> list[list[SampledToken] | ShardError]:
    """By slice; what cannot be chosen is its own session's trouble.

    logits  [sampled rows of all slices, V]
    """
    largest = logits.argmax(dim=-1).tolist() if any(w.session.is_greedy for w in works) else []
    chosen: list[list[SampledToken] | ShardError] = []
    stop = 0
    for work in works:
        start, stop = stop, stop + work.sampled
        position = work.slice.position + work.slice.count - work.sampled + 1
        if work.session.is_greedy:
            ids = enumerate(largest[start:stop], position)
            chosen.append([SampledToken(place, token_id) for place, token_id in ids])
            continue
        try:
            chosen.append(_sampled(logits[start:stop].cpu(), work.session, position))
        except ShardError as error:
            chosen.append(error)
    return chosen


def _sampled(rows: torch.Tensor, session: Session, position: int) -> list[SampledToken]:
    """rows [count, V], of which the first gives the token at `position`"""
    sampling, choice = session.begin.sampling, session.choice
    tokens = []
    for place, row in enumerate(rows, position):
        past = NO_PAST if choice is None else choice.past(place)
        token = sample(row, sampling, place, past)
        if choice is not None:
            choice.chosen(token)
        tokens.append(token)
    return tokens
