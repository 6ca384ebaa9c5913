"""`scripts/sim` and `swarm sim`: bad days by seed. One typer command; what it does is elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from sims.runner import Options
from sims.wishes import Wishes
from swarm.errors import ConfigError, SwarmError
from swarm.notes import printable

FIRST_SEED = 1
SEEDS_PER_ABLATION = 500
OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def main(arguments: Sequence[str] | None = None, program: str = "scripts/sim") -> int:
    """Run a command line; the exit status: 1 when a run failed, 2 for bad input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given or ["--help"], prog_name=program)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SwarmError as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return OK


@app.command()
def sim(
    seed: Annotated[
        int | None, typer.Option(help="Play this one seed and tell what happened.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Play so many seeds on all cores.")
    ] = None,
    first_seed: Annotated[int, typer.Option(help="Where --seeds begins.")] = FIRST_SEED,
    scenario: Annotated[str, typer.Option(help="Which story, or all; see --list.")] = "mixed",
    nodes: Annotated[
        int | None, typer.Option(min=2, help="Machines, where the story asks.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Of virtual time, the same.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one a core.")] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List scenarios and invariants.")
    ] = False,
    log: Annotated[
        bool, typer.Option(help="Print the whole log of a seed, not its story.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Why a seed fails: the faults it takes, and more.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="See a seed in the terminal.")] = False,
    speed: Annotated[
        float, typer.Option(min=0.001, help="Of --watch: virtual seconds per real one.")
    ] = 1.0,
    replays: Annotated[
        int | None, typer.Option(min=2, help="Play the seed so often; all must be one trace.")
    ] = None,
    hash_seeds: Annotated[
        bool, typer.Option("--hash-seeds", help="Play the seed under three PYTHONHASHSEEDs.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Where the time of a seed's run goes.")
    ] = False,
    without: Annotated[str, typer.Option(help="Switch one safeguard off; see --ablations.")] = "",
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Switch each safeguard off, until that is noticed.")
    ] = False,
) -> None:
    """A simulated swarm on virtual time: bad days by seed, each judged by every invariant.

    One seed is one run, exactly repeatable. Exit status 0: all held; 1: something did not.
    """
    if without:
        from sims.ablation_table import find

        without = find(without).name
    wishes = Wishes(
        console=Console(highlight=False, soft_wrap=False),
        options=Options(node_count=nodes, minutes=minutes),
        scenario=scenario,
        without=without,
        jobs=jobs,
    )
    from sims import modes

    if list_all:
        raise typer.Exit(modes.show_list(wishes))
    if ablations:
        from sims.ablation_table import ablation_table

        raise typer.Exit(ablation_table(wishes, seeds or SEEDS_PER_ABLATION))
    if (seed is None) == (seeds is None):
        raise ConfigError("give either --seed N, to play one run, or --seeds N, to play many")
    _need_one(seed, explain=explain, watch=watch, replays=replays, profile=profile)
    if seed is None:
        assert seeds is not None
        raise typer.Exit(modes.many_seeds(wishes, range(first_seed, first_seed + seeds)))
    if explain:
        from sims.explain import explain as say_why

        raise typer.Exit(say_why(wishes, seed))
    if watch:
        raise typer.Exit(modes.watch_seed(wishes, seed, speed))
    if replays is not None or hash_seeds:
        from sims import repeats

        status = OK if replays is None else repeats.replays(wishes, seed, replays)
        raise typer.Exit(max(status, repeats.hash_seeds(wishes, seed) if hash_seeds else OK))
    if profile:
        from sims.profile import profile as say_where

        raise typer.Exit(say_where(wishes, seed))
    raise typer.Exit(modes.one_seed(wishes, seed, whole_log=log))


def _need_one(seed: int | None, **modes_of_one: object) -> None:
    """Raises ConfigError where many seeds are given to what plays one."""
    asked = [name for name, value in modes_of_one.items() if value]
    if seed is None and asked:
        raise ConfigError(f"--{asked[0]} looks at one run: give --seed N with it")


if __name__ == "__main__":
    sys.exit(main())
