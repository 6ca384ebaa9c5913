"""The events of one session for the request that reads them, with an end of the gateway's own."""

from __future__ import annotations

import asyncio

from swarm.effects import SessionEvent
from swarm.node_port import Generation
from swarm.terms import SessionId


class EventFeed:
    """Copies a generation's events; `cut` ends the reading whatever the node does."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._events: asyncio.Queue[SessionEvent | None] = asyncio.Queue()
        self._copier = asyncio.create_task(self._copy())
        self._copier.add_done_callback(lambda _: self._events.put_nowait(None))

    @property
    def session(self) -> SessionId:
        return self._generation.session

    async def next(self) -> SessionEvent | None:
        """The next event; None when no more will come. Raises what the iteration raised."""
        event = await self._events.get()
        if event is None and self._copier.done() and not self._copier.cancelled():
            self._copier.result()
        return event

    def cut(self) -> None:
        """End the session and the reading, after the events that are here already."""
        self._generation.cancel()
        self._events.put_nowait(None)

    async def close(self) -> None:
        """Free the session's hops at once, whether it ended or not."""
        self._generation.cancel()
        self._copier.cancel()
        await asyncio.gather(self._copier, return_exceptions=True)

    async def _copy(self) -> None:
        async for event in self._generation:
            self._events.put_nowait(event)
