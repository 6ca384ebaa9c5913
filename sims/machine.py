"""Simulated machines and the processes that run on them.

A machine has a clock, addresses and a disk that outlives its processes; a process is one run of a
daemon. What can befall them (a stall, sleep, drift, an end without a word) is set here and acted on
by `loop.SimLoop` and `net.SimNet`.
"""

from __future__ import annotations

import contextvars
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from sims.loop import SimHandle

SECOND_NS = 1_000_000_000


class Machine:
    """`hosts`: the addresses it answers to, as literals. The clock is that of CLOCK_MONOTONIC:
    it may run a little fast or slow, and stands still while the machine sleeps."""

    def __init__(self, number: int, name: str, hosts: tuple[str, ...]) -> None:
        self.number = number
        self.name = name
        self.hosts = hosts
        self.is_powered = True
        """False: it has vanished; nothing leaves it and nothing is answered."""
        self.is_asleep = False
        self.is_warped = False
        """Whether its clock differs from the simulated time at all."""
        self._rate = 1.0
        self._base_ns = 0
        self._base_local_ns = 0

    def __repr__(self) -> str:
        return f"<machine {self.name}>"

    @property
    def is_on_air(self) -> bool:
        """Whether its network card sends and answers."""
        return self.is_powered and not self.is_asleep

    def local_ns(self, now_ns: int) -> int:
        """What its clock shows."""
        if not self.is_warped:
            return now_ns
        if self.is_asleep:
            return self._base_local_ns
        return self._base_local_ns + int((now_ns - self._base_ns) * self._rate)

    def global_ns(self, local_ns: int) -> int:
        """When its clock will show `local_ns`, if it neither sleeps nor is set anew until then."""
        if not self.is_warped:
            return local_ns
        return self._base_ns + int((local_ns - self._base_local_ns) / self._rate)

    def set_drift(self, parts_per_million: float, now_ns: int) -> None:
        """From now on its clock gains this much (loses, where negative)."""
        self._rebase(now_ns)
        self._rate = 1.0 + parts_per_million / 1e6

    def fall_asleep(self, now_ns: int) -> None:
        self._rebase(now_ns)
        self.is_asleep = True

    def wake(self, now_ns: int) -> None:
        self._base_ns = now_ns
        self.is_asleep = False

    def _rebase(self, now_ns: int) -> None:
        self._base_local_ns = self.local_ns(now_ns)
        self._base_ns = now_ns
        self.is_warped = True


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
"""Which process a callback or task belongs to; children inherit it."""


class Process:
    """One run of a program on a machine. What it has scheduled runs only while it is alive."""

    def __init__(self, number: int, machine: Machine) -> None:
        self.number = number
        self.mark = number << 40
        """Its part of the trace."""
        self.machine = machine
        self.is_alive = True
        self.is_stalled = False
        self.ready: deque[SimHandle] = deque()
        self.overdue: list[SimHandle] = []
        """Timers that came due while it could not run; what its sockets brought goes first."""
        self.is_queued = False
        """Whether the loop has it among those with something to run."""
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    @property
    def can_run(self) -> bool:
        return self.is_alive and not self.is_stalled and not self.machine.is_asleep

    def __repr__(self) -> str:
        return f"<process {self.number} on {self.machine.name}>"
