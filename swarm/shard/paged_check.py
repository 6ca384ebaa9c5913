"""Proves at load that a shard works on KV blocks, and that rows there are independent of company.

Random input stands in for text. A model that does not pass is served with a plain cache for each
session, which is slower and says so.

Legend: `T` tokens, `E` hidden size, `V` vocabulary.
"""

from __future__ import annotations

import torch

from swarm.errors import ShardError
from swarm.messages import StepKind
from swarm.shard.batch import TILE_ROWS, Shape, Span, Table
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

_COMPANY = 5
"""Rows of others that a row is run among, to see whether they change its bits."""


def plain_reason(stage: Stage, kv_dtype: torch.dtype, *, exact: bool) -> str | None:
    """Set the stage up to work on KV blocks (a few, for the proofs); or say why it cannot, and
    leave it as it was.

    exact  decode rows are to be independent of their company; whether they are stands in the stage
    """
    stage.kv, stage.is_tiled = None, False
    try:
        kinds = stage.probe()
        stage.is_tiled = exact
        sessions = 3
        blocks = sessions * -(-CHECK_TOKENS // KV_BLOCK_TOKENS)
        stage.kv = make_paged_kv(kinds, blocks, kv_dtype, stage.device)
        _check_results(stage)
        stage.holds_rows = exact and rows_hold(stage)
    except PROBE_ERRORS as error:
        stage.kv, stage.is_tiled = None, False
        return str(error)
    return None


def rows_hold(stage: Stage) -> bool:
    """Whether the bits of decode rows depend neither on other rows nor on place and number."""
    rows = random_rows(stage, 1, CHECK_TOKENS)[0]
    table = _table(stage, 0)
    past = CHECK_TOKENS - _COMPANY
    run_rows(stage, rows[:past], [Span(table, 0, past)], Shape(StepKind.PREFILL, past))
    alone = [
        decode_rows(stage, rows[index : index + 1], [Span(table, index, 1)])
        for index in range(past, CHECK_TOKENS)
    ]
    together = decode_rows(stage, rows[past:], [Span(table, past, _COMPANY)])
    swapped = [Span(table, index, 1) for index in reversed(range(past, CHECK_TOKENS))]
    backwards = decode_rows(stage, rows[past:].flip(0), swapped)
    crowd = [Span(_table(stage, 1), index, 1) for index in range(TILE_ROWS - _COMPANY)]
    full = decode_rows(
        stage,
        torch.cat((rows[: len(crowd)], rows[past:])),
        [*crowd, Span(table, past, _COMPANY)],
    )[len(crowd) :]
    one_by_one = torch.cat(alone)
    return all(torch.equal(one_by_one, other) for other in (together, backwards.flip(0), full))


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
    assert stage.kv is not None
    per_session = -(-CHECK_TOKENS // KV_BLOCK_TOKENS)
    count = stage.kv.blocks // per_session
    return table_of(stage, [number + count * index for index in reversed(range(per_session))])
