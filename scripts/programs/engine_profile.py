"""Where the time of a decode step goes, inside a worker and around it.

The worker runs on the main thread, since torch's profiler sees the thread it was started on; the
driver has a thread of its own. Steps are timed once without the profiler and once with it: the
kernels' shares come from the second, what surrounds them from the first.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from one_worker import Driver, Port, worker_environment
from rig import print_table

from swarm.config import ShardConfig
from swarm.terms import LayerRange, Sampling

WARM_UP_STEPS = 8
KINDS = {
    "attention": ("attention", "attend", "attn", "sdpa", "softmax", "bmm", "baddbmm", "flash"),
    "linear": ("linear", "mm", "gemm", "matmul", "conv"),
    "cache and gather": ("index", "gather", "scatter", "cat", "copy", "write_rows", "embedding"),
}
"""Kinds of operators by parts of their names; the first kind that fits."""


@dataclass(frozen=True, slots=True)
class Order:
    model: Path
    layers: LayerRange | None
    kv_tokens: int
    sessions: int
    context: int
    steps: int


@dataclass(slots=True)
class Times:
    """Seconds by place, of the steps between `start` and `stop`."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    on: bool = False

    def wrap(self, place: str, work: Callable[..., Any]) -> Callable[..., Any]:
        worker = threading.get_ident()

        @functools.wraps(work)
        def timed(*arguments: Any, **named: Any) -> Any:
            if not self.on or threading.get_ident() != worker:
                return work(*arguments, **named)
            began = time.perf_counter()
            result = work(*arguments, **named)
            self.seconds[place] = self.seconds.get(place, 0.0) + time.perf_counter() - began
            self.calls[place] = self.calls.get(place, 0) + 1
            return result

        return timed


class Session:
    """The driver's side: a plain stretch of steps, then one under the profiler."""

    def __init__(self, order: Order, channel: socket.socket, folder: Path) -> None:
        self.order = order
        self.times = Times()
        self.profiling = threading.Event()
        self.weight_bytes = 0
        self.plain_s = 0.0
        self.profiled_s = 0.0
        self.failure: BaseException | None = None
        self._channel = channel
        self._folder = folder

    def play(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001 - the root of the thread; raised by `report`
            self.failure = error
        finally:
            self._channel.close()

    def _play(self) -> None:
        order = self.order
        driver = Driver(Port(self._channel))
        driver.load(order.model, order.layers, order.kv_tokens, self._folder)
        limit = order.context + WARM_UP_STEPS + 2 * order.steps + 1
        greedy = Sampling(temperature=0.0)
        keys = [driver.begin(order.context, limit, greedy) for _ in range(order.sessions)]
        driver.prefill(keys, order.context)
        position = order.context
        driver.decode(keys, position, WARM_UP_STEPS)
        position += WARM_UP_STEPS
        self.times.on = True
        self.plain_s = driver.decode(keys, position, order.steps)
        self.times.on = False
        self.profiling.set()
        self.profiled_s = driver.decode(keys, position + order.steps, order.steps)
        self.profiling.clear()
        driver.end(keys[0])


def report(order: Order, config: ShardConfig, folder: Path) -> int:
    """Print the tables; returns the bytes of the weights held.

    Loads torch into this process, in the surroundings that the daemon gives a worker.
    """
    os.environ |= worker_environment() | {"KINETO_LOG_LEVEL": "5"}
    session, operators = _profile(order, config, folder)
    slower = session.profiled_s / session.plain_s
    scale = 1e6 / order.steps
    kinds = {name: s * scale / slower for name, s in by_kind(operators).items()}
    step, engine = session.plain_s * scale, session.times.seconds.get("engine", 0.0) * scale
    framing = session.times.seconds.get("framing", 0.0) * scale
    kernels = sum(kinds.values())
    rows: list[tuple[str, str]] = [(name, _cell(us, step)) for name, us in kinds.items()]
    rows += [
        ("Python around the kernels", _cell(engine - kernels, step)),
        ("framing in the worker", _cell(framing, step)),
        ("socket, waking, the driver's own", _cell(step - engine - framing, step)),
        ("whole step", _cell(step, step)),
    ]
    title = (
        f"one decode step of {order.sessions} sessions, µs (the kernels' are from a profiled run,"
        f" which took {slower:.2f} times as long, and are scaled to this one)"
    )
    print_table(title, ["where", "µs"], rows)
    top = sorted(operators, key=lambda entry: -entry[1])[:8]
    print_table(
        "most of it", ["operator", "µs", "calls"],
        [(name, f"{s * scale / slower:.0f}", f"{n / order.steps:.0f}") for name, s, n in top],
    )  # fmt: skip
    return session.weight_bytes


def _cell(value: float, whole: float) -> str:
    return f"{value:.0f} ({100 * value / whole:.0f} %)"


def by_kind(operators: Iterable[tuple[str, float, int]]) -> dict[str, float]:
    """Seconds by kind of operator, of (name, own seconds, calls)."""
    sums = dict.fromkeys((*KINDS, "other operators"), 0.0)
    for name, seconds, _ in operators:
        sums[kind_of(name)] += seconds
    return sums


def kind_of(name: str) -> str:
    lowered = name.lower()
    for kind, parts in KINDS.items():
        if any(part in lowered for part in parts):
            return kind
    return "other operators"


@functools.cache
def _settle(threads: int) -> None:
    """What a worker's process does first; torch takes the number of threads only once."""
    from swarm.shard.host_io import use_threads
    from swarm.shard.load_io import quiet_transformers

    quiet_transformers()
    use_threads(threads)


def _profile(
    order: Order, config: ShardConfig, folder: Path
) -> tuple[Session, list[tuple[str, float, int]]]:
    """Serve the session's messages here; returns it and (operator, own seconds, calls)."""
    from torch.profiler import ProfilerActivity, profile

    from swarm.shard import worker_io
    from swarm.shard.engine import Engine
    from swarm.shard.frames import FrameReader

    _settle(config.threads)
    ours, theirs = socket.socketpair()
    session = Session(order, ours, folder)
    times, profiler = session.times, profile(activities=[ProfilerActivity.CPU])
    plain_step, running = Engine.step, []

    def step(engine: Engine) -> Any:
        session.weight_bytes = engine.stage.parameter_bytes
        if session.profiling.is_set() and not running:
            running.append(True)
            profiler.start()
        return plain_step(engine)

    patches = [
        (Engine, "step", times.wrap("engine", step)),
        (FrameReader, "filled", times.wrap("framing", FrameReader.filled)),
        (worker_io, "pack", times.wrap("framing", worker_io.pack)),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    thread = threading.Thread(target=session.play)
    try:
        for owner, name, patch in patches:
            setattr(owner, name, patch)
        thread.start()
        with theirs:
            worker_io.Worker(theirs, config).serve()
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        thread.join()
    if session.failure is not None:
        raise session.failure
    profiler.stop()
    averages = profiler.key_averages()
    return session, [(e.key, e.self_cpu_time_total / 1e6, e.count) for e in averages]
