"""What every kind of link must do, on every loop that the node runs on."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from link_pair import (
    CONFIG,
    LOOPS,
    LOOPS_AND_KINDS,
    OTHER_KEY,
    Bench,
    Build,
    raw_connection,
    run,
    with_config,
)

from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.link.handshake import ProtocolRange
from swarm.link.link_io import ALREADY_LINKED, SELF_DIALLED, LinkStats
from swarm.messages import FileChunk, FileRequest, Heartbeat, Message, ModelId, Suspicion
from swarm.notes import Level
from swarm.terms import Address, Incarnation, NodeId, short

MODEL = ModelId("0" * 32)
Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=LOOPS_AND_KINDS)
def link(request: pytest.FixtureRequest) -> Scenario:
    loop, kind = request.param
    return lambda scenario: run(loop, kind, scenario)


@pytest.fixture(params=LOOPS)
def direct(request: pytest.FixtureRequest) -> Scenario:
    """For what is about addresses and strangers: relayed links are between members."""
    return lambda scenario: run(request.param, "tcp", scenario)


def control(number: int) -> Heartbeat:
    return Heartbeat(state_hash=bytes(8), incarnation=Incarnation(number))


def data(number: int, size: int) -> FileChunk:
    return FileChunk(MODEL, "f", number, size, bytes([number % 256]) * size)


def test_up_and_both_lanes_in_order(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        for number in range(300):
            assert pair.left.links.send(pair.right.id, control(number))
            assert pair.left.links.send(pair.right.id, data(number, 1 + number * 50))
            assert pair.right.links.send(pair.left.id, control(number))
        await pair.right.events.until(lambda: len(pair.right.events.messages) == 600)
        await pair.left.events.until(lambda: len(pair.left.events.messages) == 300)
        got = [message for _, message in pair.right.events.messages]
        assert [m for m in got if isinstance(m, Heartbeat)] == [control(n) for n in range(300)]
        chunks = [m for m in got if isinstance(m, FileChunk)]
        assert chunks == [data(n, 1 + n * 50) for n in range(300)]

    link(scenario)


def test_who_the_peer_is(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(Build(incarnation=7), None)
        seen_by_right = pair.right.events.up[pair.left.id]
        assert seen_by_right.public_key == pair.left.identity.public_key
        assert seen_by_right.incarnation == 7
        is_direct = seen_by_right.via is None
        nowhere = Address("", 0)
        assert seen_by_right.address == (pair.left.address if is_direct else nowhere)
        assert seen_by_right.via == (bench.hub.id if bench.hub else None)
        assert not seen_by_right.dialled
        seen_by_left = pair.left.events.up[pair.right.id]
        assert seen_by_left.address == (pair.right.address if is_direct else nowhere)
        assert seen_by_left.via == seen_by_right.via
        assert seen_by_left.dialled
        assert pair.left.links.peers() == (seen_by_left,)
        assert pair.right.links.peers() == (seen_by_right,)

    link(scenario)


@pytest.mark.parametrize("aes", [(True, True), (True, False), (False, False)])
def test_every_pairing_of_ciphers(link: Scenario, aes: tuple[bool, bool]) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(Build(aes=aes[0]), Build(aes=aes[1]))
        pair.left.links.send(pair.right.id, data(1, 100_000))
        await pair.right.events.until(lambda: pair.right.events.messages)
        assert pair.right.events.messages == [(pair.left.id, data(1, 100_000))]

    link(scenario)


def test_payload_of_8_mib(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        big = data(3, 8 * 1024 * 1024)
        for _ in range(3):
            assert pair.left.links.send(pair.right.id, big)
            assert pair.left.links.send(pair.right.id, control(1))
        await pair.right.events.until(lambda: len(pair.right.events.messages) == 6)
        assert sum(message == big for _, message in pair.right.events.messages) == 3

    link(scenario)


def test_a_message_over_the_limit_is_our_own_bug(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        with pytest.raises(LocalProtocolError):
            pair.left.links.send(pair.right.id, data(3, 8 * 1024 * 1024 + 1))
        pair.left.links.send(pair.right.id, control(1))
        await pair.right.events.until(lambda: pair.right.events.messages)

    link(scenario)


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_simultaneous_dials_resolve_to_one_link(link: Scenario, rounds: int) -> None:
    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        count = rounds // 6 if bench.kind == "webrtc" and rounds > 15 else rounds
        for index in range(count):
            left.links.dial([right.address], right.id)
            for _ in range(index % 12):
                await asyncio.sleep(0)
            right.links.dial([left.address], left.id if index % 2 else None)
            await left.linked_to(right)
            await right.linked_to(left)
            left.links.send(right.id, control(index))
            right.links.send(left.id, control(index))
            await left.events.until(lambda n=index: len(left.events.messages) == n + 1)
            await right.events.until(lambda n=index: len(right.events.messages) == n + 1)
            left.links.close(right.id, "next round")
            await left.events.until(lambda: not left.events.up)
            await right.events.until(lambda: not right.events.up)
        # One link a round: never a second up, never a loss that was not asked for.
        for node in (left, right):
            assert len(node.events.all("up")) == count
            assert all(down[3] for down in node.events.all("down"))

    link(scenario)


def test_dialling_a_linked_node_changes_nothing(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        for one, other in ((pair.left, pair.right), (pair.right, pair.left)):
            one.links.dial([other.address], None)
            await one.events.until(lambda one=one: one.events.all("dial_failed"))
            assert ALREADY_LINKED in one.events.all("dial_failed")[0][2]
        assert not pair.left.events.all("down")
        assert not pair.right.events.all("down")

    link(scenario)


def test_a_dial_tries_all_addresses_and_takes_one(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            nobody = Address("127.0.0.1", silent.getsockname()[1])
            bad = [Address("127.0.0.1", 1), Address("127.0.0.1", 70000), Address("no\0host", 1)]
            left.links.dial([nobody, *bad, right.address], right.id)
            await left.linked_to(right)
            await right.linked_to(left)
        assert not left.events.all("dial_failed")

    direct(scenario)


def test_a_dial_that_fails_says_why_once(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left = await bench.node()
        left.links.dial([Address("127.0.0.1", 1), Address("127.0.0.1", 70000)], None)
        left.links.dial([], None)
        await left.events.until(lambda: len(left.events.all("dial_failed")) == 2)
        reasons = sorted(entry[2] for entry in left.events.all("dial_failed"))
        assert "127.0.0.1:1" in reasons[0]
        assert "refused" in reasons[0]
        assert reasons[1] == "no address to dial"

    direct(scenario)


def test_another_node_at_the_address_is_a_link_but_not_the_one_wanted(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left, right, wanted = [await bench.node() for _ in range(3)]
        left.links.dial([right.address], wanted.id)
        await left.linked_to(right)
        await left.events.until(lambda: left.events.all("dial_failed"))
        assert left.events.all("dial_failed")[0][1] == wanted.id
        assert "another node" in left.events.all("dial_failed")[0][2]

    direct(scenario)


def test_dialling_oneself_is_refused_quietly(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        node.links.dial([node.address], None)
        await node.events.until(lambda: node.events.all("dial_failed"))
        assert SELF_DIALLED in node.events.all("dial_failed")[0][2]
        assert not node.events.all("up")
        assert not node.events.notes
        # Its own address among others does no harm.
        node.links.dial([node.address, other.address], None)
        await node.linked_to(other)

    direct(scenario)


def test_a_stranger_without_the_key_is_dropped(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        inside, stranger = await bench.node(), await bench.node(Build(key=OTHER_KEY))
        stranger.links.dial([inside.address], None)
        await stranger.events.until(lambda: stranger.events.all("dial_failed"))
        await inside.events.until(lambda: inside.events.noted("link.refused"))
        assert "key of this swarm" in str(inside.events.noted("link.refused")[0].get("cause"))
        assert not inside.events.log
        assert not inside.links.peers()

    direct(scenario)


def test_version_skew_names_both_ranges_on_both_sides(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        old = await bench.node(Build(protocol=ProtocolRange(1, 2)))
        new = await bench.node(Build(protocol=ProtocolRange(3, 4)))
        old.links.dial([new.address], None)
        await old.events.until(lambda: old.events.all("dial_failed"))
        assert "peer speaks protocol 3-4, we speak 1-2" in old.events.all("dial_failed")[0][2]
        await new.events.until(lambda: new.events.noted("link.refused"))
        cause = new.events.noted("link.refused")[0].get("cause")
        assert cause == "peer speaks protocol 1-2, we speak 3-4"

    direct(scenario)


def test_overlapping_versions_use_the_highest_both_know(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(
            Build(protocol=ProtocolRange(1, 3)), Build(protocol=ProtocolRange(2, 5))
        )
        assert pair.left.events.up[pair.right.id].protocol == 3
        assert pair.right.events.up[pair.left.id].protocol == 3

    link(scenario)


def test_a_raised_incarnation_is_told_to_new_peers_and_ends_no_link(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        third = await bench.node()
        pair.left.links.set_incarnation(Incarnation(5))
        pair.left.links.dial([third.address], third.id)
        await third.linked_to(pair.left)
        assert third.events.up[pair.left.id].incarnation == 5
        assert pair.right.events.up[pair.left.id].incarnation == 1
        assert not pair.right.events.all("down")

    link(scenario)


def test_goodbye_is_orderly_on_both_sides(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        pair.left.links.close(pair.right.id, "leaving\nnow")
        assert not pair.left.links.send(pair.right.id, control(1))
        assert not pair.left.events.all("down"), "events never come from inside a call"
        await pair.left.events.until(lambda: pair.left.events.all("down"))
        await pair.right.events.until(lambda: pair.right.events.all("down"))
        assert pair.left.events.all("down") == [("down", pair.right.id, "leaving\nnow", True)]
        assert pair.right.events.all("down") == [("down", pair.left.id, "leaving now", True)]
        assert pair.left.links.peers() == ()
        assert pair.left.links.stats(pair.right.id) is None
        assert pair.left.links.data_lane_busy(pair.right.id)

    link(scenario)


def test_a_message_that_the_node_rejects_closes_the_link_with_its_reason(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()

        def reject(*_: object) -> None:
            raise RemoteProtocolError("nonsense about a record")

        pair.right.events.on_message = reject
        pair.left.links.send(pair.right.id, control(1))
        await pair.right.events.until(lambda: pair.right.events.all("down"))
        assert pair.right.events.all("down")[0][2:] == ("nonsense about a record", False)
        await pair.left.events.until(lambda: pair.left.events.all("down"))
        assert not pair.left.events.all("down")[0][3]

    link(scenario)


def test_a_fault_of_the_node_costs_one_link_and_is_told_once(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        third = await bench.node()
        pair.right.links.dial([third.address], third.id)
        await pair.right.linked_to(third)
        healthy = pair.right.events

        def stumble(peer: NodeId, _: Message) -> None:
            if peer == pair.left.id:
                raise IndexError("list \x1b[2Jindex")

        healthy.on_message, healthy.faults_expected = stumble, 1
        for number in range(1, 4):
            pair.left.links.send(pair.right.id, control(number))
        await healthy.until(lambda: healthy.all("down"))
        assert healthy.all("down")[0][1:] == (
            pair.left.id, "a fault of this node: IndexError", False,
        )  # fmt: skip
        await pair.left.events.until(lambda: pair.left.events.all("down"))
        (told,) = healthy.noted("link.fault")
        assert told.level is Level.ERROR
        assert told.get("peer") == short(pair.left.id)
        assert told.get("error") == "IndexError: list  [2Jindex"
        assert str(told.get("where")).startswith("test_link_conformance.py:")
        before = len(healthy.messages)
        third.links.send(pair.right.id, control(9))
        await healthy.until(lambda: len(healthy.messages) > before)
        pair.left.links.dial([pair.right.address], pair.right.id)
        await pair.left.linked_to(pair.right)

    link(scenario)


@pytest.mark.parametrize("event", ["heard", "link_up", "link_down"])
def test_a_fault_in_any_event_leaves_no_connection_behind(link: Scenario, event: str) -> None:
    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        usual = getattr(right.events, event)

        def stumble(*arguments: Any) -> None:
            was_passing = right.events.passes_over(left.id)
            usual(*arguments)
            is_passing = was_passing or right.events.passes_over(left.id)
            if getattr(arguments[0], "node", arguments[0]) == left.id and not is_passing:
                raise KeyError(event)

        setattr(right.events, event, stumble)
        right.events.faults_expected = 1
        left.links.dial([right.address], right.id)
        if event == "link_down":
            await left.linked_to(right)
            await right.linked_to(left)
            left.links.close(right.id, "enough")
        await right.events.until(lambda: right.events.noted("link.fault"))
        await right.events.until(lambda: right.events.all("down"))
        setattr(right.events, event, usual)
        left.links.close(right.id, "enough")
        await left.events.until(lambda: not left.events.up)
        left.links.dial([right.address], right.id)
        await left.linked_to(right)
        await right.linked_to(left)

    link(scenario)


def test_calls_from_inside_events_are_safe(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()

        def close_at_third(peer: str, _: object) -> None:
            if len(pair.right.events.messages) == 3:
                pair.right.links.close(pair.left.id, "three is enough")

        pair.right.events.on_message = close_at_third
        for number in range(10):
            pair.left.links.send(pair.right.id, control(number))
        await pair.left.events.until(lambda: pair.left.events.all("down"))
        await pair.right.events.until(lambda: pair.right.events.all("down"))
        assert len(pair.right.events.messages) == 3
        assert pair.left.events.all("down")[0][3]

    link(scenario)


def test_idle_connections_block_nobody(direct: Scenario) -> None:
    """One idle connection must not keep the next from being served."""

    async def scenario(bench: Bench) -> None:
        left, right = await bench.node(), await bench.node()
        async with raw_connection(right.address), raw_connection(right.address):
            left.links.dial([right.address], right.id)
            await left.linked_to(right)
            await right.linked_to(left)

    direct(scenario)


def test_a_flood_of_idle_connections_blocks_nobody(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        left = await bench.node()
        right = await bench.node(with_config(handshakes_half_open_max=4))
        idle = [await asyncio.open_connection(*_pair(right.address)) for _ in range(12)]
        left.links.dial([right.address], right.id)
        await left.linked_to(right)
        await right.linked_to(left)
        for _, writer in idle:
            writer.close()

    direct(scenario)


def test_an_unfinished_handshake_is_given_up(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node(with_config(handshake_timeout_s=0.05))
        async with raw_connection(node.address) as (reader, _):
            assert await reader.read() == b""
        await node.events.until(lambda: node.events.noted("link.refused"))
        assert "too long" in str(node.events.noted("link.refused")[0].get("cause"))

    direct(scenario)


def test_a_flood_of_hostile_handshakes_is_cut_and_the_log_stays_short(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node(with_config(handshakes_per_second=20))
        for _ in range(100):
            async with raw_connection(node.address) as (reader, writer):
                writer.write(b"\0\0\0\x30" + bytes(48))
                try:
                    assert await reader.read() == b""
                except ConnectionError:
                    continue
        assert len(node.events.noted("link.refused")) <= 30
        assert not node.events.log

    direct(scenario)


def test_a_reader_that_stops_makes_the_lane_busy_and_then_breaks_the_link(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        config = with_config(send_buffer_bytes=1 << 18, send_buffer_limit_bytes=8 << 20)
        pair = await bench.pair(config, None)
        other = await bench.node()
        pair.left.links.dial([other.address], other.id)
        await pair.left.linked_to(other)
        _stop_reading(pair.right.links, pair.left.id)
        sent = 0
        while pair.left.links.send(pair.right.id, data(1, 1 << 20)):
            sent += 1
        assert pair.left.links.data_lane_busy(pair.right.id)
        assert not pair.left.links.data_lane_busy(other.id), "a slow peer slows nobody else"
        assert 7 <= sent < 32, "eight, less what frames add, where no socket takes any"
        await pair.left.events.until(lambda: pair.left.events.all("down"))
        assert "does not read" in pair.left.events.all("down")[0][2]
        await pair.right.events.until(lambda: pair.right.events.all("down"))
        pair.left.links.send(other.id, data(1, 1 << 20))
        await other.events.until(lambda: other.events.messages)

    link(scenario)


def test_a_busy_lane_becomes_writable_again(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair(with_config(send_buffer_bytes=1 << 18), None)
        sent = 0
        while not pair.left.links.data_lane_busy(pair.right.id):
            assert pair.left.links.send(pair.right.id, data(1, 1 << 20))
            sent += 1
        await pair.left.events.until(lambda: pair.left.events.all("writable"))
        assert not pair.left.links.data_lane_busy(pair.right.id)
        await pair.right.events.until(lambda: len(pair.right.events.messages) == sent)

    link(scenario)


def test_round_trip_and_goodput_are_measured(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        config = dataclasses.replace(
            CONFIG, goodput_probe_bytes=65536, ping_interval_s=0.01, goodput_probe_interval_s=0.02
        )
        pair = await bench.pair(Build(config=config), Build(config=config))

        for one, other in ((pair.left, pair.right), (pair.right, pair.left)):
            # Each byte that arrives wakes the waiter; both figures need some round trips.
            await one.events.until(
                lambda one=one, other=other: _measured(one.links.stats(other.id))
            )
        stats = pair.left.links.stats(pair.right.id)
        assert 0 < stats.rtt_s < 5
        assert stats.bytes_out > 65536
        assert stats.bytes_in > 65536
        assert pair.left.events.heard_count > 0
        assert not pair.left.events.messages, "link upkeep is not for the node"

    link(scenario)


def test_the_end_of_a_peer_is_known_at_once(link: Scenario) -> None:
    """A killed process closes its sockets without a word: both lanes go together."""

    async def scenario(bench: Bench) -> None:
        for lane in (0, 1):
            pair = await bench.pair()
            _break_lane(pair.right.links, pair.left.id, lane)
            await pair.left.events.until(lambda pair=pair: pair.left.events.all("down"))
            for node in (pair.left, pair.right):
                assert not node.events.noted("link.refused"), "one loss is told once"
                assert not node.events.noted("link.dial_failed")
            assert not pair.left.events.all("down")[0][3]
            await pair.right.events.until(lambda pair=pair: pair.right.events.all("down"))

    link(scenario)


def test_many_nodes_form_a_full_mesh(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        nodes = [await bench.node() for _ in range(6)]
        for node in nodes:
            for other in nodes:
                node.links.dial([other.address], None)
        for node in nodes:
            await node.linked_to(*(other for other in nodes if other is not node))
        for node in nodes:
            assert len(node.events.all("up")) == 5
            assert not node.events.all("down")
            for other in nodes:
                sent = node.links.send(other.id, Suspicion(other.id, Incarnation(1), node.id))
                assert sent == (other is not node)
        for node in nodes:
            await node.events.until(lambda node=node: len(node.events.messages) == 5)

    link(scenario)


def test_the_number_of_links_is_bounded(direct: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        small = await bench.node(with_config(links_max=2))
        others = [await bench.node() for _ in range(3)]
        for other in others[:2]:
            other.links.dial([small.address], small.id)
            await other.linked_to(small)
        others[2].links.dial([small.address], small.id)
        await others[2].events.until(lambda: others[2].events.all("dial_failed"))
        assert "2 links" in others[2].events.all("dial_failed")[0][2]
        assert len(small.links.peers()) == 2

    direct(scenario)


def test_requests_and_answers_cross(link: Scenario) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()

        def answer(peer: str, message: object) -> None:
            assert isinstance(message, FileRequest)
            pair.right.links.send(pair.left.id, data(message.offset, 1000))

        pair.right.events.on_message = answer
        for number in range(50):
            pair.left.links.send(pair.right.id, FileRequest(MODEL, "f", number))
        await pair.left.events.until(lambda: len(pair.left.events.messages) == 50)
        expected = [(pair.right.id, data(number, 1000)) for number in range(50)]
        assert pair.left.events.messages == expected

    link(scenario)


def _pair(address: Address) -> tuple[str, int]:
    return address.host, address.port


def _measured(stats: LinkStats | None) -> bool:
    return stats is not None and stats.rtt_s is not None and stats.goodput_bytes_s is not None


def _stop_reading(links: object, peer: str) -> None:
    """What a wedged process does: its sockets stay open and nothing is read."""
    links._links[peer].data._transport.pause_reading()  # type: ignore[attr-defined]


def _break_lane(links: object, peer: str, lane: int) -> None:
    link = links._links[peer]  # type: ignore[attr-defined]
    (link.control, link.data)[lane]._transport.abort()


@pytest.mark.parametrize("loop", LOOPS)
def test_listening_everywhere_is_one_port_of_both_families(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        everywhere = await node.links.listen("::", 0)
        for host in ("127.0.0.1", "::1"):
            other.links.dial([Address(host, everywhere.port)], node.id)
            await other.linked_to(node)
            await node.linked_to(other)
            other.links.close(node.id, "next")
            await node.events.until(lambda: not node.events.up)
            await other.events.until(lambda: not other.events.up)
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
            await node.links.listen("::", taken.getsockname()[1])

    run(loop, "tcp", scenario)
