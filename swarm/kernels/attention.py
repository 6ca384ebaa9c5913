"""Paged attention: writes new positions into a pool of KV blocks and attends rows to it.

One signature for decode (rows of many sessions) and prefill (many rows of one). What a row gives
depends on its query, its own context and the rule alone: not on the other rows, its place among
them, their number, or which blocks of the pool hold its context. So a row that is computed again
anywhere, in any company, has the bits that it had the first time.

Legend: `R` rows, `N` sequences, `H` query heads, `G` KV heads (H is a multiple), `D` key size,
`W` value size, `P` blocks of the pool, `B` positions per block, `C` positions looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swarm.kernels.native_io import native_available

POOL_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
LANES = 16
"""Positions that the native kernel scores side by side: a block holds a multiple of it."""
_REFERENCE_ELEMENTS = 1 << 23
"""Products the reference holds at a time: 32 MiB."""
_INT8_MAX = 127.0


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How the heads of one layer look back.

    window   positions seen, the row's own included; 0: all
    softcap  scores become softcap * tanh(score / softcap); 0: as they are
    sinks    [H] or None: a score per head that takes its share and gives nothing
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the rows of one batch are, and what they may see.

    table    [N, blocks] int32: the pool's blocks of each sequence, in order; what pads is not read
    owner    [R] int32: the line of `table` that is the row's
    context  [R] int32: positions the row may see, itself the last of them
    slots    [R] int64: block * B + offset, where the row's own key and value are written
    """

    table: torch.Tensor
    owner: torch.Tensor
    context: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class KvPool:
    """The KV blocks of one layer.

    keys    [P, B, G, D]  in memory [P, G, D, B]: the positions of a block lie side by side
    values  [P, B, G, W]  in memory [P, G, B, W]
    scales  [2, P, B, G] float32 of keys and values where they are int8, else None; in memory
            [2, P, G, B]
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None = None

    @property
    def block_tokens(self) -> int:
        return int(self.keys.shape[1])

    @property
    def byte_count(self) -> int:
        held = [self.keys, self.values] + ([] if self.scales is None else [self.scales])
        return sum(int(tensor.numel() * tensor.itemsize) for tensor in held)


@dataclass(frozen=True, slots=True)
class HeadSizes:
    kv_heads: int
    key_size: int
    value_size: int


def block_bytes(block_tokens: int, heads: HeadSizes, dtype: torch.dtype) -> int:
    """Bytes of one block of one layer."""
    scale_bytes = 8 if dtype is torch.int8 else 0
    per_head = (heads.key_size + heads.value_size) * dtype.itemsize + scale_bytes
    return int(block_tokens * heads.kv_heads * per_head)


def new_pool(
    blocks: int, block_tokens: int, heads: HeadSizes, dtype: torch.dtype, device: torch.device
) -> KvPool:
    """A pool of whatever was in the memory, which a CPU gives out as it is first written.

    `dtype` need not be that of the queries.
    """
    assert dtype in POOL_TYPES and block_tokens % LANES == 0
    count = (blocks, heads.kv_heads)
    keys = torch.empty((*count, heads.key_size, block_tokens), dtype=dtype, device=device)
    values = torch.empty((*count, block_tokens, heads.value_size), dtype=dtype, device=device)
    scales = None
    if dtype is torch.int8:
        scales = torch.empty((2, *count, block_tokens), device=device).permute(0, 1, 3, 2)
    return KvPool(keys.permute(0, 3, 1, 2), values.permute(0, 2, 1, 3), scales)


def write_rows(key: torch.Tensor, value: torch.Tensor, pool: KvPool, slots: torch.Tensor) -> None:
    """Put rows into the pool.

    key [R, G, D], value [R, G, W] of any strides; slots [R] int64, each once
    """
    if _is_native(pool):
        torch.ops.swarm.write_rows(key, value, pool.keys, pool.values, pool.scales, slots)
    else:
        reference_write_rows(key, value, pool, slots)


def reference_write_rows(
    key: torch.Tensor, value: torch.Tensor, pool: KvPool, slots: torch.Tensor
) -> None:
    """As `write_rows`, in plain torch."""
    block, offset = slots // pool.block_tokens, slots % pool.block_tokens
    if pool.scales is None:
        pool.keys[block, offset] = key.to(pool.keys.dtype)
        pool.values[block, offset] = value.to(pool.values.dtype)
        return
    for rows, target, scales in (
        (key, pool.keys, pool.scales[0]),
        (value, pool.values, pool.scales[1]),
    ):
        floats = rows.float()
        scale = floats.abs().amax(-1) / _INT8_MAX
        divisor = torch.where(scale == 0.0, 1.0, scale)[..., None]
        target[block, offset] = (floats / divisor).round().to(torch.int8)
        scales[block, offset] = scale


def paged_attention(q: torch.Tensor, pool: KvPool, places: Places, rule: Rule) -> torch.Tensor:
    """Attend each row to its own context, which is in the pool.

    q [R, H, D] float32, bfloat16 or float16, of any strides
    returns [R, H, W] in q's dtype; sums are float32
    """
    if not _is_native(pool):
        return reference_attention(q, pool, places, rule)
    return torch.ops.swarm.paged_attention(
        q,
        pool.keys,
        pool.values,
        pool.scales,
        places.table,
        places.owner,
        places.context,
        rule.scale,
        rule.window,
        rule.softcap,
        rule.sinks,
    )


def attend(
    q: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pool: KvPool,
    places: Places,
    rule: Rule,
) -> torch.Tensor:
    """`write_rows` of all rows, then `paged_attention`: what a layer does.

    q [R, H, D], key [R, G, D], value [R, G, W]; returns [R, H, W]
    """
    if not _is_native(pool):
        reference_write_rows(key, value, pool, places.slots)
        return reference_attention(q, pool, places, rule)
    return torch.ops.swarm.attend(
        q,
        key,
        value,
        pool.keys,
        pool.values,
        pool.scales,
        places.table,
        places.owner,
        places.context,
        places.slots,
        rule.scale,
        rule.window,
        rule.softcap,
        rule.sinks,
    )


def _is_native(pool: KvPool) -> bool:
    """One answer per process and device, from the worker's start on."""
    return pool.keys.device.type == "cpu" and native_available()


def read_rows(pool: KvPool, line: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` positions of a sequence, as floats: [count, G, D] and [count, G, W].

    line  [blocks] int32, a line of a table
    """
    keys, values = _gathered(pool, line[None, : -(-count // pool.block_tokens)])
    return keys[0].flatten(0, 1)[:count], values[0].flatten(0, 1)[:count]


def reference_attention(q: torch.Tensor, pool: KvPool, places: Places, rule: Rule) -> torch.Tensor:
    """Plain torch. Only elementwise operations and sums over fixed sizes in a fixed order."""
    rows, heads, _ = q.shape
    size = max(pool.keys.shape[3], pool.values.shape[3])
    output = q.new_empty((rows, heads, pool.values.shape[3]))
    start = 0
    while start < rows:
        longest = int(places.context[start:].max())
        per_row = heads * (longest + pool.block_tokens) * size
        stop = start + max(1, _REFERENCE_ELEMENTS // per_row)
        part = slice(start, stop)
        output[part] = _attend_some(q[part], pool, _rows_of(places, part), rule)
        start = stop
    return output


def _rows_of(places: Places, part: slice) -> Places:
    return Places(places.table, places.owner[part], places.context[part], places.slots[part])


def _attend_some(q: torch.Tensor, pool: KvPool, places: Places, rule: Rule) -> torch.Tensor:
    """As `reference_attention`, all rows at once."""
    rows, heads, _ = q.shape
    kv_heads, size = pool.keys.shape[2], pool.block_tokens
    context = places.context.long()
    tiles = -(-int(context.max()) // size)
    lines = places.table[places.owner.long(), :tiles]
    keys, values = _gathered(pool, lines.clamp(min=0))
    seen = _seen(context, tiles * size, rule.window).view(rows, 1, 1, tiles, size)
    grouped = q.float().view(rows, kv_heads, heads // kv_heads, -1)
    # [R, G, H/G, tiles, B]
    products = grouped[:, :, :, None, None] * keys.permute(0, 3, 1, 2, 4)[:, :, None]
    scores = _tree_sum(products) * rule.scale
    if rule.softcap:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = torch.where(seen, scores, -torch.inf)
    top = scores.amax((3, 4), keepdim=True)
    sinks = None if rule.sinks is None else rule.sinks.float().view(1, kv_heads, -1, 1, 1)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    weights = torch.exp((scores - top).contiguous())
    weighted = weights[..., None, :] * values.permute(0, 3, 1, 4, 2)[:, :, None]
    sums = _in_order(_tree_sum(torch.where(seen[..., None, :], weighted, 0.0)), 3)
    total = _in_order(_tree_sum(weights), 3)
    if sinks is not None:
        total = total + torch.exp((sinks - top)[..., 0, 0].contiguous())
    return (sums / total[..., None]).view(rows, heads, -1).to(q.dtype)


def _gathered(pool: KvPool, lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R, tiles] blocks -> keys [R, tiles, B, G, D] and values [R, tiles, B, G, W], float32."""
    index = lines.long()
    keys, values = pool.keys[index].float(), pool.values[index].float()
    if pool.scales is not None:
        keys *= pool.scales[0, index][..., None]
        values *= pool.scales[1, index][..., None]
    return keys, values


def _seen(context: torch.Tensor, count: int, window: int) -> torch.Tensor:
    """[R] int64 -> [R, count] bool"""
    positions = torch.arange(count, device=context.device)[None]
    seen = positions < context[:, None]
    if window:
        seen &= positions >= context[:, None] - window
    return seen


def _tree_sum(terms: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension by halves: elementwise, so nothing but its size matters."""
    while (size := terms.shape[-1]) > 1:
        half = size // 2
        folded = terms[..., :half] + terms[..., half : 2 * half]
        terms = folded if size % 2 == 0 else torch.cat((folded, terms[..., -1:]), -1)
    return terms[..., 0]


def _in_order(terms: torch.Tensor, dim: int) -> torch.Tensor:
    """Sum over `dim` from first to last: zeros at the end or the start change no bit."""
    total = torch.zeros_like(terms.select(dim, 0))
    for index in range(terms.shape[dim]):
        total = total + terms.select(dim, index)
    return total
