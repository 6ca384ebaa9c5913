"""The third lane of a link: made when it is asked for, and no link ends with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from link_pair import CONFIG, LOOPS_AND_KINDS, Bench, Build, LinkNode, Pair, run

from swarm.messages import (
    SLICE_BYTES,
    FileChunk,
    Heartbeat,
    ModelId,
    PieceSlice,
)
from swarm.terms import Incarnation

MODEL = ModelId("0" * 32)
Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS_AND_KINDS)
def link(request: pytest.FixtureRequest) -> Scenario:
    loop, kind = request.param
    return lambda scenario: run(loop, kind, scenario)


def piece(number: int, size: int = SLICE_BYTES) -> PieceSlice:
    return PieceSlice(MODEL, number, 0, 0, bytes([number % 256]) * size)


async def bulk(pair: Pair) -> None:
    """Both ends ask for the lane, as both ends of a download do."""
    for one, other in ((pair.left, pair.right), (pair.right, pair.left)):
        one.links.open_bulk(other.id)
    for one, other in ((pair.left, pair.right), (pair.right, pair.left)):
        await has_room(one, other)


async def has_room(one: LinkNode, other: LinkNode) -> None:
    await one.events.until(lambda: one.links.bulk_has_room(other.id))


def test_slices_go_both_ways_beside_the_other_lanes(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        assert not pair.left.links.send(pair.right.id, piece(1)), "there is no lane yet"
        await bulk(pair)
        for number in range(40):
            for one, other in ((pair.left, pair.right), (pair.right, pair.left)):
                await has_room(one, other)
                assert one.links.send(other.id, piece(number))
                assert one.links.send(other.id, FileChunk(MODEL, "f", number, 9, b"row"))
        for node in (pair.left, pair.right):
            await node.events.until(lambda node=node: len(node.events.messages) == 80)
            got = [m for _, m in node.events.messages if isinstance(m, PieceSlice)]
            assert got == [piece(number) for number in range(40)]
            assert len(node.events.all("up")) == 1

    link(scenario)


def test_a_bulk_lane_that_breaks_costs_no_link(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        await bulk(pair)
        lane = pair.right.links._links[pair.left.id].bulk
        lane.fail("cut")
        await pair.left.events.until(lambda: not pair.left.links.bulk_has_room(pair.right.id))
        assert not pair.right.links.bulk_has_room(pair.left.id)
        pair.left.links.send(pair.right.id, Heartbeat(bytes(8), Incarnation(1)))
        await pair.right.events.until(lambda: pair.right.events.messages)
        await bulk(pair)
        assert not pair.left.events.all("down")
        assert not pair.right.events.noted("link.refused")

    link(scenario)


def test_it_goes_with_its_link(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        await bulk(pair)
        pair.left.links.close(pair.right.id, "enough")
        await pair.right.events.until(lambda: pair.right.events.all("down"))
        assert not pair.left.links.bulk_has_room(pair.right.id)
        assert not pair.right.links.bulk_has_room(pair.left.id)
        pair.left.links.open_bulk(pair.right.id)
        assert not pair.left.links._bulk._dials

    link(scenario)


def test_an_idle_one_is_closed(link: Scenario) -> None:
    config = dataclasses.replace(CONFIG, bulk_idle_s=0.0, ping_interval_s=0.02)

    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(Build(config=config), Build())
        await bulk(pair)
        await pair.right.events.until(lambda: not pair.right.links.bulk_has_room(pair.left.id))
        assert not pair.left.events.all("down")

    link(scenario)


def test_rows_do_not_wait_behind_slices(link: Scenario) -> None:
    """The reader takes no slices; a row and a heartbeat come all the same."""

    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        await bulk(pair)
        pair.right.links._links[pair.left.id].bulk._transport.pause_reading()
        while pair.left.links.bulk_has_room(pair.right.id):
            assert pair.left.links.send(pair.right.id, piece(1))
        pair.left.links.send(pair.right.id, FileChunk(MODEL, "f", 0, 9, b"row"))
        await pair.right.events.until(lambda: pair.right.events.messages)
        ((_, first),) = pair.right.events.messages
        assert isinstance(first, FileChunk)

    link(scenario)
