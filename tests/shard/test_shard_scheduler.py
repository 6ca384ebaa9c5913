"""Order of work: in turn between sessions, in order within one, tokens beside pieces of prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_chain import ids_run
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import CapacityError
from swarm.messages import Run, StepKind
from swarm.shard.scheduler import REBUILD_ROWS, ROOM_LEAST, Scheduler, StepLimits
from swarm.terms import SessionId

PIECE = 8
LIMITS = StepLimits(sessions=10, rows=100, tile=16, piece=PIECE)
ONE_BY_ONE = StepLimits(sessions=1, rows=16, tile=1, piece=0, turns=3)


def chunk(name: str, position: int = 0, count: int = 8) -> Run:
    return ids_run(name, position, [5] * count)


def decode(name: str, position: int, count: int = 1) -> Run:
    return ids_run(name, position, [5] * count, kind=StepKind.DECODE)


Given = list[tuple[str, int, int]]


def step(scheduler: Scheduler) -> Given:
    return [(each.run.session, each.position, each.count) for each in scheduler.next()]


def steps(scheduler: Scheduler) -> list[Given]:
    given: list[Given] = []
    while len(scheduler):
        given.append(step(scheduler))
    assert step(scheduler) == []
    return given


def filled(*runs: Run, limits: StepLimits = LIMITS) -> Scheduler:
    scheduler = Scheduler(100, limits)
    for run in runs:
        scheduler.add(run)
    return scheduler


def behind(run: Run) -> Run:
    return replace(run, is_background=True)


def test_what_nobody_waits_for_runs_when_nothing_else_does() -> None:
    scheduler = filled(
        behind(chunk("s")), behind(decode("t", 30, 12)), decode("a", 9), chunk("b"), decode("c", 7)
    )
    assert step(scheduler) == [("a", 9, 1), ("c", 7, 1)]
    assert step(scheduler) == [("b", 0, 8)]
    assert step(scheduler) == [("t", 30, 12)]
    assert step(scheduler) == [("s", 0, 8)]


def test_who_follows_in_the_background_takes_no_share_of_a_batch() -> None:
    scheduler = filled(*(behind(decode(name, 3)) for name in "stuv"), decode("a", 9))
    assert scheduler.batch_rows == 1


def test_one_row_of_every_session_that_has_one() -> None:
    scheduler = filled(decode("a", 1), decode("a", 2), decode("a", 3), decode("b", 1))
    assert steps(scheduler) == [[("a", 1, 1), ("b", 1, 1)], [("a", 2, 1)], [("a", 3, 1)]]


def test_tokens_and_pieces_alternate() -> None:
    scheduler = filled(chunk("p", 0, 3 * PIECE), decode("d", 5), decode("d", 6), decode("d", 7))
    assert steps(scheduler) == [
        [("d", 5, 1)], [("p", 0, 8)], [("d", 6, 1)], [("p", 8, 8)], [("d", 7, 1)], [("p", 16, 8)],
    ]  # fmt: skip


def test_a_token_waits_for_one_piece_at_most_however_many_prompts_there_are() -> None:
    scheduler = filled(*(chunk(name, 0, 50) for name in "pqr"))
    for position in range(12):
        scheduler.add(decode("d", position))
        waited = 0
        while step(scheduler) != [("d", position, 1)]:
            waited += 1
        assert waited <= 1


def test_prompts_are_cut_where_positions_say_whatever_the_chunks() -> None:
    cuts = [steps(filled(*chunks)) for chunks in (
        [chunk("p", 0, 20)],
        [chunk("p", 0, 8), chunk("p", 8, 12)],
    )]  # fmt: skip
    assert cuts[0] == cuts[1] == [[("p", 0, 8)], [("p", 8, 8)], [("p", 16, 4)]]
    odd = steps(filled(chunk("p", 0, 5), chunk("p", 5, 15)))
    assert odd == [[("p", 0, 5)], [("p", 5, 3)], [("p", 8, 8)], [("p", 16, 4)]]


def mixed(scheduler: Scheduler, most: int) -> Given:
    return [(each.run.session, each.position, each.count) for each in scheduler.next(most)]


def test_rows_of_prompts_run_with_tokens_where_they_may() -> None:
    scheduler = filled(*(decode(name, 5) for name in "abc"), chunk("p", 0, 40), chunk("q", 0, 9))
    tokens = [("a", 5, 1), ("b", 5, 1), ("c", 5, 1)]
    assert mixed(scheduler, 32) == [*tokens, ("p", 0, 29)], "32 rows in all"
    assert mixed(scheduler, 32) == [("q", 0, 9), ("p", 29, 11)], "what is left of both fits"
    scheduler = filled(*(decode(str(i), 5) for i in range(10)), chunk("p", 0, 40))
    assert mixed(scheduler, 8)[-1] == ("p", 0, ROOM_LEAST), "a prompt always goes on"


def test_a_prompt_alone_keeps_to_its_pieces_and_short_ones_share_one() -> None:
    scheduler = filled(chunk("p", 0, 20), chunk("q", 0, 3))
    assert mixed(scheduler, 32) == [("p", 0, PIECE)]
    scheduler = filled(chunk("p", 0, 3), chunk("q", 0, 2), chunk("r", 0, 9))
    assert mixed(scheduler, 32) == [("p", 0, 3), ("q", 0, 2), ("r", 0, 3)]


def test_while_others_decode_a_prompt_is_bounded_though_no_token_is_ready() -> None:
    scheduler = filled(decode("d", 5))
    step(scheduler)
    scheduler.add(chunk("p", 0, 100))
    assert mixed(scheduler, 32) == [("p", 0, 32)]


def test_rows_that_are_likely_to_come_are_lacking() -> None:
    scheduler = filled(decode("a", 1), decode("b", 1))
    assert not scheduler.lacks_rows(mixes=True), "all who decode are there"
    scheduler.next()
    assert not scheduler.lacks_rows(mixes=True), "nothing waits for them"
    scheduler.add(decode("a", 2))
    assert scheduler.lacks_rows(mixes=True) and scheduler.lacks_rows(mixes=False)
    scheduler.add(chunk("p"))
    assert scheduler.lacks_rows(mixes=True)
    assert not scheduler.lacks_rows(mixes=False), "the prompt runs meanwhile"
    scheduler.add(decode("b", 2))
    assert not scheduler.lacks_rows(mixes=True)


def test_who_was_waited_for_in_vain_is_not_until_it_has_come() -> None:
    scheduler = filled(decode("a", 1), decode("b", 1))
    scheduler.next()
    scheduler.add(decode("a", 2))
    scheduler.give_up()
    assert not scheduler.lacks_rows(mixes=True)
    scheduler.next()
    scheduler.add(decode("a", 3))
    assert not scheduler.lacks_rows(mixes=True)
    scheduler.add(decode("b", 2))
    scheduler.next()
    scheduler.add(decode("b", 3))
    assert scheduler.lacks_rows(mixes=True)
    scheduler.drop(SessionId("a"))
    assert not scheduler.lacks_rows(mixes=True)


def test_on_a_route_of_two_hops_half_of_the_sessions_are_elsewhere() -> None:
    scheduler = Scheduler(100, LIMITS)
    for name in "abcd":
        scheduler.begin(SessionId(name), 2)
        scheduler.add(decode(name, 5))
    scheduler.next()
    assert len(scheduler) == 2 and not scheduler.lacks_rows(mixes=True)


def test_what_runs_in_the_background_waits_for_tokens_too() -> None:
    scheduler = filled(decode("a", 1))
    scheduler.next()
    scheduler.add(behind(chunk("s")))
    assert scheduler.lacks_rows(mixes=True) and not scheduler.lacks_rows(mixes=False)


def test_long_prompts_of_two_sessions_alternate() -> None:
    scheduler = filled(chunk("a", 0, 24), chunk("b", 0, 16))
    assert [given[0][0] for given in steps(scheduler)] == ["a", "b", "a", "b", "a"]


def test_a_batch_has_its_limits_and_the_line_goes_on_where_it_ended() -> None:
    scheduler = filled(*(decode(f"{i:02}", 5) for i in range(24)))
    assert [len(given) for given in steps(scheduler)] == [10, 10, 4]
    scheduler = filled(*(decode(f"{i:02}", p) for i in range(15) for p in (5, 6)))
    names = [name for given in steps(scheduler) for name, _, _ in given]
    assert names[:15] == [f"{i:02}" for i in range(15)]


def test_a_rebuild_alone_comes_in_slices() -> None:
    scheduler = filled(decode("r", 10, 2 * REBUILD_ROWS + 3))
    assert steps(scheduler) == [
        [("r", 10, REBUILD_ROWS)], [("r", 10 + REBUILD_ROWS, REBUILD_ROWS)],
        [("r", 10 + 2 * REBUILD_ROWS, 3)],
    ]  # fmt: skip


def test_rebuilds_fill_the_tile_that_tokens_leave_open() -> None:
    scheduler = filled(decode("a", 1), decode("r", 10, 40), decode("s", 0, 40), decode("b", 1))
    assert step(scheduler) == [("a", 1, 1), ("b", 1, 1), ("r", 10, 7), ("s", 0, 7)]
    assert step(scheduler) == [("r", 17, 32), ("s", 7, 32)]


def test_on_a_route_of_two_hops_a_batch_takes_half_of_the_sessions() -> None:
    scheduler = Scheduler(100, LIMITS)
    for index in range(6):
        scheduler.begin(SessionId(str(index)), 2)
        scheduler.add(decode(str(index), 5))
    assert [len(given) for given in steps(scheduler)] == [3, 3]
    for index in range(3):
        scheduler.drop(SessionId(str(index)))
    for index in range(3, 6):
        scheduler.add(decode(str(index), 6))
    assert [len(given) for given in steps(scheduler)] == [2, 1]


def test_without_blocks_one_session_runs_at_a_time() -> None:
    runs = [chunk("p", 0, 30), *(decode("d", position) for position in range(5))]
    given = steps(filled(*runs, decode("r", 0, 20), limits=ONE_BY_ONE))
    assert all(len(each) == 1 for each in given)
    flat = [each[0] for each in given]
    assert flat[:3] == [("d", 0, 1), ("r", 0, 16), ("d", 1, 1)]
    assert flat[3] == ("p", 0, 30)


def test_dropping_a_session_forgets_its_started_work_too() -> None:
    scheduler = filled(decode("r", 0, 400), chunk("p"), decode("r", 400))
    assert step(scheduler)[0][0] == "r"
    assert scheduler.drop(SessionId("r")) == 2
    assert scheduler.drop(SessionId("r")) == 0
    assert steps(scheduler) == [[("p", 0, 8)]]


def test_the_queue_of_a_session_has_an_end_that_others_do_not_feel() -> None:
    scheduler = Scheduler(2, LIMITS)
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
    scheduler = filled(decode("r", 0, 100))
    scheduler.next()
    (rest,) = scheduler.waiting()
    assert (rest.first, rest.count) == (REBUILD_ROWS, 100 - REBUILD_ROWS)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.sampled_from(StepKind)),
        max_size=30,
    ),
    st.sampled_from([LIMITS, ONE_BY_ONE, StepLimits(2, 3, 16, 5)]),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)),
    st.sampled_from([None, 8, 32]),
)
def test_every_row_is_given_out_once_and_in_order(
    work: list[tuple[str, int, StepKind]],
    limits: StepLimits,
    hops: dict[str, int],
    most: int | None,
) -> None:
    ends = dict.fromkeys("abc", 0)
    scheduler = Scheduler(100, limits)
    for name, count in hops.items():
        scheduler.begin(SessionId(name), count)
    for name, count, kind in work:
        scheduler.add(ids_run(name, ends[name], [5] * count, kind=kind))
        ends[name] += count
    reached = dict.fromkeys("abc", 0)
    while len(scheduler):
        given = scheduler.next(most)
        assert given and sum(part.count for part in given) <= max(limits.rows, limits.piece or 40)
        assert most is not None or len({part.run.kind for part in given}) == 1
        assert len({part.run.session for part in given}) == len(given)
        for part in given:
            assert part.position == reached[part.run.session]
            reached[part.run.session] += part.count
    assert reached == ends
