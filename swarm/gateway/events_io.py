"""`/swarm/events`: a node's state and what happens to it, as server-sent events for many readers.

The state is looked at once for all readers, and each event is encoded once. A reader that lags
loses what waits for it and is given the whole state anew: it costs detail, never memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway.changes import difference
from swarm.gateway.responses import Json, sse
from swarm.gateway.sources import Sources
from swarm.gateway.stream_io import EventStream
from swarm.gateway.view import note_json, state_json
from swarm.node_port import NodePort
from swarm.notes import Level, Note, NoteSink, note

LOOK_SHARE = 0.05
"""Of the loop's time that looking at the state may take: it is looked at less often where it is
large."""


class Reader:
    """Events that wait for one reader, up to so many bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()
        self.lost = 0
        """Events it missed since it was given the whole state."""

    def push(self, event: bytes) -> None:
        self._ready.set()
        if self.lost or self._bytes + len(event) > self._bytes_max:
            self.lost += len(self._events) + 1
            self._events.clear()
            self._bytes = 0
            return
        self._events.append(event)
        self._bytes += len(event)

    def take(self) -> bytes:
        """All that waits."""
        waiting = b"".join(self._events)
        self._events.clear()
        self._bytes = 0
        return waiting

    async def wait(self) -> None:
        await self._ready.wait()
        self._ready.clear()


class EventPages:
    """Serves `/swarm/events`. Works only while somebody reads."""

    def __init__(
        self, node: NodePort, config: GatewayConfig, sources: Sources, notes: NoteSink
    ) -> None:
        self._node = node
        self._config = config
        self._sources = sources
        self._notes = notes
        self._readers: dict[int, Reader] = {}
        self._requests: dict[int, web.Request] = {}
        self._state: Json = {}
        self._whole: bytes | None = None
        """The present state as an event, once somebody needed it."""
        self._tasks: list[asyncio.Task[None]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/swarm/events", self._events)]

    def stop(self) -> None:
        """Hang up on all readers."""
        for request in list(self._requests.values()):
            if request.transport is not None:
                request.transport.close()

    async def close(self) -> None:
        tasks, self._tasks, self._state, self._whole = self._tasks, [], {}, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if len(self._readers) >= self._config.event_streams_max:
            raise RequestError("too many readers of events", status=429)
        reader = Reader(self._config.event_backlog_bytes_max)
        stream = EventStream(request, {}, self._config)
        self._readers[id(request)], self._requests[id(request)] = reader, request
        if not self._tasks:
            self._tasks = [asyncio.create_task(part()) for part in (self._look, self._listen)]
            for task in self._tasks:
                task.add_done_callback(self._ended)
        try:
            async with stream:
                await stream.write(self._all())
                await self._pass_on(reader, stream)
        except ConnectionError:
            pass
        finally:
            del self._readers[id(request)], self._requests[id(request)]
            if not self._readers:
                await self.close()
        return stream.response

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without both parts readers would wait for ever: a bug, but one that is seen."""
        if not task.cancelled():
            what = repr(task.exception())
            self._notes(note("gateway.bug", Level.ERROR, path="/swarm/events", error=what))
            self.stop()

    async def _pass_on(self, reader: Reader, stream: EventStream) -> None:
        while True:
            await reader.wait()
            lost, reader.lost = reader.lost, 0
            if lost:
                await stream.write(sse({"events": lost}, "lost") + self._all())
            else:
                await stream.write(reader.take())

    def _all(self) -> bytes:
        """The whole state as of now, which other readers get as a change."""
        self._refresh()
        if self._whole is None:
            self._whole = sse(self._state, "snapshot")
        return self._whole

    def _refresh(self) -> None:
        state = state_json(self._node.snapshot())
        change = difference(self._state, state) if self._state else {}
        self._state = state
        if change is None:
            return
        self._whole = None
        if change:
            self._push(sse(change, "change"))

    def _push(self, event: bytes) -> None:
        for reader in self._readers.values():
            reader.push(event)

    async def _look(self) -> None:
        clock = self._sources.clock
        while True:
            began = clock()
            self._refresh()
            took_s = clock() - began
            await asyncio.sleep(max(self._config.event_interval_s, took_s / LOOK_SHARE))

    async def _listen(self) -> None:
        notes = self._node.subscribe(self._config.event_notes_max)
        try:
            async for entry in notes:
                if entry.level >= Level.INFO:
                    at = round(self._sources.wall_clock(), 3)
                    self._push(sse({"at": at, **note_json(entry)}, "note"))
        finally:
            await _close(notes)


async def _close(notes: AsyncIterator[Note]) -> None:
    close = getattr(notes, "aclose", None)
    if close is not None:
        with suppress(RuntimeError):
            await close()
