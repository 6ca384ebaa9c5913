"""The events of a request's sessions for whoever reads them, with an end of the gateway's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swarm.effects import SessionEvent
from swarm.node_port import Generation
from swarm.terms import SessionId


class EventFeed:
    """Copies the events of generations; `cut` ends the reading whatever the node does."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = tuple(generations)
        self._events: asyncio.Queue[tuple[int, SessionEvent] | None] = asyncio.Queue()
        self._copiers = [
            asyncio.create_task(self._copy(index, generation))
            for index, generation in enumerate(self._generations)
        ]
        for copier in self._copiers:
            copier.add_done_callback(self._ended)

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        return tuple(generation.session for generation in self._generations)

    async def next(self) -> tuple[int, SessionEvent] | None:
        """The next event, with the index of its generation; None when no more will come.

        Raises what an iteration raised.
        """
        entry = await self._events.get()
        if entry is None:
            for copier in self._copiers:
                if copier.done() and not copier.cancelled():
                    copier.result()
        return entry

    def finish(self, index: int) -> None:
        """Free the hops of one session, of which nothing more is wanted."""
        self._generations[index].cancel()
        self._copiers[index].cancel()

    def cut(self) -> None:
        """End all sessions and the reading, after the events that are here already."""
        for generation in self._generations:
            generation.cancel()
        self._events.put_nowait(None)

    async def close(self) -> None:
        """Free the hops of all sessions at once, whether they ended or not."""
        for index in range(len(self._generations)):
            self.finish(index)
        await asyncio.gather(*self._copiers, return_exceptions=True)

    async def _copy(self, index: int, generation: Generation) -> None:
        async for event in generation:
            self._events.put_nowait((index, event))

    def _ended(self, copier: asyncio.Task[None]) -> None:
        """The reading ends with the last generation, or with the first that broke."""
        broke = not copier.cancelled() and copier.exception() is not None
        if broke or all(other.done() for other in self._copiers):
            self._events.put_nowait(None)
