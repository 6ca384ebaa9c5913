"""Connecting and listening: SYNs that get lost, ports that refuse, servers."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from sims.loop import SimLoop
from sims.machine import SECOND_NS, Machine, Process
from sims.sockets import End, SimSocket, error
from sims.stream import SimTransport

if TYPE_CHECKING:
    from sims.net import SimNet

SYN_RETRIES_MAX = 6
"""Linux `tcp_syn_retries`: after 1, 2, 4 ... s; 127 s in all."""

Factory = Callable[[], asyncio.BaseProtocol]


class SimServer(asyncio.AbstractServer):
    """A listening port. `host` is empty where it listens on all addresses of its machine."""

    def __init__(
        self, net: SimNet, process: Process, factory: Factory, host: str, port: int
    ) -> None:
        self.process = process
        self.host = host
        self.port = port
        self.is_open = True
        self._net = net
        self._factory = factory
        self._backlog: dict[SimTransport, None] = {}

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        own = SimSocket((self.host or "0.0.0.0", self.port), None, None)  # noqa: S104
        return (own,) if self.is_open else ()

    def close(self) -> None:
        """Connections that are established stay; those not yet accepted are reset."""
        if self.is_open:
            self.is_open = False
            self._net.stop_listening(self)
            for transport in list(self._backlog):
                transport.shut(rudely=True)

    async def wait_closed(self) -> None:
        """Nothing is waited for."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._net.loop

    def is_serving(self) -> bool:
        return self.is_open

    async def start_serving(self) -> None:
        """It has served since it was made."""

    async def serve_forever(self) -> None:
        try:
            await self._net.loop.create_future()
        finally:
            self.close()

    def established(self, transport: SimTransport, at_ns: int) -> None:
        """The kernel has shaken hands; the program accepts when it runs."""
        self._backlog[transport] = None
        self._net.loop.post(at_ns, self.process, self._accept, transport)

    def _accept(self, transport: SimTransport) -> None:
        del self._backlog[transport]
        if not transport.is_shut:
            transport.begin(self._factory())


class Dial:
    """One attempt to connect, by the kernel of `process`'s machine."""

    def __init__(self, net: SimNet, process: Process, remote: End) -> None:
        self.process = process
        self.future: asyncio.Future[SimTransport] = net.loop.create_future()
        self._net = net
        self._loop: SimLoop = net.loop
        self._remote = remote
        self._attempt = 0
        self._sent_ns = 0

    def send_syn(self) -> None:
        """Either an answer is under way now, or another try is planned."""
        if not self._is_wanted:
            return
        self._sent_ns = now_ns = self._loop.now_ns
        target = self._net.machine_at(self._remote[0], self.process.machine)
        if target is None:
            self._try_later()
            return
        path = self._net.path(self.process.machine, target)
        if path.is_dial_forbidden or not path.is_passable or path.loses(0):
            self._try_later()
        else:
            self._loop.post(path.arrival_ns(now_ns), self._loop.world, self._arrive, target)

    def abandon(self) -> None:
        self.future.cancel()

    @property
    def _is_wanted(self) -> bool:
        return not self.future.done() and self.process.is_alive

    def _try_later(self) -> None:
        at_ns = self._sent_ns + (SECOND_NS << self._attempt)
        self._attempt += 1
        again = self._give_up if self._attempt > SYN_RETRIES_MAX else self.send_syn
        self._loop.post(at_ns, self._loop.world, again)

    def _give_up(self) -> None:
        self._fail(errno.ETIMEDOUT)

    def _fail(self, number: int) -> None:
        if self._is_wanted:
            self.future.set_exception(error(number))

    def _arrive(self, target: Machine) -> None:
        path = self._net.path(target, self.process.machine)
        if not path.is_passable or path.loses(0):
            self._try_later()
            return
        at_ns = path.arrival_ns(self._loop.now_ns)
        server = self._net.listener(target, self._remote)
        if server is None:
            self._loop.post(at_ns, self._loop.world, self._fail, errno.ECONNREFUSED)
        else:
            self._loop.post(at_ns, self._loop.world, self._answered, server)

    def _answered(self, server: SimServer) -> None:
        source = self.process.machine
        if not self._is_wanted:
            return
        if not source.is_on_air:
            self._try_later()
        elif not server.is_open or not server.process.is_alive:
            self._fail(errno.ECONNRESET)
        else:
            self.future.set_result(self._net.join(self.process, server, self._remote))
