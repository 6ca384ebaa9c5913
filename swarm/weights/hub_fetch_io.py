"""Downloads from the hub for a node, each in a process of its own: the library blocks, and nothing
but the end of its process stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from typing import Any

from swarm.effects import FetchHub
from swarm.fetch_facts import HubFact, HubFailed, HubFetched, HubProgress
from swarm.notes import NoteSink, note

LINE_BYTES_MAX = 1 << 16


class HubFetches:
    """At most one of each model. Runs on the node's loop."""

    def __init__(self, tell: Callable[[HubFact], None], sink: NoteSink) -> None:
        self._tell = tell
        self._sink = sink
        self._jobs: dict[str, asyncio.Task[None]] = {}

    def fetch(self, order: FetchHub) -> None:
        before = self.stop(order.hub)
        job = asyncio.get_running_loop().create_task(self._run(order, before))
        self._jobs[order.hub] = job

    def stop(self, hub: str) -> asyncio.Task[None] | None:
        """Ends what is under way; whoever wants to can wait for that."""
        job = self._jobs.get(hub)
        if job is not None:
            job.cancel()
        return job

    async def close(self) -> None:
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    async def _run(self, order: FetchHub, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        arguments = ["-m", "swarm.weights.hub_io", order.hub]
        arguments += [] if order.may_download else ["--local"]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments,
                stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES_MAX,
            )  # fmt: skip
        except OSError as error:
            self._tell(HubFailed(order.hub, f"its download cannot start: {error}", is_final=False))
            return
        try:
            last = await self._listen(order, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        ended = HubFailed(order.hub, "its download ended without a word", is_final=False)
        self._tell(last or ended)

    async def _listen(self, order: FetchHub, process: Process) -> HubFact | None:
        """Until it says how it ended, or is gone."""
        assert process.stdout is not None
        async for line in process.stdout:
            told = _json(line)
            if "done" in told:
                self._tell(HubProgress(order.hub, int(told["done"])))
            elif "said" in told:
                self._sink(note("hub.fetching", detail=str(told["said"])))
            elif "path" in told:
                return HubFetched(order.hub, str(told["path"]))
            elif "failed" in told:
                return HubFailed(order.hub, str(told["failed"]), is_final=bool(told["is_final"]))
        return None


def _json(line: bytes) -> dict[str, Any]:
    """Empty for what the library itself may print."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
