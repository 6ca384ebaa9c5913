"""Paged attention against plain attention, and every row against itself in other company."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from attention_cases import BLOCK, CPU, Sequences, make_sequences, plain_attention

from swarm.kernels.attention import (
    HeadSizes,
    Places,
    Rule,
    attend,
    block_bytes,
    new_pool,
    paged_attention,
    read_rows,
    reference_attention,
    write_rows,
)
from swarm.kernels.native_io import Native, start_native

KINDS = {"reference": reference_attention, "chosen": paged_attention}
COUNTS = (1, 31, 32, 33, 64, 130, 257)
SHAPES = {
    "grouped": (6, HeadSizes(2, 64, 64)),
    "one_to_one": (3, HeadSizes(3, 40, 40)),
    "one_kv_head": (8, HeadSizes(1, 256, 256)),
    "latent": (4, HeadSizes(1, 96, 64)),
    "odd": (2, HeadSizes(2, 20, 12)),
}
RULES = {
    "plain": Rule(0.125),
    "window": Rule(0.125, window=50),
    "narrow": Rule(0.125, window=3),
    "softcap": Rule(0.3, softcap=5.0),
    "sinks": Rule(0.125, window=40, sinks=torch.linspace(-3, 4, 24)),
}
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.int8: 8e-2}


@pytest.fixture(autouse=True, scope="module")
def kernels() -> None:
    """`paged_attention` is the native kernel wherever one can be built."""
    start_native()


def rule_for(name: str, heads: int) -> Rule:
    rule = RULES[name]
    if rule.sinks is None:
        return rule
    return Rule(rule.scale, rule.window, rule.softcap, rule.sinks[:heads])


def queries(rows: int, heads: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, heads, size, generator=generator).to(dtype)


@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("reference", torch.float32), ("reference", torch.int8)]
    + [("chosen", dtype) for dtype in TOLERANCE],
)
def test_every_row_is_what_plain_attention_gives(
    kind: str, rule_name: str, shape: str, dtype: torch.dtype
) -> None:
    heads, sizes = SHAPES[shape]
    rule = rule_for(rule_name, heads)
    held = make_sequences(COUNTS, sizes, dtype, seed=1)
    rows = [(s, count) for s, length in enumerate(COUNTS) for count in (length // 2 + 1, length)]
    q_type = torch.float32 if dtype is torch.int8 else dtype
    q = queries(len(rows), heads, sizes.key_size, q_type)
    given = KINDS[kind](q, held.pool, held.places(rows), rule)
    assert given.dtype is q_type and given.shape == (len(rows), heads, sizes.value_size)
    for index, (s, count) in enumerate(rows):
        key, value = held.keys[s][:count], held.values[s][:count]
        if dtype is not torch.int8:
            key, value = key.to(dtype), value.to(dtype)
        expected = plain_attention(q[index], key, value, rule)
        assert (given[index] - expected).abs().max() < TOLERANCE[dtype], (s, count)


def alone(kind: str, q: torch.Tensor, held: Sequences, row: tuple[int, int], rule: Rule) -> bytes:
    output = KINDS[kind](q[None], held.pool, held.places([row]), rule)
    return output.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_row_does_not_depend_on_its_company(
    kind: str, rule_name: str, dtype: torch.dtype
) -> None:
    """Any mix of sessions and positions, whole prefills among them, with any number of threads."""
    heads, sizes = SHAPES["grouped"]
    rule = rule_for(rule_name, heads)
    held = make_sequences(COUNTS, sizes, dtype, seed=2)
    places = [(s, count) for s, length in enumerate(COUNTS) for count in range(1, length + 1)]
    q = {row: queries(1, heads, 64, torch.float32)[0] + 0.01 * n for n, row in enumerate(places)}
    rng = random.Random(rule_name)
    prefill = [(6, count) for count in range(100, 171)]
    batches = [prefill] + [rng.sample(places, size) for size in (1, 2, 3, 7, 16, 33)]
    threads = torch.get_num_threads()
    try:
        for number, batch in enumerate(batches):
            torch.set_num_threads(1 + number % 2)
            rows = torch.stack([q[row] for row in batch])
            given = KINDS[kind](rows, held.pool, held.places(batch), rule)
            for index, row in enumerate(batch):
                bits = given[index].view(torch.uint8).numpy().tobytes()
                assert bits == alone(kind, q[row], held, row, rule), (batch, row)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_blocks_may_lie_anywhere(dtype: torch.dtype) -> None:
    heads, sizes = SHAPES["latent"]
    first = make_sequences([100, 40], sizes, dtype, seed=3)
    other = new_pool(9, BLOCK, sizes, dtype, CPU)
    line = torch.tensor([[8, 2, 5, 0]], dtype=torch.int32)
    slots = torch.tensor([int(line[0, i // BLOCK]) * BLOCK + i % BLOCK for i in range(100)])
    write_rows(first.keys[0], first.values[0], other, slots)
    q = queries(100, heads, 96, torch.float32)
    contexts = [(0, count) for count in range(1, 101)]
    here = paged_attention(q, first.pool, first.places(contexts), Rule(0.1))
    context = torch.arange(1, 101, dtype=torch.int32)
    there = Places(line, torch.zeros(100, dtype=torch.int32), context, slots)
    assert torch.equal(here, paged_attention(q, other, there, Rule(0.1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_attend_writes_before_it_looks(dtype: torch.dtype) -> None:
    heads, sizes = SHAPES["grouped"]
    held = make_sequences([50], sizes, dtype, seed=4)
    rows = [(0, count) for count in range(1, 51)]
    places = held.places(rows)
    q = queries(50, heads, 64, torch.float32)
    pool = new_pool(held.pool.keys.shape[0], BLOCK, sizes, dtype, CPU)
    given = attend(q, held.keys[0], held.values[0], pool, places, Rule(0.2))
    assert torch.equal(given, paged_attention(q, held.pool, places, Rule(0.2)))
    keys, values = read_rows(pool, places.table[0], 50)
    tolerance = TOLERANCE[dtype] if dtype is not torch.float32 else 0.0
    assert (keys - held.keys[0]).abs().max() <= tolerance
    assert (values - held.values[0]).abs().max() <= tolerance


def test_a_pool_says_its_size() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        pool = new_pool(3, BLOCK, HeadSizes(2, 64, 48), dtype, CPU)
        assert pool.byte_count == 3 * block_bytes(BLOCK, HeadSizes(2, 64, 48), dtype)


def broken(places: Places, **changed: list[int] | list[list[int]]) -> Places:
    types = {"slots": torch.int64}
    tensors = {
        name: torch.tensor(value, dtype=types.get(name, torch.int32))
        for name, value in changed.items()
    }
    return dataclasses.replace(places, **tensors)


def test_the_kernel_refuses_what_points_outside_the_pool(native: Native) -> None:
    heads, sizes = SHAPES["grouped"]
    held = make_sequences([50], sizes, torch.float32, seed=5)
    q = queries(1, heads, 64, torch.float32)
    good = held.places([(0, 50)])
    blocks = held.pool.keys.shape[0]
    bad = [
        (broken(good, table=[[0, blocks]]), "names no block"),
        (broken(good, table=[[-1, 0]]), "names no block"),
        (broken(good, owner=[1]), "without a sequence"),
        (broken(good, context=[65]), "does not fit its table"),
        (broken(good, context=[0]), "does not fit its table"),
        (broken(good, slots=[blocks * BLOCK]), "a slot outside"),
        (broken(good, slots=[-1]), "a slot outside"),
    ]
    key, value = held.keys[0][:1], held.values[0][:1]
    for places, problem in bad:
        with pytest.raises(RuntimeError, match=problem):
            attend(q, key, value, held.pool, places, Rule(0.1))
    attend(q, key, value, held.pool, broken(good, table=[[-1, 0]]), Rule(0.1, window=18))


def test_blocks_below_the_window_are_not_looked_at(native: Native) -> None:
    """They may be freed and named -1."""
    heads, sizes = SHAPES["grouped"]
    held = make_sequences([200], sizes, torch.float32, seed=6)
    q = queries(1, heads, 64, torch.float32)
    places, rule = held.places([(0, 200)]), Rule(0.1, window=20)
    table = places.table.clone()
    table[0, : 180 // BLOCK] = -1
    freed = dataclasses.replace(places, table=table)
    given = paged_attention(q, held.pool, freed, rule)
    assert torch.equal(given, paged_attention(q, held.pool, places, rule))
