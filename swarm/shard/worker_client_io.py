"""The daemon's side of its worker: starts the process, talks over a socketpair, tells when it ends.

Never blocks the loop and never imports torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import swarm
from swarm.config import ShardConfig
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.messages import Message
from swarm.shard.frames import FrameReader, pack

STOP_GRACE_S = 2.0
"""A worker whose socket closed while it is in something long is killed after this."""
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
"""A chunk of a prompt goes over in one piece; the system may grant less."""
_STDERR_TAIL_CHARACTERS = 4096


class WorkerEvents(Protocol):
    def worker_message(self, message: Message) -> None: ...

    def worker_lost(self, reason: str) -> None:
        """Once per start, unless it was stopped; `reason` in plain words."""


class WorkerPort(Protocol):
    """A worker as a node sees it."""

    async def start(self) -> None:
        """Start it (again, after it was lost). Raises OSError when that fails."""

    def send(self, message: Message) -> None:
        """Dropped while no worker runs: its loss was told, or is about to be."""

    async def stop(self) -> None:
        """End it; no event comes any more. Idempotent."""


class WorkerClient:
    """The real one. `log` gets each line that the process writes on stderr."""

    def __init__(
        self,
        config: ShardConfig,
        events: WorkerEvents,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._events = events
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._channel: _Channel | None = None
        self._watch: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs, else None."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        if self._process is not None:
            raise LocalProtocolError("the worker runs already")
        self._stopping = False
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await self._spawn(theirs)
            _enlarge(ours)
            closed = functools.partial(self._channel_closed, self._process)
            channel = _Channel(self._events.worker_message, closed)
            await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        except BaseException:
            ours.close()
            process, self._process = self._process, None
            if process is not None:
                _kill(process)
            raise
        self._channel = channel
        self._watch = asyncio.get_running_loop().create_task(self._watch_process(self._process))

    def send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    async def stop(self) -> None:
        self._stopping = True
        watch = self._watch
        if watch is None:
            return
        if self._channel is not None:
            self._channel.close()
        await watch

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        _enlarge(theirs)
        descriptor = theirs.fileno()
        config = json.dumps(dataclasses.asdict(self._config))
        arguments = (str(descriptor), config, str(os.getpid()))
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "swarm.shard.worker_io", *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,),
            env=_environment(),
            start_new_session=True,
        )  # fmt: skip

    def _channel_closed(self, process: asyncio.subprocess.Process) -> None:
        """The process is of no use any more; most often it is about to end by itself."""
        if process is self._process:
            self._end = asyncio.get_running_loop().call_later(STOP_GRACE_S, _kill, process)

    async def _watch_process(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        tail = await self._read_errors(process.stderr)
        code = await process.wait()
        if self._channel is not None:
            self._channel.close()
        if self._end is not None:
            self._end.cancel()
        self._process = self._channel = self._watch = self._end = None
        if not self._stopping:
            self._events.worker_lost(_reason(code, tail))

    async def _read_errors(self, stream: asyncio.StreamReader) -> str:
        """Until the process ends; returns the last line it wrote."""
        tail = last = ""
        while data := await stream.read(_STDERR_TAIL_CHARACTERS):
            *lines, tail = (tail + data.decode(errors="replace")).split("\n")
            tail = tail[-_STDERR_TAIL_CHARACTERS:]
            for line in filter(str.strip, lines):
                last = line
                if self._log is not None:
                    self._log(line)
        return tail.strip() or last


class _Channel(asyncio.BufferedProtocol):
    """Frames on our end of the socketpair."""

    def __init__(self, deliver: Callable[[Message], None], closed: Callable[[], None]) -> None:
        self._deliver = deliver
        self._closed = closed
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pack(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            messages = self._reader.filled(nbytes)
        except RemoteProtocolError:
            self.close()  # a worker that cannot be understood is ended and started anew
            return
        for message in messages:
            self._deliver(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed()


def _enlarge(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)


def _environment() -> dict[str, str]:
    """The daemon's own, with this very code on the path, and nothing fetched from anywhere.

    Compute threads that have nothing to do sleep instead of spinning, unless the owner says
    otherwise: on a machine that does anything else beside, other workers included, spinning
    threads take the cores from those that have work (three hops on two cores: 47 ms a token
    instead of 160 to 250). For some microseconds they do spin: the next kernel of a step comes so
    soon, and a wake-up costs more (16 sessions on two threads: a third more tokens).
    """
    defaults = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "2000"}
    roots = [str(Path(swarm.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return (
        defaults
        | dict(os.environ)
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, roots)),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TQDM_DISABLE": "1",
        }
    )


def _kill(process: asyncio.subprocess.Process) -> None:
    """By the system call: `Process.kill` polls first and takes the exit code from the watcher."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def _reason(code: int, last_line: str) -> str:
    if code < 0:
        return f"the worker was killed by {signal.Signals(-code).name}"
    said = f": {last_line}" if last_line else ""
    return f"the worker ended with exit code {code}{said}"
