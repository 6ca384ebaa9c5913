"""Answers members that ask whether they can be reached: connects to them, and says how that went.

Only the host that asks is ever dialled, nothing is sent to it, and the asking is rationed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm.errors import RemoteProtocolError
from swarm.link.admission import Bucket
from swarm.link.connection_io import Connection
from swarm.link.sockets_io import plain_error
from swarm.messages import DialedBack

TIMEOUT_S = 1.5
"""Of one dial: the connection it is asked on has `handshake_timeout_s` to live."""
DIALS_PER_S = 2.0
DIALS_BURST = 16
"""Over all that ask: a dial costs a socket for a moment."""
_PORT_LIMIT = 1 << 16


class DialBacks:
    """Owns the dials it makes."""

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._ration = Bucket(DIALS_PER_S, DIALS_BURST)
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, connection: Connection, port: int) -> None:
        """Raises RemoteProtocolError for what is no port."""
        if not 0 < port < _PORT_LIMIT:
            raise RemoteProtocolError("a port to dial that is out of range")
        if connection.via is None and self._ration.take(self._clock()):
            task = asyncio.get_running_loop().create_task(self._dial(connection, port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial(self, connection: Connection, port: int) -> None:
        cause = await tcp_problem(connection.address.host, port, TIMEOUT_S)
        connection.send(DialedBack(not cause, cause, self._wall_clock()))


async def tcp_problem(host: str, port: int, timeout_s: float) -> str:
    """Why no connection to a port comes about; empty when one did. It is closed at once."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except (OSError, ValueError) as error:
        return plain_error(error)
    transport.close()
    return ""
