"""What a node gives to those who listen: one session's events, and its notes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from swarm.effects import Failed, Finished, SessionEvent
from swarm.notes import Note
from swarm.terms import SessionId


class GenerationIo:
    """One running session as its client sees it. Its queue holds at most the answer itself."""

    def __init__(self, session: SessionId, cancel: Callable[[SessionId], None]) -> None:
        self._session = session
        self._cancel = cancel
        self._events: asyncio.Queue[SessionEvent | None] = asyncio.Queue()
        self._ended = False

    @property
    def session(self) -> SessionId:
        return self._session

    def push(self, event: SessionEvent) -> None:
        self._events.put_nowait(event)

    def cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._cancel(self._session)
            self._events.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[SessionEvent]:
        """Ends after the last event, and at once after `cancel`."""
        while not self._ended:
            event = await self._events.get()
            if event is None:
                return
            self._ended = isinstance(event, Finished | Failed)
            yield event


class NoteStream:
    """Notes for one reader; the oldest are lost when it is slow."""

    def __init__(self, limit: int) -> None:
        self._notes: deque[Note] = deque(maxlen=limit)
        self._ready = asyncio.Event()

    def push(self, entry: Note) -> None:
        self._notes.append(entry)
        self._ready.set()

    async def read(self) -> AsyncIterator[Note]:
        while True:
            while self._notes:
                yield self._notes.popleft()
            self._ready.clear()
            await self._ready.wait()
