"""Links that are up: their two connections, what measures them, and contests over their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.link.connection_io import Connection
from swarm.link.handshake import Established
from swarm.link.link_io import LinkStats, Peer
from swarm.link.quality import Upkeep
from swarm.messages import Lane, Message, Pong
from swarm.terms import Address

_CONTROL = Lane.CONTROL
_BULK = Lane.BULK


@dataclass(slots=True)
class LiveLink:
    peer: Peer
    control: Connection
    data: Connection
    upkeep: Upkeep
    challenges: dict[int, int] = field(default_factory=dict)
    """Stamp of a ping that asks for a sign of life -> the newcomer's connection."""
    bulk: Connection | None = None
    """The lane for weights, once it stands."""

    def send(self, message: Message) -> bool:
        if message.LANE is _BULK:
            return self.bulk is not None and self.bulk.send(message)
        return (self.control if message.LANE is _CONTROL else self.data).send(message)

    def tick(self, now: float) -> None:
        """Every `ping_interval_s`, the first time as the link comes up."""
        for message in self.upkeep.tick(now, data_idle=self._is_idle):
            self.send(message)

    def upkeep_received(self, message: Message, now: float) -> None:
        for answer in self.upkeep.received(message, now, data_idle=self._is_idle):
            self.send(answer)

    def stats(self, now: float) -> LinkStats:
        return LinkStats(
            rtt_s=self.upkeep.rtt_s(now),
            goodput_bytes_s=self.upkeep.goodput_bytes_s(),
            bytes_in=self.control.bytes_in + self.data.bytes_in,
            bytes_out=self.control.bytes_out + self.data.bytes_out,
        )

    @property
    def _is_idle(self) -> bool:
        return self.data.unsent_bytes == 0


@dataclass(frozen=True, slots=True)
class ContestPorts:
    """What becomes of a newcomer, by its connection, once the standing link was asked."""

    answered: Callable[[int], None]
    unanswered: Callable[[int], None]


class Contests:
    """Asks standing links for a sign of life, and owns the timers of those that give none."""

    def __init__(self, ports: ContestPorts, wait_s: float) -> None:
        self._ports = ports
        self._wait_s = wait_s
        self._timers: dict[int, asyncio.TimerHandle] = {}

    @property
    def count(self) -> int:
        return len(self._timers)

    def begin(self, standing: LiveLink, newcomer: int, now: float) -> None:
        ping = standing.upkeep.challenge(now)
        standing.challenges[ping.stamp] = newcomer
        standing.control.send(ping)
        self.end(newcomer)
        loop = asyncio.get_running_loop()
        self._timers[newcomer] = loop.call_later(self._wait_s, self._expired, newcomer)

    def pong_received(self, standing: LiveLink, pong: Pong) -> None:
        newcomer = standing.challenges.pop(pong.stamp, None)
        if newcomer is not None:
            self._ports.answered(newcomer)

    def end(self, newcomer: int) -> None:
        """The newcomer is gone, or judged."""
        timer = self._timers.pop(newcomer, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for newcomer in list(self._timers):
            self.end(newcomer)

    def _expired(self, newcomer: int) -> None:
        del self._timers[newcomer]
        self._ports.unanswered(newcomer)


def peer_of(connection: Connection, found: Established) -> Peer:
    """Who is at the other end of a connection that authenticated."""
    dialled = connection.dialled
    address = connection.address
    if connection.via is not None:
        address = Address("", 0)
    elif not dialled:
        address = Address(address.host, found.listening_port)
    return Peer(
        node=found.node,
        public_key=found.public_key,
        incarnation=found.incarnation,
        address=address,
        protocol=found.protocol,
        dialled=dialled,
        instance=found.instance,
        via=connection.via,
        kind=connection.kind,
    )
