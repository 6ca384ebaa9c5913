"""A stream of events to one client: opened when needed, kept alive, never stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.gateway.responses import ErrorAnswer, SseVoice
from swarm.gateway.writing import Voice

SERVER_SENT = SseVoice()


class EventStream:
    """Writes events; while nothing is written, comments from `status` keep the connection alive.

    The headers go out with the first write, so that an early failure can still be a plain HTTP
    error. Use as an async context; writes raise ConnectionError once the client is gone.
    """

    def __init__(
        self,
        request: web.Request,
        headers: Mapping[str, str],
        config: GatewayConfig,
        opening: bytes = b"",
        status: Callable[[], str] = lambda: "waiting",
        voice: Voice = SERVER_SENT,
    ) -> None:
        """`opening`: the first event, sent along with the headers."""
        self.response = web.StreamResponse(
            headers={
                "Content-Type": voice.content_type,
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                **headers,
            }
        )
        self._request = request
        self._config = config
        self._opening = opening
        self._status = status
        self._voice = voice
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()

    @property
    def is_open(self) -> bool:
        return self.response.prepared

    async def __aenter__(self) -> EventStream:
        self._request[STREAM] = self
        self._keeper = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def open(self) -> None:
        """Send the headers and the opening event, if that was not done yet."""
        await self.write(b"")

    async def write(self, data: bytes) -> None:
        """Send whole events. A client that reads nothing for the time allowed is cut off."""
        try:
            async with asyncio.timeout(self._config.write_timeout_s), self._lock:
                await self._write(data)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionAbortedError("the client stopped reading") from error

    async def comment(self, text: str) -> None:
        await self.write(self._voice.comment(text))

    async def fail(self, error: ErrorAnswer) -> None:
        """Write the event that ends a stream which cannot be finished."""
        await self.write(self._voice.failure(error))

    async def _write(self, data: bytes) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)
            data = self._opening + data
        self._last_write = self._loop.time()
        if data:
            await self.response.write(data)

    async def _keep_alive(self) -> None:
        while True:
            wait_s = self._last_write + self._config.keepalive_s - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            try:
                await self.comment(self._status())
            except ConnectionError:
                return


STREAM = web.RequestKey("event_stream", EventStream)
"""Where a request keeps its stream, for whoever has to end it with an error."""
