"""`swarm map`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, ApiKey, Home, Url, gateway_client
from swarm.errors import ConfigError

app = typer.Typer()


@app.command("map")
def show_map(
    url: Url = None,
    api_key: ApiKey = None,
    plain: Annotated[bool, typer.Option("--ascii", help="Draw with plain letters only.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Watch the swarm: nodes, layers, answers on their routes, events, where the time goes."""
    from swarm.gateway.map_io import run_map

    if not sys.stdout.isatty():
        raise ConfigError("the map needs a terminal; `swarm status` prints what is known now")
    gateway_client(home, url, api_key)  # what cannot be is said before the screen is taken
    run_map(lambda: gateway_client(home, url, api_key), plain=plain)
