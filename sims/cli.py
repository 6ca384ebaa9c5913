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
    without: Annotated[str, typer.Option(help="Switch one safeguard off; see --ablations.")] = "",
) -> None:
    """A simulated swarm on virtual time: bad days by seed, each judged by every invariant.

    One seed is one run, exactly repeatable. Exit status 0: all held; 1: something did not.
    """
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
    if (seed is None) == (seeds is None):
        raise ConfigError("give either --seed N, to play one run, or --seeds N, to play many")
    if seed is not None and explain:
        from sims.explain import explain as say_why

        raise typer.Exit(say_why(wishes, seed))
    if seed is not None and watch:
        raise typer.Exit(modes.watch_seed(wishes, seed, speed))
    if seed is not None:
        raise typer.Exit(modes.one_seed(wishes, seed, whole_log=log))
    assert seeds is not None
    raise typer.Exit(modes.many_seeds(wishes, range(first_seed, first_seed + seeds)))


if __name__ == "__main__":
    sys.exit(main())
