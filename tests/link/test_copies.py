"""One key on several machines: restarts are let in, copies are found, told, and do not fight."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
from link_pair import LOOPS, Bench, Build, LinkNode, run, with_config

from swarm.link.instances import (
    INSTANCE_BYTES,
    are_two_starts,
    draw_instance,
    is_fit,
    must_yield,
)
from swarm.link.link_io import COPY_MET, IDENTITY_TAKEN
from swarm.messages import Heartbeat, KeyInUse
from swarm.terms import Address, Incarnation

Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]
QUICK = with_config(contest_s=0.05).config
EARLY, LATE = bytes(15) + b"\1", bytes(15) + b"\2"


@pytest.fixture(params=LOOPS)
def link(request: pytest.FixtureRequest) -> Scenario:
    """Copies are told from one another by where they are, so these links are direct."""
    return lambda scenario: run(request.param, "tcp", scenario)


# -------------------------------------------------------------------- rules


def test_of_two_starts_the_later_one_yields_and_both_agree() -> None:
    entropy = random.Random(1).randbytes
    early, late = draw_instance(entropy, 1000.0), draw_instance(entropy, 1000.002)
    assert len(early) == INSTANCE_BYTES
    assert must_yield(late, early)
    assert not must_yield(early, late)
    same = [draw_instance(entropy, 5.0) for _ in range(50)]
    assert len(set(same)) == 50
    for one in same:
        for other in same:
            assert must_yield(one, other) + must_yield(other, one) == (one != other)
    assert len(draw_instance(entropy, -1.0)) == INSTANCE_BYTES


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (EARLY, EARLY, False), (EARLY, LATE, True), (b"", LATE, False),
        (EARLY, b"", False), (b"", b"", False),
    ],
)  # fmt: skip
def test_two_starts_are_told_apart_only_where_both_are_known(
    one: bytes, other: bytes, expected: bool
) -> None:
    assert are_two_starts(one, other) is expected


def test_only_whole_instances_fit() -> None:
    assert [size for size in range(40) if is_fit(bytes(size))] == [0, INSTANCE_BYTES]


# -------------------------------------------------------------------- two copies that meet


@pytest.mark.parametrize("dialler_is_late", [True, False])
def test_copies_that_meet_both_know_and_one_yields(link: Scenario, dialler_is_late: bool) -> None:
    async def scenario(bench: Bench) -> None:
        instances = (LATE, EARLY) if dialler_is_late else (EARLY, LATE)
        one, other = [await bench.node(Build(seed=9, instance=i)) for i in instances]
        one.links.dial([other.address], None)
        await one.events.until(lambda: one.events.all("dial_failed"))
        await other.events.until(lambda: other.events.all("copy_met"))
        assert one.events.all("copy_met") == [("copy_met", other.address, dialler_is_late)]
        assert other.events.all("copy_met") == [("copy_met", one.address, not dialler_is_late)]
        assert COPY_MET in one.events.all("dial_failed")[0][2]
        assert not one.links.peers()
        assert not other.links.peers()

    link(scenario)


def test_every_start_draws_its_own_instance(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        one, other = [await bench.node(Build(seed=9)) for _ in range(2)]
        one.links.dial([other.address], one.id)
        await one.events.until(lambda: one.events.all("copy_met"))
        await other.events.until(lambda: other.events.all("copy_met"))
        assert one.events.all("copy_met")[0][2] is not other.events.all("copy_met")[0][2]

    link(scenario)


def test_a_node_that_dials_itself_is_no_copy(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        one = await bench.node()
        one.links.dial([one.address], None)
        await one.events.until(lambda: one.events.all("dial_failed"))
        assert not one.events.all("copy_met")

    link(scenario)


# -------------------------------------------------------------------- restarts at a third node


async def restart(
    bench: Bench, stays: LinkNode, old: LinkNode, incarnation: int, newcomer_dials: bool
) -> LinkNode:
    again = await bench.node(Build(seed=bench.seeds[old.id], incarnation=incarnation, config=QUICK))
    if newcomer_dials:
        again.links.dial([stays.address], stays.id)
    else:
        stays.links.dial([again.address], again.id)
    return again


@pytest.mark.parametrize("seeds", [(1, 2), (2, 1)])
@pytest.mark.parametrize("newcomer_dials", [True, False])
@pytest.mark.parametrize("incarnation", [1, 2, 3])
@pytest.mark.parametrize("end", ["killed", "silent"])
def test_a_restart_replaces_the_old_link(
    link: Scenario, seeds: tuple[int, int], newcomer_dials: bool, incarnation: int, end: str
) -> None:
    """Also where the incarnation was lost, and where the old socket's end was never noticed."""

    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(
            Build(seed=seeds[0], config=QUICK), Build(seed=seeds[1], incarnation=2)
        )
        stays, old = pair.left, pair.right
        if end == "silent":
            old.go_silent()
        again = await restart(bench, stays, old, incarnation, newcomer_dials)
        if end == "killed":
            old.kill()
        await again.linked_to(stays)
        await stays.events.until(lambda: len(stays.events.all("up")) == 2)
        assert stays.events.up[old.id].incarnation == incarnation
        kinds = [entry[0] for entry in stays.events.log if entry[0] != "dial_failed"]
        assert kinds == ["up", "down", "up"]
        assert not stays.events.noted("link.copied")
        stays.links.send(again.id, Heartbeat(bytes(8), Incarnation(7)))
        await again.events.until(lambda: again.events.messages)

    link(scenario)


@pytest.mark.parametrize("seeds", [(1, 2), (2, 1)])
@pytest.mark.parametrize("newcomer_dials", [True, False])
@pytest.mark.parametrize("incarnation", [1, 2, 3])
def test_a_copy_does_not_replace_a_living_link_and_both_are_told(
    link: Scenario, seeds: tuple[int, int], newcomer_dials: bool, incarnation: int
) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(Build(seed=seeds[0]), Build(seed=seeds[1], incarnation=2))
        stays, first = pair.left, pair.right
        second = await restart(bench, stays, first, incarnation, newcomer_dials)
        for copy, other in ((first, second), (second, first)):
            await copy.events.until(lambda copy=copy: copy.events.all("copy_reported"))
            assert copy.events.all("copy_reported")[0][1] == other.address
            await copy.events.until(lambda copy=copy: copy.events.all("copy_met"))
            assert copy.events.all("copy_met")[0][1] == other.address
        met = [copy.events.all("copy_met")[0][2] for copy in (first, second)]
        assert sorted(met) == [False, True]
        await stays.events.until(lambda: stays.events.noted("link.copied"))
        assert not stays.events.all("down")
        assert stays.links.send(first.id, Heartbeat(bytes(8), Incarnation(7)))
        await first.events.until(lambda: first.events.messages)
        dialler = second if newcomer_dials else stays
        await dialler.events.until(lambda: dialler.events.all("dial_failed"))
        causes = [entry[2] for entry in dialler.events.all("dial_failed")]
        assert any(IDENTITY_TAKEN in cause for cause in causes) or second.events.all("up")

    link(scenario)


def test_the_copy_gets_in_once_the_first_one_is_gone(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(Build(seed=1), Build(seed=2))
        stays, first = pair.left, pair.right
        second = await restart(bench, stays, first, 1, True)
        await second.events.until(lambda: second.events.all("copy_reported"))
        first.links.close(stays.id, "a new identity")
        await stays.events.until(lambda: stays.events.all("down"))
        second.links.dial([stays.address], stays.id)
        await stays.events.until(lambda: len(stays.events.all("up")) == 2)
        assert stays.links.peers()[0].address == second.address

    link(scenario)


def test_reports_of_copies_set_off_few_dials(link: Scenario) -> None:
    """Whoever tells a node of copies without end does not make it knock at every door."""

    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        control = pair.left.links._links[pair.right.id].control
        for port in range(1, 60):
            control.send(KeyInUse(Address("127.0.0.1", port)))
        control.send(KeyInUse(Address("", 0)))
        pair.left.links.send(pair.right.id, Heartbeat(bytes(8), Incarnation(7)))
        await pair.right.events.until(lambda: pair.right.events.messages)
        told = pair.right.events.all("copy_reported")
        assert 1 <= len(told) <= 10
        await pair.right.events.until(
            lambda: len(pair.right.events.all("dial_failed")) == len(told)
        )

    link(scenario)


def test_an_instance_of_wrong_length_is_refused(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        one, other = await bench.node(Build(instance=b"short")), await bench.node()
        one.links.dial([other.address], None)
        await other.events.until(lambda: other.events.noted("link.refused"))
        assert "instance" in str(other.events.noted("link.refused")[0].get("cause"))

    link(scenario)


def test_contests_end_with_their_links(link: Scenario) -> None:
    """Closing in the middle of a contest leaves no timer and no connection behind."""

    async def scenario(bench: Bench) -> None:
        patient = with_config(contest_s=30.0).config
        pair = await bench.pair(Build(seed=1, config=patient), Build(seed=2))
        stays, old = pair.left, pair.right
        old.go_silent()
        await restart(bench, stays, old, 2, True)
        await stays.events.until(lambda: stays.links._contests.count)
        await stays.links.close_all("enough")
        assert not stays.links._contests.count

    link(scenario)
