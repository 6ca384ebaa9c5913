"""Random pools, batches and rules for the tests of paged attention."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from swarm.kernels.attention import HeadSizes, KvPool, Places, Rule, new_pool, write_rows

BLOCK = 32
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sequences:
    """Some sequences whose KV lies scattered in one pool.

    keys, values: per sequence [count, G, D] and [count, G, W] float32, as written
    """

    pool: KvPool
    tables: tuple[tuple[int, ...], ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def places(self, rows: Sequence[tuple[int, int]]) -> Places:
        """rows: (sequence, context) each."""
        width = max(len(table) for table in self.tables)
        padded = [[*table, *[-1] * (width - len(table))] for table in self.tables]
        slots = [
            self.tables[s][(count - 1) // BLOCK] * BLOCK + (count - 1) % BLOCK for s, count in rows
        ]
        return Places(
            torch.tensor(padded, dtype=torch.int32),
            torch.tensor([s for s, _ in rows], dtype=torch.int32),
            torch.tensor([count for _, count in rows], dtype=torch.int32),
            torch.tensor(slots, dtype=torch.int64),
        )


def make_sequences(
    counts: Sequence[int], heads: HeadSizes, dtype: torch.dtype, seed: int, spare: int = 7
) -> Sequences:
    """Sequences of these lengths; what no sequence owns in the pool is not a number."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-count // BLOCK) for count in counts]
    blocks = sum(needed) + spare
    pool = new_pool(blocks, BLOCK, heads, dtype, CPU)
    if pool.scales is not None:
        pool.scales.fill_(torch.nan)
    else:
        pool.keys.fill_(torch.nan)
        pool.values.fill_(torch.nan)
    free = list(range(blocks))
    rng.shuffle(free)
    tables, keys, values = [], [], []
    for count, wanted in zip(counts, needed, strict=True):
        table = tuple(free.pop() for _ in range(wanted))
        key = torch.randn(count, heads.kv_heads, heads.key_size, generator=generator)
        value = torch.randn(count, heads.kv_heads, heads.value_size, generator=generator)
        slots = [table[i // BLOCK] * BLOCK + i % BLOCK for i in range(count)]
        write_rows(key, value, pool, torch.tensor(slots))
        tables.append(table)
        keys.append(key)
        values.append(value)
    return Sequences(pool, tuple(tables), tuple(keys), tuple(values))


def plain_attention(
    q: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """One row over contiguous KV in float64: q [H, D], key [C, G, D], value [C, G, W] -> [H, W]."""
    count, kv_heads, _ = key.shape
    group = q.shape[0] // kv_heads
    first = max(0, count - rule.window) if rule.window else 0
    keys = key[first:].double().repeat_interleave(group, 1)
    values = value[first:].double().repeat_interleave(group, 1)
    scores = torch.einsum("hd,chd->hc", q.double(), keys) * rule.scale
    if rule.softcap:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if rule.sinks is not None:
        scores = torch.cat((scores, rule.sinks.double()[:, None]), 1)
    weights = scores.softmax(1)[:, : count - first]
    return torch.einsum("hc,chw->hw", weights, values)
