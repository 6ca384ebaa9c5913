"""One connection: its handshake, then sealed messages of one lane.

A connection decides nothing about links: it tells its owner what happened. Whatever the other
side sends ends at worst in `ended`, with a reason; nothing of it reaches the event loop. Where it
sets off a bug of ours, that too costs this connection only: the owner is told by `broken`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from swarm.config import LinkConfig
from swarm.errors import HandshakeFailed, RemoteProtocolError
from swarm.link.frames import FRAME_LIMITS, LENGTH, Encoder, FrameBuffer, Opener, Sealer
from swarm.link.handshake import HANDSHAKE_LIMIT, Established, Handshake
from swarm.link.noise import TAG_BYTES, Bytes
from swarm.link.sockets_io import (
    plain_error,
    printable,
    remote_host,
    set_background,
    set_options,
    set_user_timeout,
)
from swarm.link.traffic import Traffic
from swarm.messages import PEER_MESSAGES, Goodbye, Lane, Message, decode
from swarm.terms import Address, LinkKind, NodeId

_CONTROL = Lane.CONTROL
_LINGER_S = 1.0
"""How long a goodbye may take to leave before the connection is broken off."""
CLOSED_BY_PEER = "the peer closed the connection"
CLOSED_BY_MIDDLE = "the connection by way of another node has ended"
CLOSED_AT_HELLO = (
    "it closed the connection at the first message: it may belong to another swarm (check --key)"
)


Decode = Callable[
    [bytes | bytearray | memoryview, dict[int, type[Message]], Lane | None], Message | None
]
"""What `messages.decode` is to its callers."""


class ConnectionOwner(Protocol):
    def opened(self, connection: Connection) -> bool:
        """Whether it may begin its handshake. Asked once, for accepted connections only."""

    def proven(self, connection: Connection) -> None:
        """The other side holds the swarm key."""

    def objection(self, connection: Connection, found: Established) -> str | None:
        """Why the node at the other end is not wanted; None when it is."""

    def authenticated(self, connection: Connection, found: Established) -> None: ...

    def received(self, connection: Connection, message: Message) -> bool:
        """Take a message, a sign of life too. False: not yet; offer it again after `release`."""

    def heard(self, connection: Connection) -> None:
        """Bytes came in, and no message that the owner was given."""

    def writable(self, connection: Connection) -> None: ...

    def ended(self, connection: Connection, cause: str, orderly: bool) -> None:
        """Told once, whatever ended it, also when this side did."""

    def broken(self, connection: Connection, error: Exception) -> None:
        """The owner itself failed over what came in: a bug. Told once; `ended` follows."""

    def gone(self, connection: Connection) -> None:
        """Told last: the socket is closed."""


@dataclass(frozen=True, slots=True)
class ConnectionSetup:
    """`address`: what was dialled; None for an accepted connection. `encode`: of all links."""

    number: int
    handshake: Handshake
    address: Address | None
    encode: Encoder
    decode: Decode = decode
    traffic: Traffic = field(default_factory=Traffic)
    """Of all links."""
    via: NodeId | None = None
    """The node in the middle of a relayed connection, or by whom a channel was agreed upon."""
    target: NodeId | None = None
    """Who is to be reached by way of it; None for an accepted connection."""
    kind: LinkKind = LinkKind.DIRECT


class Connection(asyncio.BufferedProtocol):
    """See the module. `established` is None until both sides have authenticated."""

    def __init__(self, setup: ConnectionSetup, config: LinkConfig, owner: ConnectionOwner) -> None:
        self.number = setup.number
        self.dialled = setup.address is not None
        self.address = setup.address or Address("", 0)
        self.via = setup.via
        self.target = setup.target
        self.kind = setup.kind
        self.established: Established | None = None
        self.proved = False
        """Whether the other side holds the swarm key."""
        self.busy = False
        self.bytes_in = 0
        self.bytes_out = 0
        self._config = config
        self._owner = owner
        self._handshake = setup.handshake
        self._encode = setup.encode
        self._decode = setup.decode
        self._traffic = setup.traffic
        self._buffer = FrameBuffer(HANDSHAKE_LIMIT)
        self._transport: asyncio.Transport | None = None
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._lane: Lane | None = None
        self._held: Message | None = None
        self._last_frame: bytes | None = None
        self._last_message: Message | None = None
        self._draining = False
        self._ended = False
        self._broken = False
        self._deadline: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ what the owner may do

    def send(self, message: Message) -> bool:
        """Seal and write a message. False when this connection is over, or too much is unsent."""
        transport, sealer = self._transport, self._sealer
        if self._ended or transport is None or sealer is None:
            return False
        pieces = self._encode(message)
        waiting = transport.get_write_buffer_size()
        if waiting + len(pieces[-1]) > self._config.send_buffer_limit_bytes:
            cause = f"the peer does not read: {waiting} bytes are unsent"
            asyncio.get_running_loop().call_soon(self.fail, cause)
            return False
        before = self.bytes_out
        for buffer in sealer.seal(pieces):
            self.bytes_out += len(buffer)
            transport.write(buffer)
        self._traffic.sent(message.NUMBER, self.bytes_out - before)
        return True

    @property
    def lane(self) -> Lane:
        """Of a dialled connection, or of one that has authenticated."""
        lane = self._handshake.lane if self.established is None else self.established.lane
        assert lane is not None
        return lane

    def adopt(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Begin on a connection that somebody else has made; `rest`: bytes that came already."""
        transport.set_protocol(self)
        self.connection_made(transport)
        data = memoryview(rest)
        while data and not self._ended:
            space = self.get_buffer(len(data))
            count = min(len(space), len(data))
            space[:count] = data[:count]
            self.buffer_updated(count)
            data = data[count:]

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """The bare connection and what has come in on it; this object is done with it."""
        assert self._transport is not None
        transport, self._transport = self._transport, None
        self._ended = True
        self.settled()
        self._owner.gone(self)
        return transport, self._buffer.take_rest()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def settled(self) -> None:
        """The link is up: the time allowed for getting there no longer counts."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def release(self) -> None:
        """Offer again what the owner did not take, and read on."""
        if self._ended or self._transport is None:
            return
        self._transport.resume_reading()
        self._drain()

    def close(self, reason: str) -> None:
        """Say goodbye where that is possible, and let what is written leave. `ended` is orderly."""
        if self._ended:
            return
        if self.established is not None and self.established.lane is Lane.CONTROL:
            self.send(Goodbye(reason))
        self._leave(reason, orderly=True)

    def fail(self, cause: str) -> None:
        """Break off at once."""
        if self._ended:
            return
        self._finish(cause, orderly=False)
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self.dialled:
            if self.via is None:
                self.address = Address(remote_host(transport.get_extra_info("peername")), 0)
            if not self._owner.opened(self):
                self.fail("too many handshakes at once")
                return
        set_options(transport.get_extra_info("socket"))
        self._deadline = asyncio.get_running_loop().call_later(
            self._config.handshake_timeout_s, self.fail, "the handshake took too long"
        )
        if self.dialled:
            self._write_plain(self._handshake.start())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self._buffer.filled(nbytes)
        if not self._ended:
            self._drain(fresh=True)

    def eof_received(self) -> bool:
        self._finish(self._closed_by_peer, orderly=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(self._closed_by_peer if exc is None else plain_error(exc), orderly=False)
        self.settled()
        self._transport = None
        self._owner.gone(self)

    @property
    def _closed_by_peer(self) -> str:
        if self.kind is LinkKind.RELAYED:
            return CLOSED_BY_MIDDLE
        return CLOSED_AT_HELLO if self.dialled and self.bytes_in == 0 else CLOSED_BY_PEER

    def pause_writing(self) -> None:
        self.busy = True

    def resume_writing(self) -> None:
        self.busy = False
        if not self._ended:
            self._guarded(self._owner.writable, self)

    # ------------------------------------------------------------ inside

    def _drain(self, *, fresh: bool = False) -> None:
        """Handle what is whole in the buffer; `fresh`: bytes have just come."""
        if self._draining:
            return
        self._draining = True
        try:
            self._guarded(self._handle_whole, fresh)
        finally:
            self._draining = False

    def _guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """The root of all that the other side sets going: every fault ends here."""
        try:
            step(*arguments)
        except (RemoteProtocolError, HandshakeFailed) as error:
            self.fail(printable(str(error)))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not spread to other links
            if not self._broken:
                self._broken = True
                self._owner.broken(self, error)
            self.fail(f"a fault of this node: {type(error).__name__}")

    def _handle_whole(self, fresh: bool) -> None:
        was_given = not fresh
        while not self._ended and (self._held is None or self._offer_held()):
            body = self._buffer.next_body()
            if body is None:
                break
            was_given = self._on_body(body) or was_given
        if not was_given and not self._ended:
            self._owner.heard(self)

    def _offer_held(self) -> bool:
        message = self._held
        if message is None or not self._owner.received(self, message):
            return False
        self._held = None
        return not self._ended

    def _on_body(self, body: memoryview) -> bool:
        """Whether the owner was given a message."""
        if self._opener is None:
            self._on_handshake(bytes(body))
            return False
        byte_count = len(body)
        message = self._decoded(self._opener.open(body))
        if message is None:
            return False
        self._traffic.received(message.NUMBER, byte_count)
        if isinstance(message, Goodbye):
            self._finish(printable(message.reason), orderly=True)
            if self._transport is not None:
                self._transport.abort()
        elif not self._owner.received(self, message):
            self._held = message
            if self._transport is not None:
                self._transport.pause_reading()
        return True

    def _decoded(self, frame: Bytes) -> Message | None:
        """An idle peer says the same again and again: that is decoded once."""
        if self._lane is not _CONTROL:
            return self._decode(frame, PEER_MESSAGES, self._lane)
        if frame == self._last_frame:
            return self._last_message
        frame = bytes(frame)
        message = self._decode(frame, PEER_MESSAGES, self._lane)
        self._last_frame, self._last_message = frame, message
        return message

    def _on_handshake(self, message: bytes) -> None:
        reply = self._handshake.receive(message)
        found = reply.established
        objection = None if found is None else self._owner.objection(self, found)
        if objection is not None and self.dialled:
            # Before the last message, so that the other side learns no more of this one.
            self.fail(objection)
            return
        if reply.answer is not None:
            self._write_plain(reply.answer)
            self.proved = True
            self._owner.proven(self)
        if reply.failure is not None:
            self._leave(str(reply.failure), orderly=False)
        elif found is not None:
            self._switch_to_frames(found)
            if objection is not None:
                self.close(objection)
            else:
                self._owner.authenticated(self, found)

    def _switch_to_frames(self, found: Established) -> None:
        rekey_frames = self._config.rekey_frames
        self.established, self._lane = found, found.lane
        self._sealer = Sealer(found.cipher, found.send_key, found.lane, rekey_frames, found.suite)
        self._opener = Opener(found.cipher, found.receive_key, rekey_frames, found.suite)
        self._buffer.allow(FRAME_LIMITS[found.lane] + TAG_BYTES)
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if found.lane is Lane.BULK:
            set_background(sock, self._config.bulk_buffer_bytes)
            self._transport.set_write_buffer_limits(high=self._config.bulk_buffer_bytes)
            return
        self._transport.set_write_buffer_limits(high=self._config.send_buffer_bytes)
        if found.lane is Lane.CONTROL:
            set_user_timeout(sock, self._config.user_timeout_ms)

    def _write_plain(self, message: bytes) -> None:
        """A handshake message; frames and these share the length field."""
        frame = LENGTH.pack(len(message)) + message
        self.bytes_out += len(frame)
        if self._transport is not None:
            self._transport.write(frame)

    def _leave(self, reason: str, *, orderly: bool) -> None:
        """End, but let what is written leave."""
        self._finish(reason, orderly=orderly)
        if self._transport is not None:
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(_LINGER_S, self._transport.abort)

    def _finish(self, cause: str, *, orderly: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self.settled()
        self._guarded(self._owner.ended, self, cause, orderly)
