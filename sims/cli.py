"""`scripts/sim` and `swarm sim`: bad days by seed. One typer command; what it does is elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool

import typer
from rich.console import Console

from sims import catalogue, flags
from sims.runner import Options
from sims.wishes import Wishes
from swarm.errors import ConfigError, SwarmError
from swarm.notes import printable

FIRST_SEED = 1
OK, FAILED, BAD_INPUT, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
PIPED_COLUMNS = 120
"""Width of what is not printed on a terminal."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def main(arguments: Sequence[str] | None = None, program: str = "scripts/sim") -> int:
    """Run a command line; the exit status: 1 when something did not hold, 2 for bad input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given or ["--help"], prog_name=program)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SwarmError as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
        return BAD_INPUT
    except BrokenProcessPool:
        sentence = "one of the processes was ended from outside; was memory short? try --jobs 1"
        print(f"{program}: {sentence}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    return OK


@app.command()
def sim(
    seed: flags.Seed = None,
    seeds: flags.Seeds = None,
    first_seed: flags.FirstSeed = FIRST_SEED,
    scenario: flags.Scenario = "mixed",
    nodes: flags.Nodes = None,
    minutes: flags.Minutes = None,
    jobs: flags.Jobs = None,
    list_all: flags.ListAll = False,
    log: flags.Log = False,
    explain: flags.Explain = False,
    watch: flags.Watch = False,
    speed: flags.Speed = 1.0,
    replays: flags.Replays = None,
    hash_seeds: flags.HashSeeds = False,
    profile: flags.Profile = False,
    ablations: flags.Ablations = False,
    without: flags.Without = "",
    figures: flags.Figures = None,
    report: flags.Report = None,
) -> None:
    """A simulated swarm on virtual time: bad days by seed, each judged by every invariant.

    One seed is one run, exactly repeatable. Exit status 0: all held; 1: something did not.
    """
    options = Options(node_count=nodes, minutes=minutes)
    wishes = Wishes(_console(), options, scenario, _safeguard(without), jobs, seeds, first_seed)
    from sims import modes

    if list_all:
        raise typer.Exit(modes.show_list(wishes))
    if ablations or figures is not None or report is not None:
        raise typer.Exit(_measure(wishes, figures, report))
    if (seed is None) == (seeds is None):
        raise ConfigError("give either --seed N, to play one run, or --seeds N, to play many")
    if seed is None:
        _refuse_many(explain=explain, watch=watch, replays=replays, hash_seeds=hash_seeds,
                     profile=profile, log=log)  # fmt: skip
        raise typer.Exit(modes.many_seeds(wishes))
    if replays is not None or hash_seeds:
        raise typer.Exit(_repeat(wishes, seed, replays, hash_seeds))
    if watch:
        raise typer.Exit(modes.watch_seed(wishes, seed, speed))
    if explain or profile:
        raise typer.Exit(_look_into(wishes, seed, explain=explain))
    raise typer.Exit(modes.one_seed(wishes, seed, whole_log=log))


def _console() -> Console:
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=PIPED_COLUMNS if is_piped else None)


def _safeguard(name: str) -> str:
    if not name:
        return ""
    from sims.ablation_table import find

    return find(name).name


def _measure(wishes: Wishes, figures: str | None, report: os.PathLike[str] | None) -> int:
    if figures is not None:
        from sims.figures import print_figure

        return print_figure(wishes, figures)
    if report is not None:
        from sims.report import write_report

        return write_report(wishes, report)
    from sims.ablation_table import ablation_table

    return ablation_table(wishes)


def _repeat(wishes: Wishes, seed: int, replays: int | None, hash_seeds: bool) -> int:
    from sims import repeats

    status = OK if replays is None else repeats.replays(wishes, seed, replays)
    return max(status, repeats.hash_seeds(wishes, seed) if hash_seeds else OK)


def _look_into(wishes: Wishes, seed: int, *, explain: bool) -> int:
    if explain:
        from sims.explain import explain as say_why

        return say_why(wishes, seed)
    from sims.profile import profile

    return profile(wishes, seed)


def _refuse_many(**modes_of_one: object) -> None:
    """Raises ConfigError where many seeds are given to what plays one."""
    asked = [name for name, value in modes_of_one.items() if value]
    if asked:
        flag = catalogue.typed(asked[0].replace("_", " "))
        raise ConfigError(f"--{flag} looks at one run: give --seed N with it")


if __name__ == "__main__":
    sys.exit(main())
