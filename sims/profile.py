"""Where the time of one run goes, by cProfile."""

from __future__ import annotations

import cProfile
import io
import pstats

from sims.modes import OK
from sims.pool import play
from sims.verdicts import pace_line
from sims.wishes import Wishes

FUNCTIONS = 40


def profile(wishes: Wishes, seed: int) -> int:
    """Print the functions that cost most by themselves, and with all they call."""
    for found in wishes.chosen():
        job = wishes.job(found, seed)
        plain = play(job)
        profiler = cProfile.Profile()
        result = profiler.runcall(play, job)
        steps = max(1, result.steps)
        wishes.console.print(
            f"{found.name}, seed {seed}: {pace_line(plain.virtual_s, plain.real_s)}"
        )
        wishes.console.print(
            f"{steps:,} steps, {1e6 * plain.real_s / steps:.1f} µs each;"
            f" {result.real_s / max(plain.real_s, 1e-9):.1f} times as slow under the profiler"
        )
        for order in ("tottime", "cumtime"):
            text = io.StringIO()
            stats = pstats.Stats(profiler, stream=text)
            stats.strip_dirs().sort_stats(order).print_stats(FUNCTIONS)
            wishes.console.print(text.getvalue(), soft_wrap=True, markup=False)
    return OK
