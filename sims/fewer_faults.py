"""The fewest faults with which a run still fails: most of a bad day has nothing to do with it.

Faults are the world's methods of that name, numbered in the order in which they are done. A run
is repeated with some of them left out; what fails the same way needs none of those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from sims.node import SimNode
from sims.phrases import Chorus, Event, Words
from sims.pool import Job, play
from sims.runner import Result, Spectator
from sims.world import LogLine, World

FAULTS = (
    "kill", "vanish", "leave", "stall", "suspend", "crash_worker", "wedge", "slow_worker", "cut",
    "partition", "clog", "reset", "drift", "hang_up", "lose_incarnation", "lose",
)  # fmt: skip
RUNS_MAX = 120
SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`number`: how many were done before it, those left out included."""

    number: int
    at_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:11.3f}  {self.what}"


@dataclass(slots=True)
class Trial(Spectator):
    """One run with some faults left out, and all that it told."""

    left_out: frozenset[int] = frozenset()
    faults: list[Fault] = field(default_factory=list)
    """Those that were done."""
    events: list[Event] = field(default_factory=list)
    result: Result | None = None
    _seen: int = 0
    _words: Words | None = None
    _chorus: Chorus | None = None

    def begins(self, world: World) -> None:
        self._words, self._chorus = Words(world), Chorus(self.events.append)
        world.listeners.append(self._heard)

    def _heard(self, line: LogLine) -> None:
        assert self._words is not None and self._chorus is not None
        event = self._words.of(line)
        if event is not None:
            self._chorus.add(event)

    def admits(self, now_s: float, what: str) -> bool:
        """Whether the next fault is done."""
        number = self._seen
        self._seen += 1
        if number in self.left_out:
            return False
        self.faults.append(Fault(number, now_s, what))
        return True

    def ends(self, result: Result) -> None:
        assert self._chorus is not None
        self._chorus.flush()
        self.result = result

    @property
    def culprit(self) -> str:
        """The invariant that was violated first; "" when all held."""
        assert self.result is not None
        return self.result.violations[0].invariant if self.result.violations else ""


def attempt(job: Job, left_out: Iterable[int] = ()) -> Trial:
    trial = Trial(frozenset(left_out))
    with _watched_faults(trial):
        trial.ends(play(job, trial))
    return trial


def fewest(first: Trial, job: Job, tell: Callable[[int, int], None]) -> Trial:
    """The failing trial with as few faults as could be found. `tell`: (runs made, faults left).

    Halves are left out, then quarters, down to single faults, as long as it fails the same way
    (delta debugging, Zeller 1999).
    """
    best, runs, began = first, 0, time.monotonic()
    size = max(1, len(best.faults) // 2)
    while size >= 1:
        shrunk = False
        for chunk in _chunks([fault.number for fault in best.faults], size):
            if runs >= RUNS_MAX or time.monotonic() - began > SECONDS_MAX:
                return best
            runs += 1
            trial = attempt(job, best.left_out | set(chunk))
            if trial.culprit == first.culprit:
                best, shrunk = trial, True
            tell(runs, len(best.faults))
        if size == 1 and not shrunk:
            return best
        size = size if size == 1 else size // 2
    return best


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    """Late ones first: what came after the decisive fault is the easiest to do without."""
    for start in range(len(numbers) - size, -size, -size):
        yield numbers[max(0, start) : start + size]


@contextmanager
def _watched_faults(trial: Trial) -> Iterator[None]:
    with ExitStack() as stack:
        for name in FAULTS:
            method = _asking(trial, name, getattr(World, name))
            stack.enter_context(mock.patch.object(World, name, method))
        yield


def _asking(trial: Trial, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def ask_first(world: World, *arguments: Any, **named: Any) -> None:
        if trial.admits(world.now_s, _described(name, arguments)):
            method(world, *arguments, **named)

    return ask_first


def _described(name: str, arguments: tuple[Any, ...]) -> str:
    return " ".join([name.replace("_", " "), *(_plain(value) for value in arguments)])


def _plain(value: Any) -> str:
    match value:
        case SimNode():
            return value.machine.name
        case float():
            return f"{value:.3g}"
        case list():
            return ",".join(_plain(entry) for entry in value)
        case _:
            return str(value)
