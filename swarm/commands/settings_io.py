"""`swarm config` and `swarm sim`."""

from __future__ import annotations

import dataclasses

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, home_config, print_json
from swarm.config import as_toml

app = typer.Typer()


@app.command()
def config(as_json: AsJson = False, home: Home = DEFAULT_HOME) -> None:
    """Print the settings in force here, as a config.toml."""
    found = home_config(home.expanduser())
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print(as_toml(found), end="")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def sim(context: typer.Context) -> None:
    """Play a simulated swarm's bad days by seed, on virtual time. `swarm sim --help` says more."""
    from sims.cli import main as play

    raise typer.Exit(play(context.args, "swarm sim"))
