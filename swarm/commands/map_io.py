"""`swarm map`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, Home, Url
from swarm.errors import ConfigError

app = typer.Typer()


@app.command("map")
def show_map(
    url: Url = None,
    plain: Annotated[bool, typer.Option("--ascii", help="Draw with plain letters only.")] = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Watch the swarm: nodes, layers, answers on their routes, events, where the time goes."""
    from swarm.gateway.client_io import GatewayClient, running_node
    from swarm.gateway.map_io import run_map

    if not sys.stdout.isatty():
        raise ConfigError("the map needs a terminal; `swarm status` prints what is known now")
    if url is not None:
        known = GatewayClient(url).url
        run_map(lambda: known, plain=plain)
    else:
        folder = home.expanduser()
        running_node(folder)
        run_map(lambda: running_node(folder).url, plain=plain)
