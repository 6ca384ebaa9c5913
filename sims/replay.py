"""A stranger on the simulated LAN who repeats what it has overheard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sims.machine import Machine
from sims.plain_suite import PLAIN, PlainIdentity
from swarm.link.frames import LENGTH
from swarm.link.handshake import Credentials, Handshake
from swarm.messages import Lane
from swarm.terms import Incarnation

if TYPE_CHECKING:
    from sims.node import SimNode
    from sims.world import World

PATIENCE_S = 5.0
"""Longer than a node lets a handshake take."""


class _Ear(asyncio.Protocol):
    """Says one thing and listens for an answer."""

    def __init__(self, message: bytes) -> None:
        self.answered = False
        self._message = message

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self.answered = True


async def first_messages(world: World, stranger: Machine, target: SimNode, *, times: int) -> int:
    """Send one valid first message `times` times over new connections; how many were answered.

    The message is one that a member sent to `target` before (here: made with the swarm's key).
    """
    from sims.node import SWARM_KEY

    rng = world.loop.random("replay")
    overheard = Credentials(
        PlainIdentity(rng.randbytes(32)), SWARM_KEY, Incarnation(1), suite=PLAIN
    )
    hello = Handshake.dialler(overheard, rng.randbytes, Lane.CONTROL).start()
    port = target.core.about.addresses[0].port
    process = world.loop.process(stranger)
    ears = [_Ear(LENGTH.pack(len(hello)) + hello) for _ in range(times)]
    for ear in ears:
        task = world.loop.spawn(process, _connect(ear, target.machine.hosts[0], port))
        await world.sleep(PATIENCE_S)
        task.cancel()
    return sum(ear.answered for ear in ears)


async def _connect(ear: _Ear, host: str, port: int) -> None:
    await asyncio.get_running_loop().create_connection(lambda: ear, host, port)
