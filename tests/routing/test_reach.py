"""Links on demand: who is dialled, what waits, when it is given up, how long that is remembered."""

from __future__ import annotations

from dataclasses import replace

from relay_bench import FIRST, MIDDLE, SESSION

from swarm.config import RoutingConfig
from swarm.messages import Progress, Release
from swarm.routing.reach import DIAL_GRACE_S, Reach, Standing
from swarm.terms import Epoch, NodeId

CONFIG = RoutingConfig()
A, B = NodeId("a"), NodeId("b")
LIFE = "one life"


def reach(*linked: NodeId) -> Reach:
    return Reach(CONFIG, set(linked))


def test_openings_wait_for_the_link_and_are_sent_once_it_is_up() -> None:
    it = reach()
    it.send(A, FIRST, 0.0)
    it.send(A, Progress(()), 0.0)
    assert it.take_dials() == [A]
    assert it.wanted() == (A,)
    assert it.link_up(A) == [FIRST]
    assert it.wanted() == ()
    assert it.next_deadline() is None
    it.tick(lambda _: LIFE, 10.0)
    assert it.take_lost() == []


def test_a_newer_opening_takes_the_place_of_the_older_and_a_release_of_both() -> None:
    it = reach()
    newer = replace(FIRST, epoch=Epoch(2))
    other = replace(MIDDLE, session=SESSION[::-1])
    for message in (FIRST, other, newer):
        it.send(A, message, 0.0)
    assert it.take_dials() == [A]
    it.send(A, Release(SESSION, Epoch(1)), 0.0)
    it.send(B, Release(SESSION, Epoch(1)), 0.0)
    assert it.wanted() == (A,)
    it.send(A, Release(SESSION, Epoch(2)), 0.1)
    assert it.link_up(A) == [other]


def test_what_does_not_come_is_lost_and_remembered() -> None:
    it = reach()
    it.want(A, 0.0)
    assert it.next_deadline() == CONFIG.detour_after_s
    it.tick(lambda _: LIFE, CONFIG.detour_after_s)
    assert it.take_slow() == [A]
    assert it.take_slow() == it.take_lost() == []
    assert it.next_deadline() == CONFIG.dial_wait_s
    it.tick(lambda _: LIFE, CONFIG.dial_wait_s)
    assert it.take_lost() == [A]
    assert it.take_lost() == []
    assert it.standing(A, LIFE, 5.0) is Standing.UNREACHABLE
    assert it.standing(A, "another life", 5.0) is Standing.DIALABLE
    assert it.standing(A, LIFE, 20.0) is Standing.DIALABLE


def test_what_no_session_waited_for_may_still_be_tried_by_one() -> None:
    it = reach()
    it.want(A, 0.0, by_session=False)
    it.tick(lambda _: LIFE, CONFIG.dial_wait_s)
    assert it.take_lost() == [A]
    assert it.standing(A, LIFE, 5.0) is Standing.DOUBTFUL


def test_a_failed_dial_ends_the_wait_after_a_moment() -> None:
    """Of two crossing dials one fails, and the link is there all the same."""
    it = reach()
    it.want(A, 0.0)
    it.dial_failed(A, LIFE, 0.1)
    assert it.next_deadline() == 0.1 + DIAL_GRACE_S
    assert it.standing(A, LIFE, 0.1) is Standing.DOUBTFUL
    it.link_up(A)
    assert it.standing(A, LIFE, 0.1) is Standing.DIALABLE


def test_a_second_session_does_not_wait_for_a_dial_that_has_failed() -> None:
    it = reach()
    it.want(A, 0.0)
    it.dial_failed(A, LIFE, 0.1)
    it.want(A, 0.2)
    assert it.next_deadline() == 0.1 + DIAL_GRACE_S
    it.tick(lambda _: LIFE, 0.1 + DIAL_GRACE_S)
    assert it.take_lost() == [A]


def test_each_further_miss_doubles_the_pause() -> None:
    it = reach()
    now = 0.0
    lengths = []
    for _ in range(7):
        it.dial_failed(A, LIFE, now)
        it.dial_failed(A, LIFE, now + 1.0)  # within the pause it is no news
        start = now
        while it.standing(A, LIFE, now) is Standing.DOUBTFUL:
            now += 0.5
        lengths.append(now - start)
    assert lengths == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    it.dial_failed(A, "another life", now)
    assert it.standing(A, "another life", now + 10.0) is Standing.DIALABLE


def test_who_is_linked_is_neither_dialled_nor_missed() -> None:
    it = reach(A)
    it.want(A, 0.0)
    it.dial_failed(A, LIFE, 0.0)
    assert it.take_dials() == []
    assert it.wanted() == ()
    assert it.standing(A, LIFE, 0.0) is Standing.LINKED


def test_nobody_is_waited_for_when_no_session_needs_the_link_any_more() -> None:
    it = reach()
    it.want(A, 0.0)
    it.send(B, FIRST, 0.0)
    it.still_needed({A})
    assert it.wanted() == (A, B)
    it.still_needed(set())
    assert it.wanted() == (B,), "an opening waits for that link"
    it.send(B, Release(FIRST.session, FIRST.epoch), 0.1)
    it.still_needed(set())
    assert it.wanted() == () and it.next_deadline() is None
    it.want(A, 0.2, by_session=False)
    it.still_needed(set())
    assert it.wanted() == (A,)
