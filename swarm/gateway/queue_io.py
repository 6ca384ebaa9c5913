"""How many requests are answered at once, and how many may wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swarm.config import GatewayConfig
from swarm.errors import CapacityError, RequestError


class Turns:
    """First come, first served. Who goes away while waiting leaves the queue at once."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Raises RequestError (429) when the queue is full, CapacityError after too long a wait."""
        if self.running < self._config.requests_max and not self._waiting:
            self.running += 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self) -> None:
        """Returns with a turn, which whoever ended handed over."""
        if len(self._waiting) >= self._config.queue_max:
            raise RequestError("too many requests at once on this gateway", status=429)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                self._pass_on()
            else:
                self._waiting.remove(mine)
            if isinstance(error, TimeoutError):
                raise CapacityError(
                    f"no turn came within {self._config.queue_timeout_s:g} s; try again later"
                ) from error
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self.running -= 1
