"""Many runs at once: one process per core, each started afresh, so that none inherits anything."""

from __future__ import annotations

import importlib
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeVar

from sims import catalogue
from sims.invariants import Violation
from sims.runner import Options, Result, Spectator, run
from sims.watchdog import Stuck, Watchdog

J = TypeVar("J")
R = TypeVar("R")

WAITING_PER_CORE = 4
"""Jobs handed out ahead of need; more makes an interruption slower."""
BROKEN_HARNESS = "the run itself"
"""Stands for an invariant where the simulator or a story raised."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run. `without`: the name of a safeguard that is switched off."""

    scenario: str
    seed: int
    options: Options = Options()
    without: str = ""

    @property
    def command(self) -> str:
        return catalogue.replay(self.scenario, self.seed, self.options, self.without)


def play(job: Job, spectator: Spectator | None = None) -> Result:
    """In whatever process this is. What a story or the simulator raises is a violation."""
    found, guard = catalogue.find(job.scenario), Watchdog(spectator)
    with switched_off(job.without):
        try:
            with guard.on_guard():
                return run(found.name, found.story, job.seed, job.options, spectator=guard)
        except Stuck as stuck:
            return broken(job, guard.at_s, str(stuck))
        except Exception as error:  # noqa: BLE001 - one broken run must not hide all others
            return broken(job, guard.at_s, _where(error))


def switched_off(name: str) -> AbstractContextManager[object]:
    """The safeguard of that name is off inside; "" switches nothing off."""
    if not name:
        return nullcontext()
    applied: AbstractContextManager[object] = ablations()[name].applied()
    return applied


def ablations() -> dict[str, Any]:
    """Every safeguard that can be switched off, by name."""
    known: dict[str, Any] = importlib.import_module("sims.mutants").MUTANTS
    return known


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    return f"{type(error).__name__} in {place}: {error}"


def broken(job: Job, at_s: float, detail: str) -> Result:
    """Of a run that came to no end."""
    violation = Violation(at_s, BROKEN_HARNESS, detail)
    return Result(
        scenario=job.scenario,
        seed=job.seed,
        violations=(violation,),
        trace_hash="",
        virtual_s=0.0,
        real_s=0.0,
        steps=0,
        outcomes=Counter(),
        events=Counter(),
    )


def core_count() -> int:
    """Those this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def spread(function: Callable[[J], R], jobs: Iterable[J], processes: int) -> Iterator[R]:
    """`function` of each job, in the order in which they are done. One process: in this one."""
    if processes <= 1:
        yield from map(function, jobs)
        return
    todo = iter(jobs)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            pending: set[Future[R]] = set()
            for job in islice(todo, processes * WAITING_PER_CORE):
                pending.add(pool.submit(function, job))
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for job in islice(todo, len(done)):
                    pending.add(pool.submit(function, job))
                yield from (future.result() for future in done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
