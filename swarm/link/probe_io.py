"""One look at an address without joining: who answers there, and can it reach us too?

The handshake is real and shows the swarm key, under an identity that is made for it and thrown
away. No link comes of it, so nobody's membership changes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.config import LinkConfig
from swarm.link.connection_io import CLOSED_AT_HELLO, Connection, ConnectionSetup
from swarm.link.found import Found, Outcome
from swarm.link.frames import Encoder
from swarm.link.handshake import Credentials, Established, Handshake, ProtocolRange
from swarm.link.identity import Identity, SwarmKey
from swarm.link.link_io import LOOKED_ONLY
from swarm.link.sockets_io import plain_error, resolve
from swarm.messages import DialBack, DialedBack, Lane, Message
from swarm.terms import Address, Incarnation


@dataclass(slots=True)
class _Visit:
    """The owner of the one connection that is made."""

    port: int
    ended_cause: str | None = None
    established: Established | None = None
    answer: DialedBack | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def opened(self, connection: Connection) -> bool:
        return True

    def proven(self, connection: Connection) -> None:
        """It shows the key, as `authenticated` will tell."""

    def objection(self, connection: Connection, found: Established) -> str | None:
        return None

    def authenticated(self, connection: Connection, found: Established) -> None:
        self.established = found
        if self.port:
            connection.send(DialBack(self.port))
        self.changed.set()

    def received(self, connection: Connection, message: Message) -> bool:
        if isinstance(message, DialedBack):
            self.answer = message
            self.changed.set()
        return True

    def heard(self, connection: Connection) -> None:
        """What else comes does not matter."""

    def writable(self, connection: Connection) -> None:
        """There is nothing more to write."""

    def ended(self, connection: Connection, cause: str, orderly: bool) -> None:
        self.ended_cause = cause
        self.changed.set()

    def broken(self, connection: Connection, error: Exception) -> None:
        """`ended` follows."""

    def gone(self, connection: Connection) -> None:
        """`ended` has told it."""

    @property
    def is_over(self) -> bool:
        asked = self.established is not None and (self.answer is not None or not self.port)
        return self.ended_cause is not None or asked


async def visit(
    address: Address,
    key: SwarmKey,
    *,
    own_port: int,
    timeout_s: float,
    protocol: ProtocolRange | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> Found:
    """Look at one address. `own_port`: where the other side is to try us; 0: it is not asked."""
    identity = Identity(secrets.token_bytes(32))
    credentials = Credentials(identity, key, Incarnation(1), protocol=protocol or ProtocolRange())
    handshake = Handshake.dialler(credentials, secrets.token_bytes, Lane.CONTROL)
    setup = ConnectionSetup(1, handshake, address, Encoder())
    owner = _Visit(own_port)
    connection = Connection(setup, LinkConfig(handshake_timeout_s=timeout_s), owner)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            host = (await resolve(address))[0]
            await loop.create_connection(lambda: connection, host, address.port)
    except TimeoutError:
        return Found(address, Outcome.SILENT, "no answer in time")
    except ConnectionRefusedError as error:
        return Found(address, Outcome.CLOSED, plain_error(error))
    except (OSError, ValueError) as error:
        return Found(address, Outcome.NO_WAY, plain_error(error))
    asked_at = wall_clock()
    try:
        async with asyncio.timeout(timeout_s):
            while not owner.is_over:
                owner.changed.clear()
                await owner.changed.wait()
    except TimeoutError:
        pass
    found = _found(address, owner, handshake, (asked_at + wall_clock()) / 2)
    connection.close(LOOKED_ONLY)
    return found


def _found(address: Address, owner: _Visit, handshake: Handshake, at: float) -> Found:
    cause = owner.ended_cause or ""
    if owner.established is None:
        if cause == CLOSED_AT_HELLO:
            return Found(address, Outcome.OTHER_KEY, cause)
        if "protocol" in cause and "we speak" in cause:
            return Found(address, Outcome.OTHER_VERSION, cause, protocol=handshake.peer_range)
        return Found(address, Outcome.MUTE, cause or "the handshake took too long")
    found = Found(
        address,
        Outcome.MEMBER,
        node=owner.established.node,
        protocol=handshake.peer_range,
    )
    answer = owner.answer
    if answer is None:
        return found
    return Found(
        address,
        Outcome.MEMBER,
        node=found.node,
        protocol=found.protocol,
        is_reached_back=answer.reached,
        back_detail=answer.cause,
        clock_offset_s=answer.wall_time_s - at if answer.wall_time_s else None,
    )
