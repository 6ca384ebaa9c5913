"""Peers that break the rules end their own link, with a reason, and harm nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Callable

import pytest
from hostile import Insider, close_writer, framed, read_frame, shake
from link_pair import (
    KEY,
    LOOPS,
    OTHER_KEY,
    Bench,
    LinkNode,
    raw_connection,
    run,
    with_config,
)

from swarm.link.handshake import Credentials, Handshake
from swarm.link.identity import Identity, SwarmKey
from swarm.messages import (
    CONTROL_FRAME_LIMIT,
    FileRequest,
    Heartbeat,
    Lane,
    ModelId,
    Ping,
    Step,
    encode,
)
from swarm.terms import Incarnation

HEARTBEAT = Heartbeat(state_hash=bytes(8), incarnation=Incarnation(1))
SEEDS = (900, 901, 902, 903)
"""Some give smaller node ids than the node under test has, some larger."""


def _garbage(peer: Insider) -> bytes:
    return os.urandom(200)


def _oversized(peer: Insider) -> bytes:
    return struct.pack(">I", CONTROL_FRAME_LIMIT + 17) + bytes(100)


def _huge(peer: Insider) -> bytes:
    return b"\xff\xff\xff\xff"


def _empty(peer: Insider) -> bytes:
    return bytes(4)


def _flipped(peer: Insider) -> bytes:
    frame = bytearray(peer.control.seal_message(HEARTBEAT))
    frame[-1] ^= 1
    return bytes(frame)


def _wrong_length(peer: Insider) -> bytes:
    frame = bytearray(peer.control.seal_message(HEARTBEAT) + bytes(8))
    frame[3] += 1
    return bytes(frame)


def _replayed(peer: Insider) -> bytes:
    return peer.control.seal_message(HEARTBEAT) * 2


def _reordered(peer: Insider) -> bytes:
    first, second = (peer.control.seal_message(HEARTBEAT) for _ in range(2))
    return second + first


def _dropped(peer: Insider) -> bytes:
    peer.control.seal_message(HEARTBEAT)
    return peer.control.seal_message(HEARTBEAT)


def _no_message(peer: Insider) -> bytes:
    return peer.control.seal(b"")


def _undecodable(peer: Insider) -> bytes:
    return peer.control.seal(struct.pack(">BH", Heartbeat.NUMBER, 4) + b"\xdd\xff\xff\xff")


def _nested(peer: Insider) -> bytes:
    return peer.control.seal(struct.pack(">BH", Heartbeat.NUMBER, 4000) + b"\x91" * 4000)


def _wrong_shape(peer: Insider) -> bytes:
    return peer.control.seal(struct.pack(">BH", Heartbeat.NUMBER, 3) + b"\x92\x01\x02")


def _cut_head(peer: Insider) -> bytes:
    return peer.control.seal(struct.pack(">BH", Heartbeat.NUMBER, 30) + b"\x90")


def _payload_where_none_belongs(peer: Insider) -> bytes:
    return peer.control.seal(*encode(HEARTBEAT), b"extra")


def _wrong_lane(peer: Insider) -> bytes:
    return peer.control.seal(struct.pack(">BH", Step.NUMBER, 1) + b"\x90")


def _from_the_other_direction(peer: Insider) -> bytes:
    """What the node itself has sealed does not open when sent back."""
    return peer.data.seal_message(HEARTBEAT)


ATTACKS: list[Callable[[Insider], bytes]] = [
    _garbage, _oversized, _huge, _empty, _flipped, _wrong_length, _replayed, _reordered, _dropped,
    _no_message, _undecodable, _nested, _wrong_shape, _cut_head, _payload_where_none_belongs,
    _wrong_lane, _from_the_other_direction,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__.strip("_"))
@pytest.mark.parametrize("loop", LOOPS)
def test_a_bad_frame_ends_its_link_only(loop: str, attack: Callable[[Insider], bytes]) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        peer = await Insider.join(pair.left.address, KEY, SEEDS[0])
        await pair.left.events.until(lambda: len(pair.left.events.up) == 2)
        peer.control.writer.write(attack(peer))
        await pair.left.events.until(lambda: pair.left.events.all("down"))
        await peer.control.closed()
        await peer.data.closed()
        _, _, cause, orderly = pair.left.events.all("down")[0]
        assert not orderly
        assert cause
        assert pair.left.events.noted("link.down")[0].get("cause") == cause
        await peer.close()
        await _still_serves(pair.left, pair.right)

    run(loop, "tcp", scenario)


async def _still_serves(left: LinkNode, right: LinkNode) -> None:
    before = len(right.events.messages)
    assert left.links.send(right.id, HEARTBEAT)
    await right.events.until(lambda: len(right.events.messages) > before)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_truncated_frame_ends_its_link(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        pair = await bench.pair()
        for seed in SEEDS:
            peer = await Insider.join(pair.left.address, KEY, seed)
            await pair.left.events.until(lambda: len(pair.left.events.up) == 2)
            peer.data.writer.write(peer.data.seal(bytes(5000))[:-1])
            await peer.data.writer.drain()
            await peer.close()
            await pair.left.events.until(lambda: len(pair.left.events.up) == 1)
        await _still_serves(pair.left, pair.right)

    run(loop, "tcp", scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_unknown_message_numbers_are_skipped(loop: str) -> None:
    """A newer peer may know more than we do."""

    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        peer = await Insider.join(node.address, KEY, SEEDS[1])
        await node.events.until(lambda: node.events.up)
        unknown = peer.control.seal(struct.pack(">BH", 250, 0) + b"whatever")
        worker_only = peer.control.seal(struct.pack(">BH", 106, 1) + b"\x90")
        known = peer.control.seal_message(HEARTBEAT)
        peer.control.writer.write(unknown + worker_only + known)
        await node.events.until(lambda: node.events.messages)
        assert len(node.events.messages) == 1
        await peer.close()

    run(loop, "tcp", scenario)


def _credentials(seed: int = 900, key: SwarmKey = KEY) -> Credentials:
    return Credentials(Identity(seed.to_bytes(32, "big")), key, Incarnation(1))


def _hello(key: SwarmKey) -> bytes:
    return framed(Handshake.dialler(_credentials(key=key), os.urandom, Lane.CONTROL).start())


OPENINGS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "http": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
    "ones": lambda: b"\xff" * 64,
    "empty": lambda: framed(b""),
    "zeros": lambda: framed(bytes(48)),
    "largest": lambda: framed(bytes(1024)),
    "too large": lambda: framed(bytes(1025)),
    "half a hello": lambda: _hello(KEY)[:-1],
    "without the key": lambda: _hello(OTHER_KEY),
}


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("loop", LOOPS)
def test_strangers_get_no_answer(loop: str, opening: str) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        async with raw_connection(node.address) as (reader, writer):
            writer.write(OPENINGS[opening]())
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        await node.events.until(lambda: node.events.noted("link.refused"))
        assert not node.events.log

    run(loop, "tcp", scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_repeated_first_message_gets_no_answer(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        hello = framed(Handshake.dialler(_credentials(), os.urandom, Lane.CONTROL).start())
        async with raw_connection(node.address) as (reader, writer):
            writer.write(hello)
            assert await read_frame(reader)
        async with raw_connection(node.address) as (reader, writer):
            writer.write(hello)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        await node.events.until(lambda: node.events.noted("link.refused"))
        assert "repeated" in str(node.events.noted("link.refused")[-1].get("cause"))

    run(loop, "tcp", scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_data_lane_needs_the_binding_of_its_control_lane(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node(with_config(handshake_timeout_s=0.3))
        control = await shake(node.address, _credentials(), Lane.CONTROL, b"")
        alien = await shake(node.address, _credentials(901), Lane.DATA, control.found.binding)
        wrong = await shake(node.address, _credentials(), Lane.DATA, bytes(32))
        none = await shake(node.address, _credentials(), Lane.DATA, b"")
        right = await shake(node.address, _credentials(), Lane.DATA, control.found.binding)
        control.writer.write(control.seal_message(Ping(1)))
        await node.events.until(lambda: node.events.up)
        for lane in (alien, wrong, none):
            await lane.closed()
        assert len(node.events.log) == 1
        for lane in (control, alien, wrong, none, right):
            await close_writer(lane.writer)

    run(loop, "tcp", scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_control_lane_alone_is_no_link_and_is_given_up(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        node = await bench.node(with_config(handshake_timeout_s=0.1))
        control = await shake(node.address, _credentials(), Lane.CONTROL, b"")
        control.writer.write(control.seal_message(HEARTBEAT))
        await control.closed()
        assert not node.events.log
        assert not node.events.messages
        await close_writer(control.writer)

    run(loop, "tcp", scenario)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loop", LOOPS)
def test_messages_before_the_data_lane_wait_for_the_link(loop: str, seed: int) -> None:
    """Whichever side settles, nothing is lost or delivered before `link_up`."""

    async def scenario(bench: Bench) -> None:
        node = await bench.node()
        credentials = _credentials(seed)
        control = await shake(node.address, credentials, Lane.CONTROL, b"")
        request = FileRequest(ModelId("0" * 32), "f", 0)
        control.writer.write(b"".join(control.seal_message(m) for m in (Ping(1), HEARTBEAT)))
        control.writer.write(control.seal_message(request))
        await control.writer.drain()
        data = await shake(node.address, credentials, Lane.DATA, control.found.binding)
        await node.events.until(lambda: len(node.events.messages) == 2)
        assert [message for _, message in node.events.messages] == [HEARTBEAT, request]
        for lane in (control, data):
            await close_writer(lane.writer)

    run(loop, "tcp", scenario)


def test_a_peer_that_answers_nothing_fails_the_dial() -> None:
    async def scenario(bench: Bench) -> None:
        heard_out = asyncio.Event()

        async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await close_writer(writer)
            heard_out.set()

        node = await bench.node(with_config(handshake_timeout_s=0.1))
        server = await asyncio.start_server(silence, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        node.links.dial([type(node.address)(host, port)], None)
        await node.events.until(lambda: node.events.all("dial_failed"))
        assert "too long" in node.events.all("dial_failed")[0][2]
        await heard_out.wait()
        server.close()
        await server.wait_closed()

    run("asyncio", "tcp", scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_listener_that_talks_nonsense_fails_the_dial(loop: str) -> None:
    async def scenario(bench: Bench) -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            await close_writer(writer)

        node = await bench.node()
        server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        node.links.dial([type(node.address)(host, port)], None)
        await node.events.until(lambda: node.events.all("dial_failed"))
        assert "claims" in node.events.all("dial_failed")[0][2]
        server.close()
        await server.wait_closed()

    run(loop, "tcp", scenario)
