"""A departure that is announced: what others are told of it, and when."""

from __future__ import annotations

import pytest

from swarm.config import ShardConfig
from swarm.departure import TOLD_MIN_S, Departure
from swarm.effects import Tell
from swarm.hosted import DEPARTS_SOON_S
from swarm.hosting import Budget, Hosting
from swarm.terms import NodeId


def departure() -> tuple[Departure, Hosting]:
    config = ShardConfig()
    hosting = Hosting(NodeId("me"), [], Budget(0, 0), config, "/cache")
    return Departure(hosting), hosting


def told(it: Departure, hosting: Hosting, until: float) -> list[tuple[float, float]]:
    """What is said from now on, and when."""
    found = []
    while (due := it.next_deadline()) is not None and due <= until:
        it.tick(due)
        if hosting.changed:
            found.append((due, hosting.departs_in_s))
            hosting.changed = False
    return found


def test_it_is_told_at_once_and_again_when_half_of_the_time_is_left() -> None:
    it, hosting = departure()
    it.announce(80.0, 100.0)
    assert told(it, hosting, 200.0) == [(100.0, 80.0), (140.0, 40.0), (160.0, 20.0), (170.0, 10.0),
                                        (175.0, 5.0)]  # fmt: skip
    assert it.next_deadline() is None


def test_it_is_told_when_others_are_to_act_on_it() -> None:
    it, hosting = departure()
    it.announce(660.0, 0.0)
    assert told(it, hosting, 100.0) == [(0.0, 660.0), (660.0 - DEPARTS_SOON_S, DEPARTS_SOON_S)]


def test_a_weeks_notice_is_told_some_twenty_times() -> None:
    it, hosting = departure()
    it.announce(7 * 86400.0, 0.0)
    said = told(it, hosting, 1e9)
    assert len(said) < 20 and TOLD_MIN_S <= said[-1][1] < 2 * TOLD_MIN_S
    for (at, left_s), (following, _) in zip(said, said[1:], strict=False):
        assert following - at <= left_s / 2 * 1.1


def test_who_stays_after_all_says_so() -> None:
    it, hosting = departure()
    it.announce(80.0, 0.0)
    it.tick(0.0)
    it.announce(None, 1.0)
    it.tick(1.0)
    assert hosting.departs_in_s == 0.0 and it.next_deadline() is None
    it.announce(None, 2.0)
    events = [effect.note.event for effect in it.take_effects() if isinstance(effect, Tell)]
    assert events == ["node.departs", "node.stays"], (
        "there was nothing to take back the second time"
    )


@pytest.mark.parametrize("in_s", [0.5, 5.0, 7.0])
def test_a_short_notice_is_told_once(in_s: float) -> None:
    it, hosting = departure()
    it.announce(in_s, 0.0)
    assert len(told(it, hosting, 100.0)) == 1
    assert hosting.departs_in_s == max(TOLD_MIN_S, in_s)
