"""`swarm doctor`: what is wrong with this machine's part of a swarm, and what to do about it."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from swarm import flags
from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json, wide_console
from swarm.options import parse_address

app = typer.Typer()


@app.command()
def doctor(
    peer: flags.Peer = None,
    gateway: flags.Gateway = None,
    listen: flags.Listen = None,
    key: Annotated[str | None, typer.Option(help="The swarm key to try instead.")] = None,
    skip_torch: Annotated[bool, typer.Option("--no-torch", help="Leave torch out.")] = False,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Look for what is wrong: network, key, versions, ports, disk, torch. Exit status 1 if so.

    Give it the --home, --peer, --listen and --gateway of your `swarm join`. It changes nothing.
    """
    from swarm.commands.doctor import report
    from swarm.commands.doctor.examine_io import Question, examine
    from swarm.link.identity import SwarmKey

    question = Question(
        home=home.expanduser(),
        peers=tuple(parse_address(text) for text in peer or ()),
        gateway=None if gateway is None else parse_address(gateway),
        listen=None if listen is None else parse_address(listen),
        key=None if key is None else SwarmKey.parse(key),
        looks_at_torch=not skip_torch,
    )
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    findings = report.diagnose(asyncio.run(examine(question)))
    if as_json:
        print_json(report.as_json(findings))
    else:
        wide_console().print(report.as_text(findings))
    raise typer.Exit(report.exit_status(findings))
