"""Two or three simulated machines and protocols that write down what they are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sims.loop import SimLoop
from sims.machine import Machine, Process
from sims.net import SimNet

T = TypeVar("T")
PORT = 7000
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))


class Recorder(asyncio.Protocol):
    """Keeps bytes and happenings with their times (simulated seconds)."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.data = b""
        self.events: list[tuple[str, float]] = []
        self.error: Exception | None = None
        self.keeps_open = False
        self.on_data: Callable[[Recorder, bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.note("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.note("data")
        if self.on_data is not None:
            self.on_data(self, data)

    def eof_received(self) -> bool:
        self.note("eof")
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.note("lost")

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    def note(self, what: str) -> None:
        self.events.append((what, self.loop.now_s))

    def times(self, what: str) -> list[float]:
        return [at for event, at in self.events if event == what]

    def has(self, what: str) -> bool:
        return bool(self.times(what))


class Buffered(asyncio.BufferedProtocol):
    """Reads into a small buffer of its own."""

    def __init__(self, size: int = 1000) -> None:
        self.data = b""
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._buffer = bytearray(size)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += bytes(self._buffer[:nbytes])


class Pair:
    """Machines a, b, c with one process each; b serves; `connect` dials it from a."""

    def __init__(self, seed: int = 1, **more: Any) -> None:
        self.loop = SimLoop(seed, **more)
        self.net = SimNet(self.loop)
        self.machines = [Machine(n, "xabc"[n], (f"10.0.0.{n}",)) for n in (1, 2, 3)]
        for machine in self.machines:
            self.net.add(machine)
        self.processes = [self.loop.process(machine) for machine in self.machines]
        self.a, self.b, self.c = self.machines
        self.accepted: list[Recorder] = []
        self.server: asyncio.AbstractServer | None = None

    @property
    def now_s(self) -> float:
        return self.loop.now_s

    @property
    def rtt_s(self) -> float:
        """About; of the wired profile."""
        return 0.0003

    def recorder(self) -> Recorder:
        return Recorder(self.loop)

    def run(self, process: Process, coroutine: Coroutine[Any, Any, T], limit_s: float = 1e6) -> T:
        task = self.loop.spawn(process, coroutine)
        assert self.loop.run_until(task.done, limit_s), "it takes too long"
        return task.result()

    def do(self, process: Process, act: Callable[[], object]) -> None:
        """Run `act` in a process, now."""
        done: list[object] = []
        self.loop.post(self.loop.now_ns, process, lambda: done.append(act()))
        self.loop.run_until(lambda: bool(done))

    def serve(
        self, process: Process | None = None, host: str = "0.0.0.0", port: int = PORT
    ) -> None:
        def accept() -> Recorder:
            self.accepted.append(self.recorder())
            return self.accepted[-1]

        process = process or self.processes[1]
        self.server = self.run(process, self.loop.create_server(accept, host, port))

    def dial(
        self,
        process: Process | None = None,
        host: str = "10.0.0.2",
        port: int = PORT,
        protocol: Any = None,
    ) -> asyncio.Task[Any]:
        """The task that connects; its result is the protocol."""
        client = protocol or self.recorder()

        async def connect() -> Any:
            await self.loop.create_connection(lambda: client, host, port)
            return client

        return self.loop.spawn(process or self.processes[0], connect())

    def connect(self, protocol: Any = None) -> tuple[Any, Recorder]:
        """Serve if nobody does, dial, and wait for both ends."""
        if self.server is None:
            self.serve()
        before = len(self.accepted)
        task = self.dial(protocol=protocol)
        self.loop.run_until(lambda: task.done() and len(self.accepted) > before, 100.0)
        task.result()
        self.wait(lambda: self.accepted[-1].has("made"))
        return task.result(), self.accepted[-1]

    def wait(self, done: Callable[[], bool], limit_s: float = 100.0) -> float:
        """Run until it is so; how long that took."""
        start_s = self.loop.now_s
        step_ns = self.loop.now_ns
        assert self.loop.run_until(done, limit_s), "it does not come about"
        assert self.loop.now_ns >= step_ns
        return self.loop.now_s - start_s

    def rest(self, duration_s: float) -> None:
        self.loop.run_for(duration_s)

    def check(self) -> None:
        assert self.loop.faults == []

    def keep_alive(self, protocol: Any) -> None:
        """Five seconds idle, then three probes every two."""
        self.option(protocol, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            self.option(protocol, socket.IPPROTO_TCP, option, value)

    def option(self, protocol: Any, level: int, option: int, value: int) -> None:
        protocol.transport.get_extra_info("socket").setsockopt(level, option, value)
