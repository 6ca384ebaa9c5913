"""Downloads from the hub for a node, each in a process of its own: the library blocks, and nothing
but the end of its process stops it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from swarm.effects import FetchHub
from swarm.errors import LinkError, ShardError
from swarm.fetch_facts import HubFact, HubFailed, HubFetched, HubProgress
from swarm.notes import NoteSink, note
from swarm.weights.hub import ALL, LOCAL

LINE_BYTES_MAX = 1 << 20

Told = Callable[[dict[str, Any]], None]


async def files_of_hub(hub: str, parts: Sequence[str]) -> list[Path]:
    """The files that hold these parts of a model, fetched. Raises ShardError, or LinkError where
    trying again may help."""
    last = await _talk(hub, ",".join(parts), lambda told: None)
    if "paths" in last:
        return [Path(path) for path in last["paths"]]
    kind = ShardError if last["is_final"] else LinkError
    raise kind(str(last["failed"]))


class HubFetches:
    """Of whole models, at most one of each. Runs on the node's loop."""

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

        def told(line: dict[str, Any]) -> None:
            if "done" in line:
                self._tell(HubProgress(order.hub, int(line["done"])))
            elif "said" in line:
                self._sink(note("hub.fetching", detail=str(line["said"])))

        last = await _talk(order.hub, ALL if order.may_download else LOCAL, told)
        if "paths" in last:
            self._tell(HubFetched(order.hub, str(last["paths"][0])))
        else:
            is_final = bool(last["is_final"])
            self._tell(HubFailed(order.hub, str(last["failed"]), is_final=is_final))


async def _talk(hub: str, wanted: str, told: Told) -> dict[str, Any]:
    """The last that a download says: `paths`, or `failed` and `is_final`."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "swarm.weights.hub_io", hub, wanted,
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES_MAX,
        )  # fmt: skip
    except OSError as error:
        return {"failed": f"its download cannot start: {error}", "is_final": False}
    try:
        return await _last(process, told)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _last(process: Process, told: Told) -> dict[str, Any]:
    assert process.stdout is not None
    async for line in process.stdout:
        said = _json(line)
        if "paths" in said or "failed" in said:
            return said
        told(said)
    return {"failed": "its download ended without a word", "is_final": False}


def _json(line: bytes) -> dict[str, Any]:
    """Empty for what the library itself may print."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
