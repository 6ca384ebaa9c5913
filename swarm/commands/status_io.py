"""`swarm status`."""

from __future__ import annotations

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json, wide_console

app = typer.Typer()


@app.command()
def status(
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Show who is in the swarm, what each serves and which models are covered."""
    from swarm.gateway.client_io import running_node
    from swarm.gateway.status_text import status_view

    state = running_node(home.expanduser()).client().state()
    if as_json:
        print_json(state)
    else:
        wide_console().print(status_view(state))
