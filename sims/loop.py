"""An asyncio event loop on virtual time: one seed, one run.

Everything asyncio schedules passes through `call_soon` and `call_at`, so a loop that owns these
owns all interleaving. Time is an integer of nanoseconds and jumps to the next timer when nothing is
ready. Each callback belongs to a process on a machine (see `machine`): one process's callbacks
keep their order, as asyncio promises; which of several processes goes first is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import inspect
import math
import zlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar, cast

from sims.handles import Deadlock as Deadlock
from sims.handles import Livelock as Livelock
from sims.handles import Network as Network
from sims.handles import SimHandle as SimHandle
from sims.handles import SimTask
from sims.machine import PROCESS, SECOND_NS, Machine, Process

T = TypeVar("T")

STEPS_AT_ONE_INSTANT_MAX = 200_000
"""More callbacks than this without time moving on is a livelock."""
TRACE_MASK = (1 << 64) - 1
MARKED_BYTES_MAX = 4096
"""Bulk is all alike, and there is much of it."""
TRACE_FACTOR = 0x9E3779B97F4A7C15
SOCKETS_FIRST_SHARE = 0.7
"""After a stall the loops of today serve sockets before overdue timers; some builds did not."""
FOREVER_NS = 1 << 62


_Base: Any = asyncio.AbstractEventLoop
"""Files, signals, subprocesses and the like are not simulated: asking for them raises."""


class SimLoop(_Base):  # type: ignore[misc]
    """`fifo`: no drawing; processes take turns in the order in which they became ready."""

    def __init__(self, seed: int, *, fifo: bool = False, start_s: float = 1000.0) -> None:
        self.seed = seed
        self.now_ns = int(start_s * SECOND_NS)
        self.network: Network | None = None
        self.trace = 0
        self.step_count = 0
        self._instant_began = 0
        """The number of steps done when time last moved on."""
        self.faults: list[dict[str, Any]] = []
        """Contexts of exceptions that reached the loop: there should be none."""
        self.world = Process(0, Machine(0, "world", ()))
        self.current = self.world
        self._fifo = fifo
        self._rng = self.random("schedule")
        self._random = self._rng.random
        self._timers: list[tuple[int, float, int, SimHandle]] = []
        self._runnable: deque[Process] = deque()
        self._count = 0
        self._process_count = 0
        self._graveyard: list[asyncio.Task[Any]] = []
        self.is_collecting = False
        self._is_running = False
        self._is_closed = False

    # ------------------------------------------------------------ randomness and trace

    def random(self, name: str) -> Random:
        """A stream of its own for each purpose: a draw more in one moves no other."""
        return Random(f"{self.seed}/{name}")

    def mark(self, data: bytes | memoryview) -> None:
        """Make `data` part of the trace; of much of it the length and both ends."""
        if len(data) > MARKED_BYTES_MAX:
            half = MARKED_BYTES_MAX // 2
            mixed = zlib.crc32(data[-half:], zlib.crc32(data[:half])) + len(data)
        else:
            mixed = zlib.crc32(data)
        self.trace = ((self.trace ^ mixed) * TRACE_FACTOR) & TRACE_MASK

    @property
    def trace_hash(self) -> str:
        return f"{self.trace:016x}"

    # ------------------------------------------------------------ processes

    def process(self, machine: Machine) -> Process:
        self._process_count += 1
        return Process(self._process_count, machine)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of that process."""
        task: asyncio.Task[T] = process.context.copy().run(self.create_task, coroutine)
        return task

    def kill(self, process: Process) -> None:
        """It never runs again, not even its `finally` blocks (until the loop is closed)."""
        process.is_alive = False
        process.ready.clear()
        process.overdue.clear()
        self._graveyard += process.tasks.values()
        process.tasks = {}

    def stall(self, process: Process, duration_s: float) -> None:
        """Its loop does nothing for so long: a blocked thread, a starved core."""
        if process.is_stalled or not process.is_alive:
            return
        process.is_stalled = True
        self.post(self.now_ns + int(duration_s * SECOND_NS), self.world, self._end_stall, process)

    def sleep_machine(self, machine: Machine) -> None:
        """Suspend: the clock stands still and nothing runs until `wake_machine`."""
        machine.fall_asleep(self.now_ns)
        if self.network is not None:
            self.network.machine_slept(machine)

    def wake_machine(self, machine: Machine, processes: list[Process]) -> None:
        machine.wake(self.now_ns)
        if self.network is not None:
            self.network.machine_woke(machine)
        for process in processes:
            self._resume(process)

    def _end_stall(self, process: Process) -> None:
        process.is_stalled = False
        self._resume(process)

    def _resume(self, process: Process) -> None:
        if not process.can_run:
            return
        overdue, process.overdue = process.overdue, []
        local_ns = process.machine.local_ns(self.now_ns)
        due: list[SimHandle] = []
        for handle in sorted(overdue, key=lambda h: h.local_ns):
            if handle.local_ns > local_ns:
                self._set_timer(process.machine.global_ns(handle.local_ns), handle)
            else:
                due.append(handle)
        if self._fifo or self._rng.random() < SOCKETS_FIRST_SHARE:
            process.ready.extend(due)
        else:
            process.ready.extendleft(reversed(due))
        self._enqueue(process)

    # ------------------------------------------------------------ scheduling

    def time(self) -> float:
        """Seconds by the clock of the machine whose callback runs."""
        machine = self.current.machine
        if machine.is_warped:
            return machine.local_ns(self.now_ns) / SECOND_NS
        return self.now_ns / SECOND_NS

    @property
    def now_s(self) -> float:
        """The simulated time itself."""
        return self.now_ns / SECOND_NS

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        if context is None:
            process = self.current
            context = process.context
        else:
            process = context.get(PROCESS, self.world)
        handle = SimHandle(callback, args, context, process)
        if process.is_alive:
            process.ready.append(handle)
            if not (process.is_queued or process.is_stalled or process.machine.is_asleep):
                process.is_queued = True
                self._runnable.append(process)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        machine, local_ns = self.current.machine, self.now_ns
        if machine.is_warped:
            local_ns = machine.local_ns(local_ns)
        if delay > 0:
            local_ns += math.ceil(delay * SECOND_NS)
        return self._timer(local_ns, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> SimHandle:
        return self._timer(math.ceil(when * SECOND_NS), callback, args, context)

    def post(
        self, when_ns: int, process: Process, callback: Callable[..., object], *args: Any
    ) -> SimHandle:
        """From outside (network, world): run in `process` at a simulated time, or when it can."""
        handle = SimHandle(callback, args, process.context, process)
        self._count += 1
        heapq.heappush(self._timers, (when_ns, 0, self._count, handle))
        return handle

    def _timer(
        self,
        local_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> SimHandle:
        process = self.current if context is None else context.get(PROCESS, self.world)
        handle = SimHandle(callback, args, context or process.context, process, local_ns)
        self._set_timer(max(self.now_ns, process.machine.global_ns(local_ns)), handle)
        return handle

    def _set_timer(self, when_ns: int, handle: SimHandle) -> None:
        self._count += 1
        tie = 0.0 if self._fifo or handle.local_ns < 0 else self._random()
        heapq.heappush(self._timers, (when_ns, tie, self._count, handle))

    def _enqueue(self, process: Process) -> None:
        if process.ready and not process.is_queued and process.can_run:
            process.is_queued = True
            self._runnable.append(process)

    # ------------------------------------------------------------ running

    def run_until(self, done: Callable[[], bool], limit_s: float = float("inf")) -> bool:
        """Run until `done()` (asked whenever nothing is ready) or for `limit_s` simulated seconds.

        Returns whether it is done. Raises Deadlock when nothing can happen any more.
        """
        end_ns = FOREVER_NS if limit_s == float("inf") else self.now_ns + int(limit_s * SECOND_NS)
        with self._running():
            while True:
                self._run_ready()
                if done():
                    return True
                if self._advance(end_ns):
                    continue
                if not self._timers:
                    raise Deadlock("nothing is ready and no timer is set")
                self.now_ns = end_ns
                return False

    def run_for(self, duration_s: float) -> None:
        end_ns = self.now_ns + int(duration_s * SECOND_NS)
        with self._running():
            self._run_ready()
            while self._advance(end_ns):
                self._run_ready()
            self.now_ns = end_ns

    def run_until_complete(self, future: Any) -> Any:
        """Run a coroutine of the world to its end."""
        task = asyncio.ensure_future(future, loop=self)
        try:
            self.run_until(task.done)
        except Deadlock as error:
            raise Deadlock(f"{error}; waiting: {_where(task)}") from None
        return task.result()

    def _run_ready(self) -> None:
        """Run all that is ready at this instant: one callback of one process after the other."""
        runnable, draws = self._runnable, not self._fifo
        last_step = self._instant_began + STEPS_AT_ONE_INSTANT_MAX
        while runnable:
            if draws and len(runnable) > 1:
                runnable.rotate(-int(self._random() * len(runnable)))
            process = runnable.popleft()
            process.is_queued = False
            ready = process.ready
            if not ready or not process.can_run:
                continue
            handle = ready.popleft()
            self.current = process
            self.step_count += 1
            mixed = (self.trace ^ self.now_ns ^ process.mark) * TRACE_FACTOR
            self.trace = mixed & TRACE_MASK
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as an event loop does: told, not raised
                told = {"message": f"in {handle.callback}", "exception": error}
                self.call_exception_handler(told)
            finally:
                self.current = self.world
            if ready and not process.is_queued:
                self._enqueue(process)
            if self.step_count > last_step:
                raise Livelock(f"at {self.now_s} s, last in {process}")

    def _advance(self, end_ns: int) -> bool:
        """Move on to the next timer's time. False: there is none before the end."""
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heapq.heappop(timers)
        if not timers:
            return False
        due_ns = timers[0][0]
        if due_ns > end_ns:
            return False
        if due_ns > self.now_ns:
            self.now_ns = due_ns
            self._instant_began = self.step_count
        else:
            due_ns = self.now_ns
        while timers and timers[0][0] <= due_ns:
            self._come_due(heapq.heappop(timers)[3])
        return True

    def _come_due(self, handle: SimHandle) -> None:
        process = handle.process
        if handle._cancelled or not process.is_alive:
            return
        machine = process.machine
        can_run = not (process.is_stalled or machine.is_asleep)
        if handle.local_ns >= 0:
            if not can_run:
                process.overdue.append(handle)
                return
            if machine.is_warped and machine.local_ns(self.now_ns) < handle.local_ns:
                self._set_timer(max(self.now_ns + 1, machine.global_ns(handle.local_ns)), handle)
                return
        process.ready.append(handle)
        if can_run and not process.is_queued:
            process.is_queued = True
            self._runnable.append(process)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Collection of garbage runs finalizers at odd moments, so it waits for `close`."""
        if self._is_running:
            raise RuntimeError("this loop runs already")
        before = events._get_running_loop()
        collects = gc.isenabled()
        gc.disable()
        self._is_running = True
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)
            self._is_running = False
            if collects:
                gc.enable()

    def collect(self) -> None:
        """Free what dead processes have left, between two callbacks: an hour leaves gigabytes.

        Finalizers that run meanwhile are those of the dead: they are heard by nobody, so that a
        run is the same with and without this.
        """
        for task in self._graveyard:
            _drop(task)
        self._graveyard.clear()
        timers = self._timers
        timers[:] = [entry for entry in timers if entry[3].may_run]
        heapq.heapify(timers)
        self.is_collecting = True
        deaf = ("call_soon", "call_soon_threadsafe", "call_later", "call_at", "post", "mark")
        for name in (*deaf, "call_exception_handler"):
            setattr(self, name, self._unheard)
        try:
            gc.collect()
        finally:
            self.is_collecting = False
            for name in (*deaf, "call_exception_handler"):
                delattr(self, name)

    def _unheard(self, *_: Any, **__: Any) -> SimHandle:
        return SimHandle(print, (), self.world.context, self.world)

    # ------------------------------------------------------------ futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        self._count += 1
        number = self._count
        more = {} if context is None else {"context": context}
        task = SimTask(coro, number=number, loop=self, name=name or f"task {number}", **more)
        process = contextvars.copy_context().get(PROCESS, self.world)
        process.tasks[number] = task
        task.add_done_callback(lambda _: process.tasks.pop(number, None), context=process.context)
        return task

    # ------------------------------------------------------------ network

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert self.network is not None
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> asyncio.AbstractServer:
        assert self.network is not None
        return await self.network.serve(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        raise OSError(f"no name server in a simulation: {host}")

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """At once: threads would not be repeatable."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    # ------------------------------------------------------------ the rest of the interface

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context | {"at_s": self.now_s, "process": self.current})

    def get_exception_handler(self) -> None:
        return None

    def get_task_factory(self) -> None:
        return None

    async def shutdown_asyncgens(self) -> None:
        """None are tracked."""

    def close(self) -> None:
        """Drop all that is left without running it. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._timers.clear()
        for task in [*self._graveyard, *self.world.tasks.values()]:
            _drop(task)
        self._graveyard.clear()


def _drop(task: asyncio.Task[Any]) -> None:
    """A task of a dead process is not worth a warning, nor one that never began."""
    cast(Any, task)._log_destroy_pending = False
    coroutine = cast(Any, task.get_coro())
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()


def _where(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    return f"line {stack[0].f_lineno} of {stack[0].f_code.co_filename}" if stack else "nowhere"
