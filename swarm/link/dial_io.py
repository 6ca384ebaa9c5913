"""Dialling: several addresses at once, the first that authenticates wins, then the data lane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swarm.link.connection_io import Connection
from swarm.link.dial_round import DialRound
from swarm.link.sockets_io import plain_error, resolve
from swarm.messages import Lane
from swarm.terms import Address, LinkKind, NodeId, short

SLOWER = "another address answered first"
TIMEOUT_FACTOR = 3.0
"""Of data channels: meanwhile a relayed link serves, so there is no haste."""


@dataclass(frozen=True, slots=True)
class Destination:
    """`target` by way of `via`, where these are given; else whoever lives at `address`."""

    address: Address
    via: NodeId | None = None
    target: NodeId | None = None
    kind: LinkKind = LinkKind.DIRECT

    @staticmethod
    def of(connection: Connection) -> Destination:
        """Where another lane of its link goes."""
        known = connection
        return Destination(known.address, known.via, known.target, known.kind)


@dataclass(frozen=True, slots=True)
class DialPorts:
    """What dialling needs of its owner.

    new_connection  lane, binding, where it goes
    connect_via     brings a connection about that is no plain socket; raises OSError
    """

    new_connection: Callable[[Lane, bytes, Destination], Connection]
    round_failed: Callable[[DialRound], None]
    gone: Callable[[Connection], None]
    connect_via: Callable[[Connection], Awaitable[None]]


class Dialler:
    """Owns the dialling tasks. Each ends in a connection that lives, or in one that has failed."""

    def __init__(self, ports: DialPorts, timeout_s: float) -> None:
        self._ports = ports
        self._timeout_s = timeout_s
        self._rounds: dict[Connection, tuple[DialRound, Address]] = {}
        self._control_of: dict[Connection, Connection] = {}
        self._tasks: dict[asyncio.Task[bool], Connection] = {}

    def start(self, round_: DialRound) -> None:
        for address in round_.addresses:
            target = None if round_.via is None else round_.expected
            destination = Destination(address, round_.via, target, round_.kind)
            connection = self._ports.new_connection(Lane.CONTROL, b"", destination)
            self._rounds[connection] = (round_, address)
            self._start_connecting(connection)

    def open_data_lane(self, control: Connection, binding: bytes) -> None:
        """A second socket to the address that answered. Either lane's failure ends the other."""
        data = self._ports.new_connection(Lane.DATA, binding, Destination.of(control))
        self._control_of[data] = control
        self._start_connecting(data)

    def open_further_lane(self, lane: Lane, binding: bytes, destination: Destination) -> Connection:
        """One more socket to there. The link does not depend on it."""
        connection = self._ports.new_connection(lane, binding, destination)
        self._start_connecting(connection)
        return connection

    def found(self, connection: Connection, node: NodeId) -> None:
        """Who lives at the address. A node that was not looked for leaves its round."""
        entry = self._rounds.get(connection)
        if entry is not None and entry[0].is_stranger(node):
            del self._rounds[connection]
            self._failed(*entry, f"another node lives there: {short(node)}")

    def objection(self, connection: Connection) -> str | None:
        """Whether the connection came too late in its round."""
        entry = self._rounds.get(connection)
        return None if entry is None or entry[0].reached(entry[1]) else SLOWER

    def authenticated(self, winner: Connection) -> None:
        """Leave the other addresses of its round."""
        entry = self._rounds.get(winner)
        if entry is None:
            return
        for connection, (round_, _) in list(self._rounds.items()):
            if round_ is entry[0] and connection is not winner:
                del self._rounds[connection]
                self.give_up(connection, SLOWER)

    def linked(self, control: Connection) -> None:
        entry = self._rounds.pop(control, None)
        if entry is not None:
            entry[0].linked(entry[1])

    def ended(self, connection: Connection, cause: str) -> None:
        control = self._control_of.pop(connection, None)
        if control is not None:
            control.fail(cause)
        for data in [d for d, c in self._control_of.items() if c is connection]:
            self.give_up(data, cause)
        entry = self._rounds.pop(connection, None)
        if entry is not None:
            self._failed(*entry, cause)

    async def close(self, reason: str) -> None:
        """Give up all dials; no failure is told any more."""
        self._rounds.clear()
        tasks = dict(self._tasks)
        for task, connection in tasks.items():
            task.cancel()
            connection.fail(reason)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _failed(self, round_: DialRound, address: Address, reason: str) -> None:
        if round_.failed(address, reason):
            self._ports.round_failed(round_)

    def give_up(self, connection: Connection, reason: str) -> None:
        """Also while it is being made."""
        for task, connecting in self._tasks.items():
            if connecting is connection:
                task.cancel()
        connection.fail(reason)

    def _start_connecting(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._tasks[task] = connection
        task.add_done_callback(self._connecting_ended)

    async def _connect(self, connection: Connection) -> bool:
        """Whether the connection stands now."""
        port, is_channel = connection.address.port, connection.kind is LinkKind.WEBRTC
        try:
            async with asyncio.timeout(self._timeout_s * (TIMEOUT_FACTOR if is_channel else 1.0)):
                if connection.kind is not LinkKind.DIRECT:
                    await self._ports.connect_via(connection)
                    return True
                hosts = await resolve(connection.address)
                await _connect_first(connection, hosts, port)
        except (OSError, ValueError, OverflowError) as error:
            # Addresses come from peers too: ports beyond 65535, hosts that are no hosts.
            connection.fail(plain_error(error))
            return False
        return True

    def _connecting_ended(self, task: asyncio.Task[bool]) -> None:
        """Also for a task that was cancelled before it began.

        A connection whose making was cancelled may never hear of its own end (uvloop).
        """
        connection = self._tasks.pop(task)
        if task.cancelled() or not task.result():
            connection.fail("the dial was given up")
            self._ports.gone(connection)


async def _connect_first(connection: Connection, hosts: list[str], port: int) -> None:
    """Connect to the first host that takes the connection. Raises the last one's error."""
    loop = asyncio.get_running_loop()
    for host in hosts[:-1]:
        try:
            await loop.create_connection(lambda: connection, host, port)
        except OSError:
            continue
        return
    await loop.create_connection(lambda: connection, hosts[-1], port)
