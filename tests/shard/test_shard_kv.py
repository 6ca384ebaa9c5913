"""The KV ledger against a plain sum, and the cache's own counting."""

from __future__ import annotations

import pytest
from engine_chain import GREEDY
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import KvExhausted
from swarm.shard.kv_blocks import KvLedger
from swarm.terms import SessionId

A, B = SessionId("a"), SessionId("b")


def test_reserve_and_release() -> None:
    ledger = KvLedger(100)
    ledger.reserve(A, 60)
    ledger.reserve(B, 40)
    assert (ledger.used_bytes, ledger.free_bytes, ledger.session_count) == (100, 0, 2)
    assert ledger.release(A) == 60
    assert ledger.release(A) == 0
    assert (ledger.used_bytes, ledger.held(B)) == (40, 40)


def test_what_does_not_fit_changes_nothing() -> None:
    ledger = KvLedger(100)
    ledger.reserve(A, 60)
    with pytest.raises(KvExhausted, match="needs 41 bytes of KV, 40 are free"):
        ledger.reserve(B, 41)
    assert (ledger.used_bytes, ledger.session_count) == (60, 1)


def test_a_second_reservation_replaces_the_first() -> None:
    ledger = KvLedger(100)
    ledger.reserve(A, 60)
    ledger.reserve(A, 100)
    assert ledger.used_bytes == 100
    with pytest.raises(KvExhausted):
        ledger.reserve(A, 101)
    ledger.reserve(A, 10)
    assert ledger.free_bytes == 90


def test_a_smaller_capacity_keeps_what_is_reserved() -> None:
    ledger = KvLedger(100)
    ledger.reserve(A, 60)
    ledger.resize(50)
    assert ledger.held(A) == 60
    with pytest.raises(KvExhausted):
        ledger.reserve(B, 1)
    ledger.reserve(A, 60)
    ledger.reserve(A, 55)
    assert ledger.free_bytes == -5


def test_nonsense_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="reservation of -1"):
        KvLedger(10).reserve(A, -1)
    with pytest.raises(ValueError, match="capacity of -1"):
        KvLedger(-1)
    assert GREEDY.temperature == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60), st.booleans()), max_size=40)
)
def test_any_order_of_orders_keeps_the_sum(orders: list[tuple[str, int, bool]]) -> None:
    ledger, held = KvLedger(100), dict[str, int]()
    for name, size, release in orders:
        if release:
            assert ledger.release(SessionId(name)) == held.pop(name, 0)
            continue
        try:
            ledger.reserve(SessionId(name), size)
        except KvExhausted:
            assert sum(held.values()) - held.get(name, 0) + size > 100
        else:
            held[name] = size
        assert ledger.used_bytes == sum(held.values()) <= 100
