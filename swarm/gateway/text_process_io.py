"""The daemon's side of its text helper: started when first needed, and again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import swarm
from swarm.config import GatewayConfig
from swarm.errors import ShardError
from swarm.gateway.text_helper_io import LENGTHS, pack
from swarm.gateway.text_work import Parcel

STDERR_LINE_SHOWN = 300


class TextHelper(Protocol):
    """Answers the questions of `text_work`."""

    async def ask(self, parcel: Parcel) -> Parcel:
        """Raises ShardError when the helper ends before it answers."""

    async def close(self) -> None: ...


class TextProcess:
    """The real helper. `said` gets each line that it writes on standard error."""

    def __init__(self, config: GatewayConfig, said: Callable[[str], None]) -> None:
        self._arguments = json.dumps(asdict(config))
        self._said = said
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._waiting: dict[int, asyncio.Future[Parcel]] = {}
        self._numbers = 0
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process that runs, else None."""
        return self._process.pid if self._process is not None else None

    async def ask(self, parcel: Parcel) -> Parcel:
        async with self._starting:
            process = self._process or await self._start()
        assert process.stdin is not None
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[Parcel] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            process.stdin.writelines(pack(number, parcel))
            with contextlib.suppress(ConnectionError):
                await process.stdin.drain()
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End it at once; idempotent."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            if self._process.stdin is not None:
                self._process.stdin.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self) -> asyncio.subprocess.Process:
        roots = [str(Path(swarm.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "swarm.gateway.text_helper_io", self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, roots))},
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        reading = asyncio.create_task(self._read(process, process.stdout))
        self._tasks = (reading, asyncio.create_task(self._listen(process.stderr)))
        return process

    async def _read(
        self, process: asyncio.subprocess.Process, source: asyncio.StreamReader
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lengths = await source.readexactly(LENGTHS.size)
                number, head_size, body_size = LENGTHS.unpack(lengths)
                head = json.loads(await source.readexactly(head_size))
                body = await source.readexactly(body_size)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result((head, body))
        self._process = None
        await process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ShardError("the text helper process ended; ask again"))

    async def _listen(self, source: asyncio.StreamReader) -> None:
        while line := await source.readline():
            self._said(line.decode(errors="replace").rstrip()[:STDERR_LINE_SHOWN])
