"""Proof that a seed is one run: the same trace however often, and whatever Python hashes to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from sims.modes import FAILED, OK
from sims.pool import Job, play, spread
from sims.progress import progress_bar
from sims.wishes import Wishes

HASH_SEEDS = ("0", "1", "424242")
HASH_SEED_LIMIT_S = 1800.0
ONE_TRACE = (
    "import sys; from sims.pool import Job, play; from sims.runner import Options;"
    " a = sys.argv; n = lambda text, kind: kind(text) if text else None;"
    " print(play(Job(a[1], int(a[2]), Options(n(a[3], int), n(a[4], float)))).trace_hash)"
)


def trace_of(job: Job) -> str:
    return play(job).trace_hash


def replays(wishes: Wishes, seed: int, times: int) -> int:
    """Play a seed again and again, in as many processes as there are cores."""
    return _judge(wishes, seed, f"{times} replays", lambda job: again(wishes, job, times))


def hash_seeds(wishes: Wishes, seed: int) -> int:
    """Play a seed in fresh interpreters whose string hashes differ."""
    says = f"PYTHONHASHSEED {', '.join(HASH_SEEDS)}"
    return _judge(wishes, seed, says, lambda job: (under(job, h) for h in HASH_SEEDS))


def again(wishes: Wishes, job: Job, times: int) -> Iterator[str]:
    with progress_bar() as bar:
        task = bar.add_task("replays", total=times, failed=0)
        for trace in spread(trace_of, [job] * times, min(wishes.processes, times)):
            bar.update(task, advance=1)
            yield trace


def under(job: Job, hash_seed: str) -> str:
    wishes = (job.options.node_count, job.options.minutes)
    numbers = ["" if wish is None else str(wish) for wish in wishes]
    done = subprocess.run(
        [sys.executable, "-c", ONE_TRACE, job.scenario, str(job.seed), *numbers],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=HASH_SEED_LIMIT_S,
    )
    return done.stdout.strip() or f"no trace: {done.stderr.strip().splitlines()[-1:]}"


def _judge(wishes: Wishes, seed: int, says: str, traces: Callable[[Job], Iterator[str]]) -> int:
    status = OK
    for found in wishes.chosen():
        seen = list(traces(wishes.job(found, seed)))
        kinds = list(dict.fromkeys(seen))
        title = f"{found.name}, seed {seed}, {says}"
        if len(kinds) == 1:
            wishes.console.print(
                f"{title}: one trace, {kinds[0]}, {len(seen)} of {len(seen)} times"
            )
            continue
        status = FAILED
        wishes.console.print(f"[red]{title}: {len(kinds)} different traces[/]")
        for kind in kinds:
            wishes.console.print(f"  {kind}  {seen.count(kind)} times")
    return status
