"""KV blocks against a simple model that knows what was written into each block, and by whom."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import KvExhausted, LocalProtocolError
from swarm.messages import KV_BLOCK_TOKENS
from swarm.shard.kv_blocks import KvBlocks, KvPools, PoolShape
from swarm.terms import ModelId, PoolKind, SessionId

A, B, C = SessionId("a"), SessionId("b"), SessionId("c")
T = KV_BLOCK_TOKENS
ONE, TWO, THREE, FOUR = (bytes([i]) * 16 for i in (1, 2, 3, 4))


def filled(pool: KvBlocks, session: SessionId, length: int) -> None:
    """Rows below `length` are given to the worker and come back."""
    pool.grow(session, length)
    pool.filled(session, length)


def test_blocks_are_given_as_rows_come_low_numbers_first() -> None:
    pool = KvBlocks(10)
    pool.reserve(A, 3 * T)
    assert pool.table(A) == ()
    assert pool.grow(A, 1) == (0,)
    assert pool.grow(A, T) == ()
    pool.reserve(B, T)
    assert pool.grow(B, T) == (1,)
    assert pool.grow(A, 2 * T + 1) == (2, 3)
    assert pool.table(A) == (0, 2, 3)
    pool.release(A)
    pool.release(A)
    assert (pool.used, pool.spoken_for, pool.room) == (1, 1, 9)
    assert pool.grow(B, T + 1) == (0,)


def test_what_was_promised_is_not_given_to_others() -> None:
    pool = KvBlocks(4)
    pool.reserve(A, 3 * T)
    with pytest.raises(KvExhausted):
        pool.reserve(B, 2 * T)
    assert pool.session_count == 1
    pool.reserve(B, T)
    filled(pool, B, T)
    with pytest.raises(KvExhausted):
        pool.grow(B, T + 1)
    assert pool.table(B) == (0,)
    filled(pool, A, 3 * T)
    with pytest.raises(KvExhausted):
        pool.grow(A, 3 * T + 1)
    pool.release(B)
    assert pool.grow(A, 4 * T) == (0,)


def test_reserving_again_begins_anew() -> None:
    pool = KvBlocks(4)
    pool.reserve(A, 4 * T)
    filled(pool, A, 2 * T)
    pool.reserve(A, T)
    assert (pool.table(A), pool.spoken_for) == ((), 1)
    with pytest.raises(KvExhausted):
        pool.reserve(A, 5 * T)
    assert pool.spoken_for == 1
    pool.reserve(A, 4 * T)
    assert pool.spoken_for == 4


def test_a_prefix_is_shared_and_found_again() -> None:
    pool = KvBlocks(8)
    pool.reserve(A, 3 * T)
    filled(pool, A, 2 * T + 5)
    pool.seal(A, "x", [ONE, TWO, THREE])
    assert pool.match("x", [ONE, TWO, THREE]) == 2  # the third block is not full
    assert pool.match("x", [TWO, ONE]) == 0
    assert pool.match("y", [ONE]) == 0
    pool.reserve(B, 3 * T, "x", [ONE, TWO])
    assert pool.table(B) == (0, 1)
    pool.release(A)
    assert (pool.used, pool.match("x", [ONE, TWO])) == (2, 2)
    pool.keep(B, T)
    assert pool.grow(B, T + 1) == (2,)
    pool.release(B)
    assert (pool.used, pool.room, pool.match("x", [ONE, TWO])) == (0, 8, 2)


def test_what_a_failed_session_computed_is_found_by_nobody() -> None:
    pool = KvBlocks(8)
    pool.reserve(A, 3 * T)
    filled(pool, A, 3 * T)
    pool.seal(A, "x", [ONE, TWO])
    pool.reserve(B, 3 * T, "x", [ONE])
    pool.spoil(A)
    assert pool.match("x", [ONE, TWO]) == 0
    pool.release(A)
    assert pool.table(B) == (0,), "who shares goes on"
    pool.release(B)
    assert (pool.used, pool.room, pool.match("x", [ONE])) == (0, 8, 0)


def test_of_two_that_compute_the_same_one_is_found() -> None:
    pool = KvBlocks(4)
    for session in (A, B):
        pool.reserve(session, T)
        filled(pool, session, T)
    for session in (A, B):
        pool.seal(session, "x", [ONE])
    pool.release(A)
    pool.release(B)
    pool.reserve(C, 4 * T)
    assert pool.grow(C, 3 * T) == (1, 2, 3)  # of B's block nobody knows
    assert pool.match("x", [ONE]) == 1
    assert pool.grow(C, 4 * T) == (0,)
    assert pool.match("x", [ONE]) == 0


def test_cached_blocks_are_given_away_last_and_ends_first() -> None:
    pool = KvBlocks(4)
    for session, hashes in ((A, [ONE, TWO]), (B, [THREE])):
        pool.reserve(session, 2 * T)
        filled(pool, session, len(hashes) * T)
        pool.seal(session, "x", hashes)
        pool.release(session)
    pool.reserve(C, 4 * T)
    assert pool.grow(C, T) == (3,)
    assert pool.grow(C, 2 * T) == (1,)
    assert (pool.match("x", [ONE, TWO]), pool.match("x", [THREE])) == (1, 1)
    assert pool.grow(C, 3 * T) == (0,)
    assert (pool.match("x", [ONE, TWO]), pool.match("x", [THREE])) == (0, 1)


def test_a_promise_that_rested_on_shared_blocks_is_taken_back() -> None:
    pool = KvBlocks(4)
    pool.reserve(A, 2 * T)
    filled(pool, A, 2 * T)
    pool.seal(A, "x", [ONE, TWO])
    pool.reserve(B, 3 * T, "x", [ONE, TWO])
    pool.reserve(C, T)
    with pytest.raises(KvExhausted):
        pool.keep(B, 0)
    pool.release(B)
    assert pool.room == 1


@pytest.mark.parametrize(("kept", "length"), [(T, T - 1), (T - 1, 2 * T), (2 * T, T)])
def test_only_whole_acknowledged_blocks_are_a_prefix(kept: int, length: int) -> None:
    pool = KvBlocks(4)
    pool.reserve(A, 4 * T)
    filled(pool, A, length)
    with pytest.raises(LocalProtocolError):
        pool.keep(A, kept)


def test_a_pool_that_shrinks_takes_nothing_away() -> None:
    pool = KvBlocks(4)
    pool.reserve(A, 3 * T)
    filled(pool, A, 3 * T)
    pool.seal(A, "x", [ONE, TWO, THREE])
    pool.resize(2)
    assert pool.table(A) == (0, 1, 2)
    with pytest.raises(KvExhausted):
        pool.reserve(B, T)
    pool.release(A)
    assert (pool.room, pool.match("x", [ONE, TWO, THREE])) == (2, 2)
    pool.resize(0)
    assert (pool.room, pool.match("x", [ONE])) == (0, 0)
    pool.resize(3)
    pool.reserve(B, 3 * T)
    assert pool.grow(B, 3 * T) == (0, 1, 2)


def test_impossible_sizes() -> None:
    with pytest.raises(ValueError):
        KvBlocks(-1)
    pool = KvBlocks(1)
    pool.reserve(A, T)
    with pytest.raises(LocalProtocolError):
        pool.filled(A, 1)


def test_pools_of_several_models() -> None:
    pools = KvPools()
    one, two = ModelId("one"), ModelId("two")
    shape = PoolShape(one, 1, 4, 100, PoolKind())
    pools.serve([shape, PoolShape(two, 1, 2, 7, PoolKind())])
    first, second = pools.pool(one), pools.pool(two)
    assert first is not None and second is not None and pools.pool(ModelId("x")) is None
    first.reserve(A, 2 * T)
    second.reserve(A, T)
    assert (pools.used_bytes, pools.capacity_bytes) == (207, 414)
    assert (pools.room_bytes(one), pools.room_bytes(two), pools.rooms) == (200, 7, (2, 1))
    assert pools.room_bytes(ModelId("x")) == 0
    pools.serve([shape])
    assert pools.pool(one) is first and pools.pool(two) is None
    pools.serve([PoolShape(one, 2, 4, 100, PoolKind())])
    assert pools.pool(one) is not first  # the worker's blocks are gone with the last loading


class Plain:
    """What was really written: per block the path of ids up to its end, and who may write it."""

    def __init__(self, capacity: int) -> None:
        self.pool = KvBlocks(capacity)
        self.capacity = capacity
        self.written: dict[int, tuple[int, ...]] = {}
        self.texts: dict[SessionId, list[int]] = {}
        self.run: dict[SessionId, int] = {}
        self.acknowledged: dict[SessionId, int] = {}
        self.promised: dict[SessionId, int] = {}

    def hashes(self, ids: list[int]) -> list[bytes]:
        """Here the hash of a path is the path."""
        return [bytes(ids[: (i + 1) * T]) for i in range(len(ids) // T)]

    def open(self, session: SessionId, ids: list[int], positions: int) -> None:
        found = self.pool.match("x", self.hashes(ids))
        shared = self.hashes(ids)[:found]
        try:
            self.pool.reserve(session, positions, "x", shared)
        except KvExhausted:
            return
        assert len(shared) * T <= len(ids)
        for block, name in zip(self.pool.table(session), shared, strict=True):
            assert self.written[block] == tuple(name), "a block serves a prefix it does not hold"
        self.texts[session] = ids
        self.run[session] = self.acknowledged[session] = found * T
        self.promised[session] = -(-positions // T)

    def grow(self, session: SessionId, length: int) -> None:
        length = min(max(length, self.run[session] + 1), len(self.texts[session]))
        needed = -(-length // T)
        try:
            self.pool.grow(session, length)
        except KvExhausted:
            assert needed > self.promised[session], "a promise was not kept"
            return
        table = self.pool.table(session)
        assert len(table) == max(needed, -(-self.run[session] // T))
        for position in range(self.run[session], length):
            block = table[position // T]
            assert sum(block in self.pool.table(s) for s in self.texts) == 1, "written while shared"
            self.written[block] = ()
        self.run[session] = max(self.run[session], length)

    def filled(self, session: SessionId, length: int) -> None:
        """Only now it is sure that the worker has written the rows."""
        self.pool.filled(session, length)
        for position in range(self.acknowledged[session], length):
            block = self.pool.table(session)[position // T]
            self.written[block] = tuple(self.texts[session][: position + 1])
        self.acknowledged[session] = length
        self.pool.seal(session, "x", self.hashes(self.texts[session]))

    def close(self, session: SessionId) -> None:
        self.pool.release(session)
        for known in (self.texts, self.run, self.acknowledged, self.promised):
            known.pop(session, None)

    def check(self) -> None:
        uses = Counter(b for s in self.texts for b in self.pool.table(s))
        assert set(uses) <= set(range(self.capacity))
        assert self.pool.used == len(uses) <= self.capacity
        owed = sum(max(0, self.promised[s] - len(self.pool.table(s))) for s in self.texts)
        assert self.pool.spoken_for == len(uses) + owed
        assert self.pool.room == self.capacity - len(uses) - owed >= 0


@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_random_lives_of_a_pool(seed: int, capacity: int) -> None:
    """No block is in two tables unless shared, promises are kept, nothing leaks, and only what was
    acknowledged is ever found again."""
    rng = Random(seed)
    plain = Plain(capacity)
    names = [SessionId(name) for name in "abcd"]
    trunk = [rng.randrange(3) for _ in range(4 * T)]
    for _ in range(60):
        session = rng.choice(names)
        if session not in plain.texts:
            cut = rng.randrange(0, 4) * T + rng.randrange(T)
            ids = trunk[:cut] + [rng.randrange(3) for _ in range(rng.randrange(1, 3 * T))]
            plain.open(session, ids, rng.randrange(1, len(ids) + T))
        elif (draw := rng.random()) < 0.5:
            plain.grow(session, plain.run[session] + rng.randrange(1, 2 * T))
        elif draw < 0.8:
            plain.filled(session, rng.randint(plain.acknowledged[session], plain.run[session]))
        elif draw < 0.9:
            kept = rng.randint(0, plain.acknowledged[session] // T) * T
            try:
                plain.pool.keep(session, kept)
            except KvExhausted:
                plain.close(session)
            else:
                plain.run[session] = plain.acknowledged[session] = kept
        else:
            plain.close(session)
        plain.check()
    for session in names:
        plain.close(session)
    assert (plain.pool.used, plain.pool.room) == (0, capacity)
