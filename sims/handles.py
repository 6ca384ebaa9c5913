"""What a simulated loop schedules, what it asks of its network, and what may go wrong with it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from sims.machine import SECOND_NS, Machine, Process


class Deadlock(Exception):
    """Nothing is ready, no timer is set, and what was to be run is not done."""


class Livelock(Exception):
    """Callbacks go on and on while time stands still."""


class SimHandle:
    """A scheduled callback, with what asyncio and aiohttp ask of `Handle` and `TimerHandle`."""

    __slots__ = ("_cancelled", "args", "callback", "context", "local_ns", "process")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: Process,
        local_ns: int = -1,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.process = process
        self.local_ns = local_ns
        """When it is due by the clock of its machine; -1: it is no timer of a process."""
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def may_run(self) -> bool:
        """It is not cancelled, and its process has not ended."""
        return self.process.is_alive and not self._cancelled

    def when(self) -> float:
        return self.local_ns / SECOND_NS


def _nothing() -> None:
    """What a cancelled handle runs."""


class SimTask(asyncio.Task[Any]):
    """Its hash is a count, so that sets of tasks have one order in every run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **more: Any) -> None:
        self._number = number
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self._number


class Network:
    """What a loop asks of its network (`net.SimNet`)."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        raise NotImplementedError

    async def serve(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.AbstractServer:
        raise NotImplementedError

    def machine_slept(self, machine: Machine) -> None:
        """What is under way to it does not arrive."""

    def machine_woke(self, machine: Machine) -> None:
        """Its kernel's timers go on."""
