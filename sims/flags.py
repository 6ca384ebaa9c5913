"""The options of `scripts/sim` as types; the command's signature lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int | None, typer.Option(help="Play this one seed and tell what happened.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Play so many seeds on all cores.")]
FirstSeed = Annotated[int, typer.Option(help="Where --seeds begins.")]
Scenario = Annotated[str, typer.Option(help="Which story, or all; --list names them.")]
NODES_MAX, MINUTES_MAX = 2000, 100_000.0
"""More fits into no machine's memory, or into nobody's patience."""
Nodes = Annotated[
    int | None, typer.Option(min=2, max=NODES_MAX, help="Machines, where the story asks.")
]
Minutes = Annotated[
    float | None, typer.Option(min=0.01, max=MINUTES_MAX, help="Virtual ones, the same.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")]
ListAll = Annotated[bool, typer.Option("--list", help="List scenarios, invariants, figures.")]
Log = Annotated[bool, typer.Option("--log", help="Tell a seed by its whole log.")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Why a seed fails: the few faults that it takes.")
]
Watch = Annotated[bool, typer.Option("--watch", help="See a seed in the terminal.")]
Speed = Annotated[float, typer.Option(min=0.001, help="Of --watch: virtual s per real one.")]
Replays = Annotated[
    int | None, typer.Option(min=2, help="Play a seed so often: it must be one trace.")
]
HashSeeds = Annotated[
    bool, typer.Option("--hash-seeds", help="Play a seed under three PYTHONHASHSEEDs.")
]
Profile = Annotated[bool, typer.Option("--profile", help="Where the time of a run goes.")]
Ablations = Annotated[
    bool, typer.Option("--ablations", help="Switch each safeguard off: it must be noticed.")
]
Without = Annotated[
    str, typer.Option(metavar="SAFEGUARD", help="Play with one safeguard switched off.")
]
Figures = Annotated[str | None, typer.Option(metavar="NAME", help="Measure a figure and print it.")]
Report = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write plots, figures and one HTML page.")
]
