"""The daemon's side of its text helper: started when first needed, and again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import swarm
from swarm.config import GatewayConfig
from swarm.errors import CapacityError, LinkError, SwarmError
from swarm.gateway.text_helper_io import LENGTHS, pack
from swarm.gateway.text_work import Parcel

STDERR_LINE_SHOWN = 300


class TextHelper(Protocol):
    """Answers the questions of `text_work`."""

    async def ask(self, parcel: Parcel) -> Parcel:
        """Raises LinkError when the helper ends before it answers, CapacityError when it is ended
        because the answer did not come in time."""

    async def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class _Running:
    """One process, and who waits for it: what comes after it has nothing to do with its end."""

    process: asyncio.subprocess.Process
    waiting: dict[int, asyncio.Future[Parcel]] = field(default_factory=dict)
    tasks: tuple[asyncio.Task[None], ...] = ()
    end: SwarmError = field(default_factory=lambda: LinkError("the text helper ended; ask again"))
    """What those are told who wait when it ends."""

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)


class TextProcess:
    """The real helper. `said` gets each line that it writes on standard error.

    A question that is not answered within `prepare_timeout_s` ends the process, whether or not
    somebody still waits: a chat template that loops would keep one of its threads for ever.
    """

    def __init__(self, config: GatewayConfig, said: Callable[[str], None]) -> None:
        self._arguments = json.dumps(asdict(config))
        self._timeout_s = config.prepare_timeout_s
        self._said = said
        self._running: _Running | None = None
        self._started: list[_Running] = []
        self._numbers = 0
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process that runs, else None."""
        return self._running.process.pid if self._running is not None else None

    async def ask(self, parcel: Parcel) -> Parcel:
        async with self._starting:
            running = self._running or await self._start()
        loop = asyncio.get_running_loop()
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[Parcel] = loop.create_future()
        running.waiting[number] = answer
        timer = loop.call_later(self._timeout_s, self._overdue, running)
        answer.add_done_callback(lambda _: timer.cancel())
        stdin = running.process.stdin
        assert stdin is not None
        stdin.writelines(pack(number, parcel))
        with contextlib.suppress(ConnectionError):
            await stdin.drain()
        # Shielded: the question stays asked, and its time limited, when the asker goes away.
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """End it at once; idempotent."""
        if self._running is not None:
            self._running.kill()
            if self._running.process.stdin is not None:
                self._running.process.stdin.close()
            self._end(self._running)
        tasks = [task for running in self._started for task in running.tasks]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _overdue(self, running: _Running) -> None:
        running.end = CapacityError(
            f"the prompt could not be made ready within {self._timeout_s:g} s; try again, "
            "or send a shorter one"
        )
        self._said(f"no answer within {self._timeout_s:g} s: the helper is started anew")
        running.kill()
        self._end(running)

    def _end(self, running: _Running) -> None:
        """The next question starts another process."""
        if self._running is running:
            self._running = None
        for answer in running.waiting.values():
            if not answer.done():
                answer.set_exception(running.end)
                answer.exception()  # seen: its asker may be gone
        running.waiting.clear()

    async def _start(self) -> _Running:
        self._started = [old for old in self._started if not all(task.done() for task in old.tasks)]
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
        self._running = running = _Running(process)
        self._started.append(running)
        reading = asyncio.create_task(self._read(running, process.stdout))
        running.tasks = (reading, asyncio.create_task(self._listen(process.stderr)))
        return running

    async def _read(self, running: _Running, source: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                lengths = await source.readexactly(LENGTHS.size)
                number, head_size, body_size = LENGTHS.unpack(lengths)
                head = json.loads(await source.readexactly(head_size))
                body = await source.readexactly(body_size)
                answer = running.waiting.pop(number, None)
                if answer is not None and not answer.done():
                    answer.set_result((head, body))
        self._end(running)
        await running.process.wait()

    async def _listen(self, source: asyncio.StreamReader) -> None:
        while line := await source.readline():
            self._said(line.decode(errors="replace").rstrip()[:STDERR_LINE_SHOWN])
