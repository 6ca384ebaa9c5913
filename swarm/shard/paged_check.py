"""Proves at load that a shard works on KV blocks, and that rows there are independent of company.

Random input stands in for text. A model that does not pass is served with a plain cache for each
session, which is slower and says so.

Legend: `T` tokens, `E` hidden size, `V` vocabulary.
"""

from __future__ import annotations

import itertools

import torch

from swarm.errors import ShardError
from swarm.kernels.tiles import TILE_ROWS, Company
from swarm.messages import StepKind
from swarm.shard.batch import Shape, Span, Table
from swarm.shard.paged_kv import PROBE_ERRORS, make_paged_kv
from swarm.shard.selfcheck import (
    CHECK_TOKENS,
    TOLERANCE,
    decode_rows,
    outputs_of,
    random_rows,
    run_rows,
    table_of,
)  # fmt: skip
from swarm.shard.stage import Stage
from swarm.worker_messages import KV_BLOCK_TOKENS

_ROWS = 64
"""Of one session, to look at."""
_SIZES = (*range(1, 18), 24, 31, 32, 33, 48, 64)
"""Of passes to compare: all small ones, and those around which kernels are known to change."""
_TILE_SIZES = (1, TILE_ROWS, 5, TILE_ROWS, 11)
_BLOCKS_EACH = -(-_ROWS // KV_BLOCK_TOKENS)
_SESSIONS = 3


def plain_reason(stage: Stage, kv_dtype: torch.dtype, *, exact: bool) -> str | None:
    """Set the stage up to work on KV blocks (a few, for the proofs); or say why it cannot, and
    leave it as it was.

    Results are compared on blocks of the rows' own dtype: rounding of what is kept, which random
    rows blow up, is not to be taken for a part of the past that got lost.

    exact  decode rows are to be independent of their company: find out how they are
    """
    stage.kv, stage.company, stage.is_row_invariant = None, Company.NONE, False
    try:
        kinds = stage.probe()
        blocks = _SESSIONS * _BLOCKS_EACH
        stage.kv = make_paged_kv(kinds, blocks, stage.dtype, stage.device)
        _check_results(stage)
        stage.kv = make_paged_kv(kinds, blocks, kv_dtype, stage.device)
    except PROBE_ERRORS as error:
        stage.kv = None
        return str(error)
    if exact:
        find_company(stage)
    return None


def find_company(stage: Stage) -> None:
    """The freest passes whose rows are independent. That their number does not matter at all is
    believed only of integer products, and tried; of whole tiles it follows from their one shape,
    but for what kernels do at the border between threads, which is tried as well."""
    for company in (Company.ANY, Company.TILE):
        if company is Company.ANY and stage.has_float_products:
            continue
        stage.company = company
        if _rows_hold(stage):
            stage.is_row_invariant = company is Company.ANY and _pieces_hold(stage)
            return
    stage.company = Company.NONE


def _rows_hold(stage: Stage) -> bool:
    """Whether rows have the same bits in passes of all sizes, at any place in them."""
    sizes = _SIZES if stage.company is Company.ANY else _TILE_SIZES
    rows, table = random_rows(stage, 1, _ROWS)[0], _table(stage, 0)
    known: torch.Tensor | None = None
    for turn, size in enumerate(sizes):
        order = [(index + turn * 5) % size for index in range(size)]
        spans = [Span(table, index, 1) for index in order]
        given = decode_rows(stage, rows[order], spans)
        output = torch.empty_like(given)
        output[order] = given
        if known is not None and not torch.equal(output[: len(known)], known[:size]):
            return False
        if known is None or size > len(known):
            known = output
    return True


def _pieces_hold(stage: Stage) -> bool:
    """Whether prompt rows in pieces of other sizes have the bits of decode rows."""
    rows = random_rows(stage, 1, _ROWS)[0]
    results = []
    for number, cuts in enumerate(([0, 64], [0, 1, 16, 17, 40, 64], [])):
        table = _table(stage, number)
        if not cuts:
            results.append(decode_rows(stage, rows, [Span(table, 0, _ROWS)]))
            continue
        pieces = [
            run_rows(stage, rows[a:b], [Span(table, a, b - a)], Shape(StepKind.PREFILL, b - a))
            for a, b in itertools.pairwise(cuts)
        ]
        results.append(torch.cat(pieces))
    return all(torch.equal(results[0], other) for other in results[1:])


def _check_results(stage: Stage) -> None:
    """A prompt in pieces, single rows, and many rows of one session, against the plain cache.

    Raises ShardError when they are not what the plain cache gives.
    """
    rows = random_rows(stage, 1, CHECK_TOKENS)
    whole = outputs_of(stage, rows, [(0, CHECK_TOKENS)])
    third = CHECK_TOKENS // 3
    singles = [(index, index + 1) for index in range(2 * third, CHECK_TOKENS)]
    for number, decoded in enumerate((singles, [(2 * third, CHECK_TOKENS)])):
        table = _table(stage, number)
        outputs = [
            run_rows(stage, rows[0, a:b], [Span(table, a, b - a)], Shape(StepKind.PREFILL, b - a))
            for a, b in ((0, third), (third, 2 * third))
        ]
        outputs += [decode_rows(stage, rows[0, a:b], [Span(table, a, b - a)]) for a, b in decoded]
        paged = torch.cat(outputs).float().cpu()
        distance = (paged - whole).norm(dim=-1) / whole.norm(dim=-1).clamp_min(1e-12)
        for span in (slice(0, third), slice(third, 2 * third), slice(2 * third, None)):
            worst = float(distance[span].median())
            if not worst <= TOLERANCE:
                raise ShardError(f"its results over KV blocks are other ones (off by {worst:.1%})")


def _table(stage: Stage, number: int) -> Table:
    """Of the number-th session; the sessions' blocks are mixed."""
    blocks = [number + _SESSIONS * index for index in reversed(range(_BLOCKS_EACH))]
    return table_of(stage, blocks)
