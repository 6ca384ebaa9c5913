"""Order of work: in turn between sessions, in order within one, tokens before chunks."""

from __future__ import annotations

import pytest
from engine_chain import ids_run
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import CapacityError
from swarm.messages import Run, StepKind
from swarm.shard.scheduler import DECODE_SLICE_ROWS, DECODES_PER_LONG_WORK, Scheduler
from swarm.terms import SessionId


def chunk(name: str, position: int = 0, count: int = 8) -> Run:
    return ids_run(name, position, [5] * count)


def decode(name: str, position: int, count: int = 1) -> Run:
    return ids_run(name, position, [5] * count, kind=StepKind.DECODE)


def order(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    given: list[tuple[str, int, int]] = []
    while part := scheduler.next():
        given.append((part.run.session, part.run.position + part.first, part.count))
    return given


def filled(*runs: Run) -> Scheduler:
    scheduler = Scheduler(queue_max=100)
    for run in runs:
        scheduler.add(run)
    return scheduler


def test_sessions_take_turns_and_keep_their_own_order() -> None:
    scheduler = filled(decode("a", 1), decode("a", 2), decode("a", 3), decode("b", 1))
    assert [name for name, _, _ in order(scheduler)] == ["a", "b", "a", "a"]
    assert len(scheduler) == 0


def test_a_token_goes_before_a_chunk() -> None:
    assert order(filled(chunk("p"), decode("d", 5))) == [("d", 5, 1), ("p", 0, 8)]


def test_a_chunk_waits_for_a_few_tokens_only() -> None:
    scheduler = filled(chunk("p"))
    served = []
    for position in range(20):
        scheduler.add(decode("d", position))
        part = scheduler.next()
        assert part is not None
        served.append(part.run.session)
    assert served.index(SessionId("p")) == DECODES_PER_LONG_WORK


def test_long_prompts_of_two_sessions_alternate() -> None:
    scheduler = filled(*(chunk("a", i * 8) for i in range(3)), *(chunk("b", i * 8) for i in (0, 1)))
    assert [name for name, _, _ in order(scheduler)] == ["a", "b", "a", "b", "a"]


def test_a_rebuild_comes_in_slices() -> None:
    count = 2 * DECODE_SLICE_ROWS + 3
    scheduler = filled(decode("r", 10, count), decode("d", 4))
    assert order(scheduler) == [
        ("d", 4, 1),
        ("r", 10, DECODE_SLICE_ROWS),
        ("r", 10 + DECODE_SLICE_ROWS, DECODE_SLICE_ROWS),
        ("r", 10 + 2 * DECODE_SLICE_ROWS, 3),
    ]


def test_dropping_a_session_forgets_its_started_work_too() -> None:
    scheduler = filled(decode("r", 0, 40), chunk("p"), decode("r", 40))
    assert scheduler.next() is not None
    assert scheduler.drop(SessionId("r")) in (1, 2)
    assert scheduler.drop(SessionId("r")) == 0
    assert [name for name, _, _ in order(scheduler)] in (["p"], [])


def test_the_queue_of_a_session_has_an_end_that_others_do_not_feel() -> None:
    scheduler = Scheduler(queue_max=2)
    for position in (0, 8):
        scheduler.add(chunk("a", position))
    with pytest.raises(CapacityError, match="2 steps of the session wait already"):
        scheduler.add(chunk("a", 16))
    for name in "bcd":
        scheduler.add(chunk(name))
    scheduler.next()
    scheduler.add(chunk("a", 16))
    assert len(scheduler) == 5


def test_what_waits_is_what_is_left() -> None:
    scheduler = filled(decode("r", 0, 40))
    scheduler.next()
    (rest,) = scheduler.waiting()
    assert (rest.first, rest.count) == (DECODE_SLICE_ROWS, 40 - DECODE_SLICE_ROWS)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.sampled_from(StepKind)),
        max_size=30,
    )
)
def test_every_row_is_given_out_once_and_in_order(work: list[tuple[str, int, StepKind]]) -> None:
    ends = dict.fromkeys("abc", 0)
    scheduler = Scheduler(queue_max=100)
    for name, count, kind in work:
        scheduler.add(ids_run(name, ends[name], [5] * count, kind=kind))
        ends[name] += count
    reached = dict.fromkeys("abc", 0)
    for name, position, count in order(scheduler):
        assert position == reached[name]
        reached[name] += count
    assert reached == ends
    assert len(scheduler) == 0
