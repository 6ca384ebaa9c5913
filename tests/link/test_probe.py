"""A look at an address: every answer it can give, and that no link comes of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from link_pair import KEY, LOOPS, OTHER_KEY, WAIT_S, Bench, Build, raw_connection, run

from swarm.link.dial_back_io import DIALS_BURST
from swarm.link.found import Found, Outcome
from swarm.link.handshake import Credentials, Handshake, ProtocolRange
from swarm.link.identity import Identity
from swarm.link.probe_io import visit
from swarm.messages import DialBack, Heartbeat, Lane
from swarm.terms import Address, Incarnation

Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=list(LOOPS))
def link(request: pytest.FixtureRequest) -> Scenario:
    return lambda scenario: run(request.param, "tcp", scenario)


async def look(address: Address, own_port: int = 0, timeout_s: float = WAIT_S) -> Found:
    return await visit(address, KEY, own_port=own_port, timeout_s=timeout_s)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_member_is_named_and_no_link_comes_of_it(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        found = await look(node.address)
        assert (found.outcome, found.node) == (Outcome.MEMBER, node.id)
        assert found.protocol == ProtocolRange()
        assert found.is_reached_back is None
        other = await bench.node()
        other.links.dial([node.address], None)
        await node.linked_to(other)
        assert list(node.events.up) == [other.id] and not node.events.noted("link.refused")

    link(scenario)


def test_a_member_dials_back_and_says_how_that_went(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        node, own = await bench.node(), await bench.node()
        found = await look(node.address, own.address.port)
        assert found.is_reached_back is True
        shut = await look(node.address, closed_port())
        assert shut.is_reached_back is False and shut.back_detail == "connection refused"

    link(scenario)


def test_clocks_are_compared(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        node.links._dial_backs._wall_clock = lambda: time.time() + 3600
        found = await look(node.address, node.address.port)
        assert found.clock_offset_s == pytest.approx(3600, abs=WAIT_S)

    link(scenario)


def test_who_asks_too_often_gets_no_answer(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        for _ in range(100):
            pair.left.links.send(pair.right.id, DialBack(pair.left.address.port))
        dialled = pair.left.events
        await dialled.until(lambda: len(dialled.noted("link.refused")) == DIALS_BURST)
        pair.left.links.send(pair.right.id, Heartbeat(bytes(8), Incarnation(1)))
        await pair.right.events.until(lambda: pair.right.events.messages)
        assert not pair.right.links._dial_backs._tasks
        assert len(dialled.noted("link.refused")) == DIALS_BURST
        pair.left.links.send(pair.right.id, DialBack(0))
        await pair.right.events.until(lambda: pair.right.events.all("down"))
        assert "port" in pair.right.events.all("down")[0][2]

    link(scenario)


def test_what_is_not_a_member_is_told_apart(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        stranger = await bench.node(Build(key=OTHER_KEY))
        assert (await look(stranger.address)).outcome is Outcome.OTHER_KEY
        newer = await bench.node(Build(protocol=ProtocolRange(7, 9)))
        found = await look(newer.address)
        assert (found.outcome, found.protocol) == (Outcome.OTHER_VERSION, ProtocolRange(7, 9))
        nobody = Address("127.0.0.1", closed_port())
        assert (await look(nobody)).outcome is Outcome.CLOSED
        assert (await look(Address("no-such-host.invalid", 1))).outcome is Outcome.NO_WAY

    link(scenario)


def test_a_port_that_says_nothing_is_left(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = Address("127.0.0.1", int(mute.getsockname()[1]))
            found = await look(address, timeout_s=0.2)
        assert found.outcome is Outcome.MUTE

    link(scenario)


def test_a_stranger_cannot_have_a_node_dial(link: Scenario) -> None:
    """The question is read only behind a handshake that shows the key."""

    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        credentials = Credentials(Identity(bytes(32)), OTHER_KEY, Incarnation(1))
        hello = Handshake.dialler(credentials, bytes, Lane.CONTROL).start()
        async with raw_connection(node.address) as (reader, writer):
            writer.write(len(hello).to_bytes(4, "big") + hello)
            async with asyncio.timeout(WAIT_S):
                assert await reader.read() == b""
        assert not node.links._dial_backs._tasks

    link(scenario)
