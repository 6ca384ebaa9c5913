"""`swarm logs`: what happens on a running node, as it happens."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, ApiKey, AsJson, Home, Url, gateway_client

app = typer.Typer()
Json = dict[str, Any]


@app.command()
def logs(
    level: Annotated[str, typer.Option(help="The least: info, warning or error.")] = "info",
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these: link, session.reroute, 'model.*'."),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", min=1, help="End after so many.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Follow a running node's log from now on, until Ctrl-C or the node's end."""
    from swarm.commands.logs import Wanted, as_json_line, as_line

    wanted = Wanted.of(level, event or ())
    client = gateway_client(home, url, api_key)
    zone = datetime.datetime.now().astimezone().tzinfo or datetime.UTC
    shown = 0
    try:
        for entry in _entries(client.events()):
            if wanted.takes(entry):
                print(as_json_line(entry) if as_json else as_line(entry, zone), flush=True)
                shown += 1
                if shown == count:
                    break
    except KeyboardInterrupt:
        sys.stdout.flush()


def _entries(events: Iterator[tuple[str, Json]]) -> Iterator[Json]:
    from swarm.commands.logs import lost_entry

    for name, data in events:
        if name == "note":
            yield data
        elif name == "lost":
            yield lost_entry(int(data.get("events", 0)), time.time())
