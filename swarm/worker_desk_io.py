"""One worker of a node, as its shell handles it: steps in turn, orders that wait for its start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from swarm.messages import Message
from swarm.shard.worker_client_io import WorkerPort


class DeviceEvents(Protocol):
    """A node that has several workers; `device` counts from 0."""

    def worker_message(self, message: Message, device: int = 0) -> None: ...

    def worker_lost(self, reason: str, device: int = 0) -> None: ...


class OneOfMany:
    """The `WorkerEvents` of one of a node's workers."""

    def __init__(self, node: DeviceEvents, device: int) -> None:
        self._node = node
        self._device = device

    def worker_message(self, message: Message) -> None:
        self._node.worker_message(message, self._device)

    def worker_lost(self, reason: str) -> None:
        self._node.worker_lost(reason, self._device)


class WorkerDesk:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        worker: WorkerPort,
        lost: Callable[[str], None],
    ) -> None:
        """`lost`: told when it could not even be started, or not be ended."""
        self._loop = loop
        self._worker = worker
        self._lost = lost
        self._task: asyncio.Task[None] | None = None
        self._queue: list[Message] | None = None
        """What is said while it starts."""
        self._is_up = False

    def start(self) -> None:
        """Unless it runs, or is about to."""
        if not self._is_up and self._queue is None:
            self._queue = []
            self._then(partial(self._start, self._queue), "be started")

    def stop(self) -> None:
        self.ended()
        self._then(self._worker.stop, "be ended")

    def ended(self) -> None:
        """It is gone, and what was said to it is moot."""
        self._is_up, self._queue = False, None

    def send(self, message: Message) -> None:
        """What is said while the worker starts waits for it; what follows its loss is moot."""
        if self._is_up:
            self._worker.send(message)
        elif self._queue is not None:
            self._queue.append(message)

    async def halt(self) -> None:
        """Nothing more is begun with it; before `close`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def close(self) -> None:
        await self._worker.stop()

    def _then(self, step: Callable[[], Awaitable[None]], what: str) -> None:
        """One step after the other: a wedged worker takes a while to end. `what`: of it, in the
        passive, for people."""
        before = self._task

        async def follow() -> None:
            if before is not None:
                await before
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - later steps must not fail for it too
                self._lost(f"it could not {what}: {str(error) or type(error).__name__}")

        self._task = self._loop.create_task(follow())

    async def _start(self, queue: list[Message]) -> None:
        await self._worker.start()
        if self._queue is not queue:
            return  # it was lost meanwhile
        self._is_up, self._queue = True, None
        for message in queue:
            self._worker.send(message)
