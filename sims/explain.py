"""Why a seed fails, for a person: the faults that matter, what led up to it, and what is different
when one fault less is done."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.text import Text

from sims.fewer_faults import Fault, Trial, attempt, fewest
from sims.phrases import Event
from sims.pool import BROKEN_HARNESS, Job
from sims.story import told
from sims.wishes import Wishes

LAST_EVENTS = 20
DIFFERENT_EVENTS = 8
NEIGHBOURS = 20
"""Seeds on either side among which a passing one is sought."""
OK, FAILED = 0, 1


def explain(wishes: Wishes, seed: int) -> int:
    """Play the seed of each chosen scenario; say all that can be found out of those that fail."""
    status = OK
    for found in wishes.chosen():
        job = wishes.job(found, seed)
        trial = attempt(job)
        if not trial.culprit:
            wishes.console.print(f"{found.name}, seed {seed}: all invariants held")
            continue
        status = FAILED
        _explain(wishes.console, job, trial)
    return status


def _explain(console: Console, job: Job, first: Trial) -> None:
    assert first.result is not None
    violation = first.result.violations[0]
    console.print(f"[bold]{job.scenario}[/], seed {job.seed} fails:")
    console.print(Text(f"  {violation}", style="red"), soft_wrap=True)
    if violation.invariant == BROKEN_HARNESS:
        _tell_last(console, first)
        return
    best = _with_progress(job, first)
    _tell_faults(console, first, best)
    _tell_last(console, best)
    if best.faults:
        _tell_without_last(console, job, best)
    else:
        _tell_neighbour(console, job, best)


def _with_progress(job: Job, first: Trial) -> Trial:
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("leaving faults out: {task.fields[said]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", said=f"{len(first.faults)} were done")
        return fewest(
            first, job, lambda runs, left: bar.update(task, said=f"{left} left after {runs} runs")
        )


def _tell_faults(console: Console, first: Trial, best: Trial) -> None:
    done = len(first.faults)
    if not best.faults:
        console.print(f"\nNone of the {done} faults is needed: it fails without any of them.")
        return
    few = "It takes all" if len(best.faults) == done else f"Of {done} faults it takes only"
    console.print(f"\n{few} {len(best.faults)}:")
    for fault in best.faults:
        console.print(Text(f"{fault}", style="yellow"), soft_wrap=True)


def _tell_last(console: Console, trial: Trial) -> None:
    assert trial.result is not None
    shown = trial.events[-LAST_EVENTS:]
    less = " of the run with only these" if trial.left_out else ""
    console.print(f"\nThe last {len(shown)} events{less} before the violation:")
    _tell_events(console, shown)
    violation = trial.result.violations[0]
    console.print(Text(f"{violation.at_s:11.3f}  {violation.invariant}", style="red"))
    console.print(Text(f"{'':13}{violation.detail}", style="red"), soft_wrap=True)


def _tell_without_last(console: Console, job: Job, best: Trial) -> None:
    """The latest fault whose absence lets the run pass, and what is different then."""
    for fault in reversed(best.faults):
        other = attempt(job, best.left_out | {fault.number})
        if other.culprit != best.culprit:
            break
    else:
        return
    assert other.result is not None
    how = "all holds" if not other.culprit else f"another invariant breaks ({other.culprit})"
    console.print(f"\nWithout [yellow]{fault.what}[/] at {fault.at_s:.3f} {how}.")
    mine, theirs = _after(best, fault), _after(other, fault)
    same = _common(mine, theirs)
    if same:
        console.print(f"The next {same} events are the same; then, with it:")
    else:
        console.print("What follows, with it:")
    _tell_events(console, mine[same : same + DIFFERENT_EVENTS])
    console.print("and without it:")
    _tell_events(console, theirs[same : same + DIFFERENT_EVENTS])


def _tell_neighbour(console: Console, job: Job, best: Trial) -> None:
    """The nearest seed that passes, and where its story leaves the failing one's."""
    for distance in range(1, NEIGHBOURS + 1):
        for seed in (job.seed + distance, job.seed - distance):
            other = attempt(Job(job.scenario, seed, job.options, job.without))
            if not other.culprit:
                _tell_where_they_part(console, seed, best, other)
                return
    console.print(f"\nNo seed within {NEIGHBOURS} of this one passes.")


def _tell_where_they_part(console: Console, seed: int, best: Trial, other: Trial) -> None:
    same = _common(best.events, other.events)
    console.print(f"\nSeed {seed} passes. Their first {same} events are alike; then here:")
    _tell_events(console, best.events[same : same + DIFFERENT_EVENTS])
    console.print(f"and with seed {seed}:")
    _tell_events(console, other.events[same : same + DIFFERENT_EVENTS])


def _after(trial: Trial, fault: Fault) -> list[Event]:
    """What happened from then on, but for the fault itself."""
    return [e for e in trial.events if e.at_s >= fault.at_s and not _is(e, fault)]


def _is(event: Event, fault: Fault) -> bool:
    return event.is_fault and abs(event.at_s - fault.at_s) < 1e-9


def _common(a: Sequence[Event], b: Sequence[Event]) -> int:
    """How many events they have in common from the start on, figures aside."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if _gist(x) != _gist(y)), min(len(a), len(b)))


def _gist(event: Event) -> str:
    return re.sub(r"\d+\.\d+|\b\d+\b", "#", event.what)


def _tell_events(console: Console, events: Sequence[Event]) -> None:
    for event in events:
        console.print(told(event), soft_wrap=True)
    if not events:
        console.print(f"{'':13}nothing more", style="dim")
