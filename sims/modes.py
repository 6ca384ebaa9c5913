"""The ways to run the simulator: list, one seed, many seeds. Each returns an exit status."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from sims import catalogue, verdicts
from sims.pool import Job, ablations, play
from sims.progress import measured
from sims.runner import ALL, Result
from sims.scenarios import REGISTRY, Scenario
from sims.story import Story
from sims.verdicts import Tally
from sims.watch import Watch
from sims.wishes import Wishes
from swarm.errors import ConfigError

OK, FAILED, INTERRUPTED = 0, 1, 130


def show_list(wishes: Wishes) -> int:
    from sims import figures

    console = wishes.console
    console.print("Scenarios (--scenario NAME):")
    console.print(_pairs((name, REGISTRY[name].says) for name in catalogue.names()))
    console.print("\nInvariants, always on:")
    console.print(_pairs((kind.name, kind.says) for kind in ALL))
    console.print("\nSafeguards (--without NAME; --ablations switches off each in turn):")
    console.print(_pairs((name, entry.says) for name, entry in ablations().items()))
    console.print("\nFigures (--figures NAME):")
    console.print(_pairs((kind.name, kind.says) for kind in figures.KINDS.values()))
    return OK


def one_seed(wishes: Wishes, seed: int, *, whole_log: bool = False) -> int:
    results = [_tell_one(wishes, found, seed, whole_log) for found in wishes.chosen()]
    return OK if all(result.passed for result in results) else FAILED


def _tell_one(wishes: Wishes, found: Scenario, seed: int, whole_log: bool) -> Result:
    wishes.console.print(f"[bold]{found.name}[/], seed {seed}: {found.says}")
    story = Story(wishes.console, whole_log=whole_log)
    result = play(wishes.job(found, seed), story)
    story.ends()
    _tell_verdict(wishes, wishes.job(found, seed), result)
    return result


def _tell_verdict(wishes: Wishes, job: Job, result: Result) -> None:
    console = wishes.console
    console.print()
    console.print(verdicts.verdict_of_one(result))
    console.print()
    console.print(
        _pairs(
            (
                ("answers", verdicts.outcomes_line(result.outcomes)),
                ("counts", verdicts.counts_line(result.events)),
                ("time", verdicts.pace_line(result.virtual_s, result.real_s)),
                ("trace", f"{result.trace_hash} over {result.steps:,} steps"),
                ("again", job.command),
            )
        )
    )
    console.print()


def watch_seed(wishes: Wishes, seed: int, speed: float) -> int:
    """One run in the terminal; its verdict stays there."""
    if not wishes.console.is_terminal:
        raise ConfigError("--watch needs a terminal; without it a run is told line by line")
    status = OK
    for found in wishes.chosen():
        job = wishes.job(found, seed)
        with Watch(wishes.console, f"{found.name}, seed {seed}", speed) as watch:
            result = play(job, watch)
        wishes.console.print(f"[bold]{found.name}[/], seed {seed}: {found.says}")
        _tell_verdict(wishes, job, result)
        status = status if result.passed else FAILED
    return status


def many_seeds(wishes: Wishes) -> int:
    """All seeds of all chosen scenarios. Interrupted, it tells of the runs that are done."""
    chosen = wishes.chosen()
    seeds = range(wishes.first_seed, wishes.first_seed + (wishes.seeds or 1))
    jobs = [wishes.job(found, seed) for seed in seeds for found in chosen]
    started, status, tally = time.perf_counter(), OK, Tally()
    try:
        for job, result in watched(wishes, jobs, "seeds" if len(chosen) == 1 else "runs"):
            tally.add(job, result)
    except KeyboardInterrupt:
        status = INTERRUPTED
        wishes.console.print(f"interrupted after {tally.runs} of {len(jobs)} runs", style="yellow")
    _tell_many(wishes.console, tally, time.perf_counter() - started, wishes.processes)
    return status or (FAILED if tally.failures else OK)


def watched(wishes: Wishes, jobs: Sequence[Job], unit: str) -> Iterator[tuple[Job, Result]]:
    """All runs, as they are done; what fails is told at once."""
    yield from measured(wishes, unit, _play_named, jobs, _failure)


def _failure(played: tuple[Job, Result]) -> str:
    job, result = played
    return "" if result.passed else f"{job.command}\n    {result.violations[0]}"


def _play_named(job: Job) -> tuple[Job, Result]:
    return job, play(job)


def _tell_many(console: Console, tally: Tally, wall_s: float, processes: int) -> None:
    console.print(verdicts.verdict_of_many(tally))
    console.print()
    pace = verdicts.pace_line(tally.virtual_s, tally.real_s)
    rate = tally.runs / tally.real_s if tally.real_s else 0.0
    console.print(
        _pairs(
            (
                ("answers", verdicts.outcomes_line(tally.outcomes)),
                ("counts", verdicts.counts_line(tally.events)),
                ("time", f"{pace}, counted per core; {rate:,.1f} runs per second and core"),
                (
                    "runs",
                    f"{tally.runs:,} in {wall_s:,.1f} s on {processes} cores,"
                    f" {len(tally.failures):,} failed",
                ),
            )
        )
    )
    if tally.failures:
        console.print("\nFailing seeds, each with the command that plays it again:")
        for line in verdicts.failing_lines(tally.failures):
            console.print(line, soft_wrap=True)


def _pairs(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    return table
