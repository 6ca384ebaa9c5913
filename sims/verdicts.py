"""What a person is told about runs: one line per invariant, and what happened how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from sims.invariants import Invariant, Violation
from sims.pool import BROKEN_HARNESS, Job
from sims.runner import ALL, Result
from sims.world import Watcher

TOLD: tuple[tuple[str, str], ...] = (
    ("session.route", "routes opened"),
    ("session.reroute", "reroutes"),
    ("session.waiting", "waits for lost layers"),
    ("peer.quiet", "soft alarms"),
    ("peer.penalty", "penalties"),
    ("member.suspect", "suspicions"),
    ("gossip.refuted", "refutations"),
    ("member.dead", "deaths declared"),
    ("member.left", "departures seen"),
    ("worker.lost", "workers lost"),
)
"""Notes that are counted for people, over all nodes, and what they are called."""
SEEDS_SHOWN_MAX = 8


def is_judged_at_end(kind: type[Invariant]) -> bool:
    """Whether it says nothing before all is over."""
    quiet = (kind.on_note, kind.on_event, kind.on_step)
    return quiet == (Watcher.on_note, Watcher.on_event, Watcher.on_step)


AT_END = frozenset(kind.name for kind in ALL if is_judged_at_end(kind))


def was_judged(result: Result, kind: type[Invariant]) -> bool:
    """A run stops at a violation; what is judged at its end is then not judged at all."""
    if any(v.invariant == BROKEN_HARNESS for v in result.violations):
        return False
    ended = result.passed or any(v.invariant in AT_END for v in result.violations)
    return ended or kind.name not in AT_END


@dataclass(slots=True)
class Tally:
    """Many runs, counted. `failures`: the job of each failing run with its first violation."""

    runs: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    failures: list[tuple[Job, Violation]] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)
    violated: dict[str, list[Job]] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, job: Job, result: Result) -> None:
        self.runs += 1
        self.virtual_s += result.virtual_s
        self.real_s += result.real_s
        self.events += result.events
        self.outcomes += result.outcomes
        self.judged.update(kind.name for kind in ALL if was_judged(result, kind))
        for name in dict.fromkeys(v.invariant for v in result.violations):
            self.violated.setdefault(name, []).append(job)
        if not result.passed:
            self.failures.append((job, result.violations[0]))


def verdict_of_one(result: Result) -> Table:
    """A line per invariant: that it held, or what was seen."""
    table = _grid()
    for kind in ALL:
        mine = [v for v in result.violations if v.invariant == kind.name]
        if mine:
            _bad(table, kind.name, f"{mine[0].detail} (at {mine[0].at_s:.6f} s)")
            for other in mine[1:]:
                _bad(table, "", f"{other.detail} (at {other.at_s:.6f} s)")
        elif was_judged(result, kind):
            table.add_row(Text("held", style="green"), kind.name, "")
        else:
            says = "not judged: the run stopped early"
            table.add_row(Text("-", style="yellow"), kind.name, Text(says, style="yellow"))
    for violation in result.violations:
        if violation.invariant not in {kind.name for kind in ALL}:
            _bad(table, violation.invariant, f"{violation.detail} (at {violation.at_s:.6f} s)")
    return table


def verdict_of_many(tally: Tally) -> Table:
    """A line per invariant: in how many runs it held, or the seeds where it did not."""
    table = _grid()
    for kind in ALL:
        failing = tally.violated.get(kind.name, [])
        judged = tally.judged[kind.name]
        if failing:
            _bad(table, kind.name, f"in {len(failing)} of {judged} runs: {_seeds(failing)}")
        else:
            count = (
                f"in {judged:,} of {tally.runs:,} runs" if judged < tally.runs else "in all runs"
            )
            table.add_row(Text("held", style="green"), kind.name, count)
    for name in sorted(set(tally.violated) - {kind.name for kind in ALL}):
        _bad(table, name, f"in {len(tally.violated[name])} runs: {_seeds(tally.violated[name])}")
    return table


def counts_line(events: Counter[str]) -> str:
    """What happened how often."""
    return ", ".join(f"{said} {events[event]:,}" for event, said in TOLD)


def outcomes_line(outcomes: Counter[str]) -> str:
    total = outcomes.total()
    parts = [f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()) if count]
    return f"{total:,}: {', '.join(parts)}" if total else "none"


def pace_line(virtual_s: float, real_s: float) -> str:
    rate = f", {virtual_s / real_s:,.0f} times as fast as life" if real_s > 0 else ""
    return f"{virtual_s:,.1f} virtual seconds in {real_s:,.2f} real ones{rate}"


def failing_lines(failures: Sequence[tuple[Job, Violation]]) -> Iterator[Text]:
    """Each failing seed by its one-line replay command, and what was first seen of it."""
    ordered = sorted(failures, key=lambda failure: (failure[0].scenario, failure[0].seed))
    for job, violation in ordered:
        yield Text(job.command, style="bold")
        yield Text(f"    {violation}")


def _seeds(jobs: Iterable[Job]) -> str:
    listed = sorted((job.scenario, job.seed) for job in jobs)
    scenarios = {scenario for scenario, _ in listed}
    shown = [
        str(seed) if len(scenarios) == 1 else f"{scenario} {seed}"
        for scenario, seed in listed[:SEEDS_SHOWN_MAX]
    ]
    more = len(listed) - len(shown)
    return f"seed {', '.join(shown)}{f' and {more} more' if more else ''}"


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _bad(table: Table, name: str, detail: str) -> None:
    mark = Text("BROKEN" if name else "", style="bold red")
    table.add_row(mark, Text(name, style="red"), Text(detail, style="red"))
