"""How far something long has come: a bar where somebody looks, else a line now and then."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sims.pool import spread
from sims.request import Outcome
from sims.runner import Spectator
from sims.wishes import Wishes
from sims.world import World

J = TypeVar("J")
R = TypeVar("R")

LINE_PAUSE_S = 30.0
"""Real time between two lines."""
MILESTONE_S = 300.0
"""Virtual time between two lines about one world; most worlds are shorter, and are told by none."""


def progress_bar() -> Progress:
    """On standard error, and only where somebody looks."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def measured(
    wishes: Wishes,
    what: str,
    measure: Callable[[J], R],
    jobs: Iterable[J],
    failed: Callable[[R], str] = lambda result: "",
) -> Iterator[R]:
    """Results as they come, under a progress bar. `failed`: what is wrong with one, told at once;
    "" for nothing."""
    listed, done, failures = list(jobs), 0, 0
    began_s = said_s = time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task(what, total=len(listed), failed=0)
        for result in spread(measure, listed, min(wishes.processes, len(listed))):
            done += 1
            if wrong := failed(result):
                failures += 1
                say(wrong)
            bar.update(task, advance=1, failed=failures)
            now_s = time.monotonic()
            if bar.disable and done < len(listed) and now_s - said_s >= LINE_PAUSE_S:
                said_s = now_s
                pace = done / (now_s - began_s)
                say(f"{done:,} of {len(listed):,} {what}, {failures:,} failed; {pace:.2f} a second")
            yield result


def say(line: str) -> None:
    """To whoever waits; the figures themselves go to standard output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Milestones(Spectator):
    """Says how one long world fares. `companion`: another spectator of the same run."""

    def __init__(self, name: str, companion: Spectator | None = None) -> None:
        self._name = name
        self._companion = companion or Spectator()
        self._world: World | None = None
        self._due_s = 0.0
        self._began_s = time.monotonic()

    def begins(self, world: World) -> None:
        self._world = world
        self._due_s = world.now_s + MILESTONE_S
        self._companion.begins(world)

    def at_rest(self) -> None:
        world = self._world
        if world is not None and world.loop.now_s >= self._due_s:
            self._due_s += MILESTONE_S
            self._say(world)

    def _say(self, world: World) -> None:
        minutes = (world.now_s - world.began_s) / 60.0
        whole = sum(request.outcome is Outcome.FINISHED for request in world.requests)
        counts = {
            event: sum(n for (_, e), n in world.note_counts.items() if e == event)
            for event in ("session.reroute", "member.dead")
        }
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        say(
            f"{self._name}: {minutes:.0f} virtual minutes in"
            f" {time.monotonic() - self._began_s:,.0f} s; {whole:,} of {len(world.requests):,}"
            f" answers whole, {counts['session.reroute']:,} reroutes,"
            f" {counts['member.dead']:,} deaths declared; {mib:,} MiB"
        )
