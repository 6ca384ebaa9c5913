"""Relayed links: what the node in the middle sees, bounds and ends; how they give way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from link_pair import LOOPS, Bench, Build, LinkNode, run, with_config

from swarm.link import splice_io
from swarm.link.lanes import DIRECT_NOW
from swarm.link.passages import Pace, Passage, Passages
from swarm.link.relay_io import LOST
from swarm.messages import (
    FileChunk,
    Heartbeat,
    Lane,
    ModelId,
    RelayOffer,
    RelayOpen,
    RelayRefused,
)
from swarm.terms import Incarnation, NodeId

MODEL = ModelId("0" * 32)
A, B, C, D = (NodeId(letter * 32) for letter in "abcd")
Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS)
def link(request: pytest.FixtureRequest) -> Scenario:
    return lambda scenario: run(request.param, "tcp", scenario)


async def line(bench: Bench, middle: Build | None = None) -> tuple[LinkNode, LinkNode, LinkNode]:
    """left and right, each linked to the middle; one dialled it, the other was dialled."""
    left, mid, right = await bench.node(), await bench.node(middle), await bench.node()
    left.links.dial([mid.address], mid.id)
    mid.links.dial([right.address], right.id)
    await mid.linked_to(left, right)
    await left.linked_to(mid)
    await right.linked_to(mid)
    return left, mid, right


async def relayed(left: LinkNode, mid: LinkNode, right: LinkNode) -> None:
    left.links.dial_via(right.id, mid.id)
    await left.linked_to(right)
    await right.linked_to(left)


def chunk(number: int, size: int = 100) -> FileChunk:
    return FileChunk(MODEL, "f", number, size, bytes([number % 256]) * size)


def streams(node: LinkNode) -> int:
    return int(node.links._relays.middle.stream_count)


async def until_no_stream(node: LinkNode) -> None:
    while streams(node):
        await asyncio.sleep(0)


def test_the_middle_sees_ciphertext_only(link: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = bytearray()
    usual = splice_io.Half._pass_on

    def spy(half: splice_io.Half, data: bytes) -> None:
        seen.extend(data)
        usual(half, data)

    monkeypatch.setattr(splice_io.Half, "_pass_on", spy)

    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench)
        await relayed(left, mid, right)
        secret = b"what only the ends may read "
        left.links.send(right.id, FileChunk(MODEL, "f", 0, 1, secret * 40))
        await right.events.until(lambda: right.events.messages)
        assert right.events.messages[0][1] == FileChunk(MODEL, "f", 0, 1, secret * 40)
        assert not mid.events.messages
        assert len(seen) > 1000
        assert secret not in seen
        assert right.identity.public_key not in seen

    link(scenario)


def test_a_direct_link_takes_the_place_of_a_relayed_one_and_not_the_reverse(
    link: Scenario,
) -> None:
    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench)
        await relayed(left, mid, right)
        right.links.dial([left.address], left.id)
        for one, other in ((left, right), (right, left)):
            await one.events.until(lambda o=one, p=other: len(o.events.all("up")) == 3)
            assert one.events.up[other.id].via is None
            (down,) = one.events.all("down")
            assert down[1:] == (other.id, DIRECT_NOW, True)
        left.links.send(right.id, chunk(1))
        await right.events.until(lambda: right.events.messages)
        await until_no_stream(mid)
        left.links.dial_via(right.id, mid.id)
        await left.events.until(lambda: left.events.all("relay_failed"))
        assert left.events.all("relay_failed")[0][1:3] == (right.id, mid.id)
        assert left.events.up[right.id].via is None

    link(scenario)


@pytest.mark.parametrize("how", ["killed", "said goodbye", "lost one end"])
def test_it_ends_with_the_middle_and_is_made_anew_over_another(link: Scenario, how: str) -> None:
    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench)
        await relayed(left, mid, right)
        match how:
            case "killed":
                mid.kill()
            case "said goodbye":
                await mid.links.close_all("leaving")
            case _:
                mid.links.close(left.id, "too many links")
        for one, other in ((left, right), (right, left)):
            await one.events.until(lambda o=one, p=other: p.id not in o.events.up)
            causes = [entry[2] for entry in one.events.all("down") if entry[1] == other.id]
            assert causes
        other = await bench.node()
        other.links.dial([left.address], left.id)
        other.links.dial([right.address], right.id)
        await other.linked_to(left, right)
        await left.linked_to(other)
        await right.linked_to(other)
        await relayed(right, other, left)
        right.links.send(left.id, chunk(2))
        await left.events.until(lambda: left.events.messages)

    link(scenario)


def test_who_cannot_be_joined_is_told_why(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench)
        stranger = await bench.node()
        left.links.dial_via(stranger.id, mid.id)
        left.links.dial_via(stranger.id, right.id)
        await left.events.until(lambda: len(left.events.all("relay_failed")) == 2)
        reasons = {entry[2]: entry[3] for entry in left.events.all("relay_failed")}
        assert "no link to that node" in reasons[mid.id]
        assert "not linked directly" in reasons[right.id]
        # A relayed link carries no other one.
        await relayed(left, mid, right)
        right.links.dial([stranger.address], stranger.id)
        await right.linked_to(stranger)
        left.links.dial_via(stranger.id, right.id)
        await left.events.until(lambda: len(left.events.all("relay_failed")) == 3)
        assert "not linked directly" in left.events.all("relay_failed")[2][3]
        stranger.links.dial_via(left.id, right.id)
        await stranger.events.until(lambda: stranger.events.all("relay_failed"))
        assert "relayed" in stranger.events.all("relay_failed")[0][3]
        assert streams(mid) == 2
        assert streams(right) == 0

    link(scenario)


def test_a_peer_that_does_not_come_is_given_up(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench, with_config(handshake_timeout_s=0.1))
        right.go_silent()
        left.links.dial_via(right.id, mid.id)
        await left.events.until(lambda: left.events.all("relay_failed"))
        assert "has ended" in left.events.all("relay_failed")[0][3]
        await until_no_stream(mid)

    link(scenario)


def test_the_number_of_streams_is_bounded(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench, with_config(relay_streams_max=3))
        third = await bench.node()
        third.links.dial([mid.address], mid.id)
        await third.linked_to(mid)
        await mid.linked_to(third)
        await relayed(left, mid, right)
        third.links.dial_via(left.id, mid.id)
        await third.events.until(lambda: third.events.all("relay_failed"))
        assert "3 streams" in third.events.all("relay_failed")[0][3]
        left.links.send(right.id, chunk(1))
        await right.events.until(lambda: right.events.messages)

    link(scenario)


def test_what_waits_in_the_middle_is_bounded_and_control_is_not_held_up(link: Scenario) -> None:
    """The far end stops reading rows: the near end's lane becomes busy, heartbeats go on."""

    async def scenario(bench: Bench) -> None:
        config = with_config(relay_buffer_bytes=64 * 1024)
        left, mid, right = await line(bench, config)
        await relayed(left, mid, right)
        right.links._links[left.id].data._transport.pause_reading()
        sent = 0
        while not left.links.data_lane_busy(right.id):
            assert left.links.send(right.id, chunk(sent, 1 << 20))
            sent += 1
        for number in range(3):
            left.links.send(right.id, Heartbeat(bytes(8), Incarnation(number + 1)))
        await right.events.until(lambda: len(right.events.messages) == 3)
        for opened in mid.links._relays.middle._open.values():
            for half in opened.halves.values():
                assert half._transport.get_write_buffer_size() <= 128 * 1024
        right.links._links[left.id].data._transport.resume_reading()
        await right.events.until(lambda: len(right.events.messages) == 3 + sent)

    link(scenario)


def test_hostile_tickets_end_the_link_or_nothing(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench)
        await relayed(left, mid, right)
        mid_to_left = mid.links._links[left.id].control
        left_to_mid = left.links._links[mid.id].control
        for message in (
            RelayRefused(bytes(16), "nobody asked"),
            RelayOpen(b"short", right.id, Lane.DATA),
            RelayOpen(bytes(16), right.id, Lane.RELAY),
            RelayOpen(bytes(16), left.id, Lane.DATA),
        ):
            left_to_mid.send(message)
        left.links.send(right.id, chunk(1))
        await right.events.until(lambda: right.events.messages)
        assert mid.id in left.events.up
        assert right.id in left.events.up
        mid_to_left.send(RelayOffer(b"short", right.id, Lane.DATA))
        await left.events.until(lambda: mid.id not in left.events.up)
        reasons = {entry[1]: entry[2] for entry in left.events.all("down")}
        assert "ticket" in reasons[mid.id]
        await left.events.until(lambda: right.id not in left.events.up)
        assert {e[1]: e[2] for e in left.events.all("down")}[right.id] == LOST

    link(scenario)


# ---------------------------------------------------------------- the pure parts


def ticket(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_passages_are_counted_for_both_ends() -> None:
    passages = Passages(streams_max=3, per_peer_max=2)
    assert passages.begin(Passage(ticket(1), A, B, Lane.CONTROL)) is None
    assert "ticket" in str(passages.begin(Passage(ticket(1), A, C, Lane.CONTROL)))
    assert passages.begin(Passage(ticket(2), C, A, Lane.DATA)) is None
    assert "of one of the two" in str(passages.begin(Passage(ticket(3), A, D, Lane.DATA)))
    assert passages.begin(Passage(ticket(3), B, C, Lane.BULK)) is None
    assert "3 streams" in str(passages.begin(Passage(ticket(4), D, D, Lane.DATA)))
    assert [p.ticket for p in passages.through(A)] == [ticket(1), ticket(2)]
    passages.end(ticket(1))
    passages.end(ticket(1))
    assert len(passages) == 2
    assert passages.begin(Passage(ticket(4), A, D, Lane.DATA)) is None


def test_a_pace_makes_wait_for_what_is_beyond_it() -> None:
    pace = Pace(1000.0, now=0.0)
    assert pace.spent(50, 0.0) == 0.0
    assert pace.spent(100, 0.0) == pytest.approx(0.1)
    assert pace.spent(100, 0.1) == pytest.approx(0.1)
    assert pace.spent(10, 10.0) == 0.0


def test_the_pace_makes_senders_wait(link: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = 0
    usual = splice_io.Half._waited

    def waited(half: splice_io.Half) -> None:
        nonlocal waits
        waits += 1
        usual(half)

    monkeypatch.setattr(splice_io.Half, "_waited", waited)

    async def scenario(bench: Bench) -> None:
        left, mid, right = await line(bench, with_config(relay_bytes_s=16 << 20))
        await relayed(left, mid, right)
        for number in range(2):
            left.links.send(right.id, chunk(number, 1 << 20))
        await right.events.until(lambda: len(right.events.messages) == 2)
        assert waits

    link(scenario)
