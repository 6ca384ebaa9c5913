"""A member of the swarm that holds the key but need not keep the rules: raw lanes over streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

from swarm.link.frames import LENGTH, LENGTH_BYTES, Opener, Sealer
from swarm.link.handshake import Credentials, Established, Handshake
from swarm.link.identity import Identity, SwarmKey
from swarm.messages import Lane, Message, Ping, encode
from swarm.terms import Address, Incarnation

NEVER_REKEY = 0


@dataclass(slots=True)
class RawLane:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sealer: Sealer
    opener: Opener
    found: Established

    def seal(self, *pieces: bytes | memoryview) -> bytes:
        return b"".join(self.sealer.seal(pieces))

    def seal_message(self, message: Message) -> bytes:
        return self.seal(*encode(message))

    async def read(self) -> bytes:
        """The plaintext of the next frame."""
        return self.opener.open(memoryview(await read_frame(self.reader)))

    async def closed(self) -> None:
        """Return when the other side has closed, whatever it still said."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@dataclass(slots=True)
class Insider:
    control: RawLane
    data: RawLane

    @staticmethod
    async def join(address: Address, key: SwarmKey, seed: int) -> Insider:
        """A whole link, as a proper dialler makes it."""
        identity = Identity(seed.to_bytes(32, "big"))
        credentials = Credentials(identity, key, Incarnation(1))
        control = await shake(address, credentials, Lane.CONTROL, b"")
        data = await shake(address, credentials, Lane.DATA, control.found.binding)
        if identity.node_id < control.found.node:
            control.writer.write(control.seal_message(Ping(1)))
        else:
            await control.read()
        return Insider(control, data)

    def lane(self, lane: Lane) -> RawLane:
        return self.control if lane is Lane.CONTROL else self.data

    async def close(self) -> None:
        for lane in (self.control, self.data):
            await close_writer(lane.writer)


async def shake(address: Address, credentials: Credentials, lane: Lane, binding: bytes) -> RawLane:
    """One connection through its handshake, on the dialler's side."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    handshake = Handshake.dialler(credentials, os.urandom, lane, binding)
    writer.write(framed(handshake.start()))
    reply = handshake.receive(await read_frame(reader))
    assert reply.answer is not None
    assert reply.established is not None
    found = reply.established
    writer.write(framed(reply.answer))
    sealer = Sealer(found.cipher, found.send_key, lane, NEVER_REKEY)
    return RawLane(
        reader, writer, sealer, Opener(found.cipher, found.receive_key, NEVER_REKEY), found
    )


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH_BYTES))
    return await reader.readexactly(length)


async def close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
