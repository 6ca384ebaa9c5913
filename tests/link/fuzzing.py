"""Hostile input for links: damaged frames, sealed nonsense, handshakes that must not succeed."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from hostile import Insider, RawLane, framed, read_frame
from link_pair import KEY, OTHER_KEY, raw_connection

from swarm.errors import RemoteProtocolError
from swarm.link.frames import FRAME_LIMITS, FrameBuffer, Opener, Sealer
from swarm.link.handshake import Credentials, Handshake, ProtocolRange
from swarm.link.identity import Identity
from swarm.link.noise import TAG_BYTES, Cipher
from swarm.messages import (
    PEER_MESSAGES,
    Credit,
    Digest,
    DigestEntry,
    FileChunk,
    Gap,
    Heartbeat,
    Holding,
    HopTimes,
    Lane,
    Message,
    PieceRequest,
    PieceSlice,
    Ping,
    Progress,
    Receipt,
    RecordKind,
    Records,
    RelayLeg,
    RelayOffer,
    RelayOpen,
    RelayRefused,
    RowType,
    SessionProgress,
    SignedRecord,
    Step,
    StepKind,
    Suspicion,
    decode,
    encode,
)
from swarm.terms import Address, Epoch, Incarnation, ModelId, NodeId, SessionId, StepTimes

SESSION, EPOCH = SessionId("0" * 16), Epoch(1)
SAMPLES: tuple[Message, ...] = (
    Ping(1),
    Heartbeat(bytes(8), Incarnation(1)),
    Records((SignedRecord(bytes(32), RecordKind.STATIC, Incarnation(1), 1, bytes(90), bytes(64)),)),
    Digest((DigestEntry(NodeId("a" * 32), RecordKind.DYNAMIC, Incarnation(1), 7),), reply=True),
    Suspicion(NodeId("a" * 32), Incarnation(1), NodeId("b" * 32)),
    Credit(SESSION, EPOCH, 5),
    Gap(SESSION, EPOCH, 5, 3),
    Progress((SessionProgress(SESSION, 5, 1),)),
    Receipt(b"k" * 32, ModelId("0" * 32), 20_000, 5, b"s" * 64),
    HopTimes(SESSION, EPOCH, StepTimes(5, 0.2, 0.1), StepTimes(3, 0.1, 0.1)),
    Step(SESSION, EPOCH, 0, 2, StepKind.DECODE, RowType.IDS, bytes(8)),
    FileChunk(ModelId("0" * 32), "config.json", 0, 100, bytes(100)),
    Holding(ModelId("0" * 32), bytes(40)),
    PieceRequest(ModelId("0" * 32), 7, 1),
    PieceSlice(ModelId("0" * 32), 7, 1, 0, bytes(100)),
    RelayOpen(bytes(16), NodeId("a" * 32), Lane.DATA),
    RelayOffer(bytes(16), NodeId("a" * 32), Lane.BULK),
    RelayRefused(bytes(16), "no"),
    RelayLeg(bytes(16)),
)


def damage(rng: random.Random, raw: bytes) -> bytes:
    """The same bytes with one or two things wrong; never equal to what they were."""
    damaged = raw
    while damaged == raw:
        for _ in range(rng.choice((1, 1, 2))):
            damaged = _damage_once(rng, damaged)
    return damaged


def _damage_once(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    some = rng.randbytes(rng.choice((1, 1, 2, 4, 16, 200)))
    match rng.randrange(6):
        case 0 if raw:
            at = rng.randrange(len(raw))
            return raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :]
        case 1:
            return raw[:at] + some + raw[at:]
        case 2:
            return raw[:at] + some + raw[at + len(some) :]
        case 3:
            return raw[:at]
        case 4:
            return raw[:at] + raw[at + len(some) :]
        case _:
            return rng.choice((b"\xff\xff\xff\xff", bytes(4), some)) + raw[rng.randrange(5) :]


class FrameFuzzer:
    """Frames in memory, through the very buffer, opener and decoder of a connection."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.opened_falsely = 0
        self.refused = 0
        self.incomplete = 0
        self.decoded = 0

    def damaged(self, cipher: Cipher) -> None:
        """One good frame, damaged on its way. Nothing at all may come out of it."""
        rng = self._rng
        key = rng.randbytes(32)
        message = rng.choice(SAMPLES)
        frame = b"".join(Sealer(cipher, key, message.LANE, 0).seal(encode(message)))
        self._feed(damage(rng, frame), Opener(cipher, key, 0), message.LANE, frame)

    def _feed(self, stream: bytes, opener: Opener, lane: Lane, original: bytes) -> None:
        buffer = FrameBuffer(FRAME_LIMITS[lane] + TAG_BYTES)
        rest = memoryview(stream)
        while rest:  # as a socket gives it: as much as there is room for
            space = buffer.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            buffer.filled(count)
            rest = rest[count:]
        # The damage may all come after a frame that is whole: that one rightly opens.
        if stream.startswith(original):
            opener.open(buffer.next_body() or memoryview(b""))
        try:
            body = buffer.next_body()
            if body is None:
                self.incomplete += 1
                return
            opener.open(body)
        except RemoteProtocolError:
            self.refused += 1
            return
        self.opened_falsely += 1

    def nonsense(self) -> None:
        """What a member may seal: any bytes. The decoder gives a message, nothing, or refuses."""
        message = self._rng.choice(SAMPLES)
        plaintext = damage(self._rng, b"".join(encode(message)))
        try:
            decode(plaintext, PEER_MESSAGES, message.LANE)
        except RemoteProtocolError:
            self.refused += 1
            return
        self.decoded += 1


async def damage_a_live_link(rng: random.Random, address: Address, seed: int) -> int:
    """A member joins, says something proper, then damaged frames, until it is cut off.

    Returns the number of damaged frames that were sent.
    """
    peer = await Insider.join(address, KEY, seed)
    try:
        lane = peer.lane(rng.choice(tuple(Lane)))
        lane.writer.write(lane.seal_message(rng.choice(_of_lane(lane))))
        frames = [damage(rng, lane.seal_message(rng.choice(_of_lane(lane)))) for _ in range(4)]
        with contextlib.suppress(ConnectionError):
            for frame in frames:
                lane.writer.write(frame)
            # A frame cut short is only known to be so once the stream ends.
            lane.writer.write_eof()
            await lane.writer.drain()
        await peer.control.closed()
        await peer.data.closed()
    finally:
        await peer.close()
    return len(frames)


def _of_lane(lane: RawLane) -> tuple[Message, ...]:
    return tuple(message for message in SAMPLES if message.LANE is lane.found.lane)


Attack = Callable[[random.Random, Address], Awaitable[None]]


def _member(rng: random.Random) -> Credentials:
    return Credentials(Identity(rng.randbytes(32)), KEY, Incarnation(1))


def _hello(credentials: Credentials) -> bytes:
    return framed(Handshake.dialler(credentials, os.urandom, Lane.CONTROL).start())


async def _say(address: Address, opening: bytes, *, hang_up: bool = True) -> None:
    async with raw_connection(address) as (reader, writer):
        writer.write(opening)
        with contextlib.suppress(ConnectionError, OSError):
            if hang_up:
                writer.write_eof()
            while await reader.read(65536):
                pass


async def stranger(rng: random.Random, address: Address) -> None:
    await _say(address, _hello(replace(_member(rng), swarm_key=OTHER_KEY)), hang_up=False)


async def garbage(rng: random.Random, address: Address) -> None:
    await _say(address, rng.randbytes(rng.choice((1, 3, 4, 64, 600, 5000))))


async def damaged_hello(rng: random.Random, address: Address) -> None:
    await _say(address, damage(rng, _hello(_member(rng))))


async def repeated_hello(rng: random.Random, address: Address) -> None:
    hello = _hello(_member(rng))
    await _say(address, hello)
    await _say(address, hello, hang_up=False)


async def version_skew(rng: random.Random, address: Address) -> None:
    alien = replace(_member(rng), protocol=ProtocolRange(70, 80))
    await _say(address, _hello(alien), hang_up=False)


async def damaged_proof(rng: random.Random, address: Address) -> None:
    """A member up to the last message, which is damaged, or somebody else's."""
    async with raw_connection(address) as (reader, writer):
        with contextlib.suppress(ConnectionError, OSError, EOFError):
            handshake = Handshake.dialler(_member(rng), os.urandom, Lane.CONTROL)
            writer.write(framed(handshake.start()))
            reply = handshake.receive(await read_frame(reader))
            assert reply.answer is not None
            writer.write(damage(rng, framed(reply.answer)))
            writer.write_eof()
            while await reader.read(65536):
                pass


async def data_lane_of_nobody(rng: random.Random, address: Address) -> None:
    """A proper handshake for a data lane that belongs to no control lane, then silence."""
    async with raw_connection(address) as (reader, writer):
        with contextlib.suppress(ConnectionError, OSError, EOFError):
            handshake = Handshake.dialler(_member(rng), os.urandom, Lane.DATA, rng.randbytes(32))
            writer.write(framed(handshake.start()))
            reply = handshake.receive(await read_frame(reader))
            assert reply.answer is not None
            writer.write(framed(reply.answer))
            writer.write_eof()
            while await reader.read(65536):
                pass


ATTACKS: tuple[Attack, ...] = (
    stranger,
    garbage,
    damaged_hello,
    repeated_hello,
    version_skew,
    damaged_proof,
    data_lane_of_nobody,
)
