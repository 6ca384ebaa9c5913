"""How long peers have stayed: what is learned, what is not, and that memory stays bounded."""

from __future__ import annotations

import pytest

from swarm.config import RoutingConfig
from swarm.effects import SaveStays
from swarm.routing.cost import Candidate, leaving_cost_s
from swarm.routing.stays import ALONE_S, HALF_LIFE_S, HOUR_S, NODES_MAX, PRIOR_S, StayBook
from swarm.stay_keeper import SAVE_INTERVAL_S, StayKeeper
from swarm.terms import (
    LayerRange,
    ModelId,
    NodeId,
    NumericClass,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
DAY_S = 24 * HOUR_S


def lived(book: StayBook, node: NodeId, start: float, stay_s: float, count: int) -> float:
    """Comes and goes; returns when it is away for the last time."""
    at = start
    for _ in range(count):
        book.here(node, at)
        book.gone(node, at + stay_s)
        at += stay_s + 60.0
        book.here(C, at)
    return at


def test_who_leaves_often_is_expected_to_leave() -> None:
    book = StayBook()
    book.here(C, 0.0)
    end = max(lived(book, A, 0.0, 300.0, 40), lived(book, B, 0.0, 7200.0, 10))
    book.here(A, end), book.here(B, end)
    assert book.rate(A, end) > 10 * book.rate(B, end) > 0.0
    assert book.rate(NodeId("stranger"), end) == 1.0 / PRIOR_S


def test_hours_of_the_week_differ() -> None:
    """Each evening at eight it goes, and at nine it is back."""
    book = StayBook()
    for day in range(21):
        book.here(C, day * DAY_S)
        book.here(A, day * DAY_S + 21 * HOUR_S)
        book.gone(A, (day + 1) * DAY_S + 20.5 * HOUR_S)
        book.here(C, (day + 1) * DAY_S + 20.6 * HOUR_S)
    noon, evening = 21 * DAY_S + 12 * HOUR_S, 21 * DAY_S + 20.2 * HOUR_S
    book.here(A, 21 * DAY_S + 21 * HOUR_S)
    assert book.rate(A, evening + 7 * DAY_S) > 5 * book.rate(A, noon + 7 * DAY_S)


def test_the_past_fades() -> None:
    book = StayBook()
    end = lived(book, A, 0.0, 300.0, 40)
    fresh = book.rate(A, end)
    assert book.rate(A, end + 20 * HALF_LIFE_S) < fresh / 10


def test_being_cut_off_oneself_is_no_departure_of_others() -> None:
    book = StayBook()
    for node in (A, B, C):
        book.here(node, 0.0)
    before = book.rate(A, 100.0)
    for node in (A, B, C):
        book.gone(node, 100.0)
    assert book.rate(A, 100.0 + ALONE_S) == pytest.approx(before, rel=0.01)
    book.here(A, 200.0), book.here(B, 200.0)
    book.gone(A, 300.0)
    assert book.rate(A, 300.0 + ALONE_S) > before


def test_it_comes_back_from_the_disk() -> None:
    book = StayBook()
    end = lived(book, A, 0.0, 300.0, 40)
    again = StayBook.read(book.dump(end))
    assert again.rate(A, end) == pytest.approx(book.rate(A, end), rel=0.01)


@pytest.mark.parametrize("data", [
    b"", b"[]", b'{"stays": 3}', b'{"stays": {"a": [1, 2]}}', b'{"stays": {"a": [1, "x", 2, []]}}',
    b'{"stays": {"a": [1, NaN, 2, []]}}', b"\xff", b"[" * 100_000,
    b'{"stays": {"a": [1, 2, 3, [[0, -1, 2]]]}}', b'{"stays": {"a": [1, 2, 3, [["x", 1, 2]]]}}',
])  # fmt: skip
def test_what_is_damaged_is_learned_again(data: bytes) -> None:
    assert len(StayBook.read(data)) == 0


def test_memory_is_bounded() -> None:
    book = StayBook()
    for number in range(NODES_MAX + 50):
        book.here(NodeId(f"{number}"), number)
        book.gone(NodeId(f"{number}"), number + 0.5)
        book.here(C, number + 0.5)
    book.here(C, 1e5)
    book.here(A, 1e5)
    assert len(book) <= NODES_MAX + 1
    assert len(StayBook.read(book.dump(1e5))) <= NODES_MAX


def test_a_keeper_tells_nothing_before_it_is_begun_and_saves_now_and_then() -> None:
    keeper = StayKeeper(B)
    keeper.seen(A, is_here=True, now=1.0)
    assert keeper.rates({A: 0.0}, 2.0) == {} and keeper.next_deadline() is None
    keeper.begin(b"", 1e9, 2.0)
    keeper.seen(A, is_here=True, now=3.0)
    assert set(keeper.rates({A: 0.0, B: 0.0}, 4.0)) == {A}
    assert keeper.next_deadline() == 2.0 + SAVE_INTERVAL_S
    keeper.tick(2.0 + SAVE_INTERVAL_S)
    (effect,) = keeper.take_effects()
    assert isinstance(effect, SaveStays) and len(StayBook.read(effect.data)) == 1


def test_what_a_node_says_of_its_own_departure_counts_where_it_is_sooner() -> None:
    keeper = StayKeeper(B)
    assert keeper.rates({A: 60.0, C: 0.0, B: 5.0}, 0.0) == {A: 1 / 60}
    keeper.begin(b"", 1e9, 0.0)
    keeper.seen(A, is_here=True, now=0.0)
    known = keeper.rates({A: 0.0}, 1.0)[A]
    assert keeper.rates({A: 60.0}, 1.0)[A] == 1 / 60 > known
    assert keeper.rates({A: 1e9}, 1.0)[A] == known


def test_the_cost_rises_with_the_time_that_is_left() -> None:
    speed = ShardSpeed(ModelId("m"), 0.001, 0.002, 0.0001, 0.0, 0.0, 0)
    shard = ShardInfo(ModelId("m"), LayerRange(0, 4), True, False, NumericClass("c"),
                      ShardState.SERVING, 1, 1, 1)  # fmt: skip
    candidate, config = Candidate(A, shard, speed), RoutingConfig()
    costs = [leaving_cost_s(candidate, 0.01, 12, tokens, config) for tokens in (0, 10, 100, 10**9)]
    assert costs == sorted(costs) and costs[0] == 0.0
    assert costs[-1] == pytest.approx(config.stall_price_s)
