"""`swarm invite`, and what `swarm join INVITE` does before it joins."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json
from swarm.errors import ConfigError, LinkError, RequestError
from swarm.options import parse_address
from swarm.terms import Address

if TYPE_CHECKING:
    from pathlib import Path

    from swarm.discovery.invite import Invite
    from swarm.link.identity import SwarmKey

LOOK_TIMEOUT_S = 3.0

app = typer.Typer()


@app.command()
def invite(
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where this swarm is reached; repeatable."),
    ] = None,
    no_qr: Annotated[bool, typer.Option("--no-qr", help="The text alone.")] = False,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Print what another machine needs to join: `swarm join INVITE`. It is a secret."""
    from swarm.discovery.invite import Invite, day_of

    folder = home.expanduser()
    given = tuple(parse_address(text) for text in address or ())
    addresses = given or _own_addresses(folder)
    key = _key(folder)
    made = Invite(key.secret, key.tag, addresses, day_of(time.time()))
    if as_json:
        print_json({"invite": made.text, "addresses": [str(each) for each in addresses]})
        return
    if not addresses:
        print(
            "swarm: no node runs from this home, so the invite carries no address: it works where"
            " multicast does",
            file=sys.stderr,
        )
    print(f"swarm join {made.text}")
    if sys.stdout.isatty() and not no_qr:
        _print_code(made.text)


def _print_code(text: str) -> None:
    """As a QR code, in the alphabet that makes it smallest."""
    import segno

    segno.make(text.upper(), micro=False, error="l").terminal(compact=True)


def _key(folder: Path) -> SwarmKey:
    from swarm.home_io import Home as NodeHome

    key = NodeHome(folder).swarm_key() if folder.is_dir() else None
    if key is None:
        raise ConfigError(f"there is no swarm key in {folder}; `swarm join` makes one")
    return key


def _own_addresses(folder: Path) -> tuple[Address, ...]:
    """Where the node that runs from this home says that it listens."""
    from swarm.gateway.client_io import running_node

    try:
        state = running_node(folder).client().state()
    except (ConfigError, LinkError, RequestError):
        return ()
    own = next((node for node in state["nodes"] if node["self"]), None)
    return tuple(parse_address(text) for text in (own or {}).get("addresses", ()))


def check_invite(found: Invite) -> None:
    """Look whether the swarm at its addresses still has this key. Raises ConfigError where it is
    known to have another; silence proves nothing."""
    from swarm.link.found import Outcome
    from swarm.link.identity import SwarmKey
    from swarm.link.probe_io import visit

    async def look() -> list[Outcome]:
        key = SwarmKey(found.secret, found.tag)
        visits = (
            visit(address, key, own_port=0, timeout_s=LOOK_TIMEOUT_S) for address in found.addresses
        )
        return [each.outcome for each in await asyncio.gather(*visits)]

    outcomes = asyncio.run(look()) if found.addresses else []
    if Outcome.MEMBER in outcomes or not outcomes:
        return
    if Outcome.OTHER_KEY in outcomes:
        raise ConfigError(
            f"the invite is no longer valid (it was made {_ago(found)}): the machine at"
            f" {found.addresses[outcomes.index(Outcome.OTHER_KEY)]} has another key now; ask for a"
            " fresh one, which `swarm invite` prints there"
        )
    print(
        f"swarm: nobody answers at the addresses of the invite (made {_ago(found)}); they are"
        " tried on",
        file=sys.stderr,
    )


def _ago(found: Invite) -> str:
    days = found.age_days(time.time())
    return "today" if days == 0 else f"{days} day{'s' if days > 1 else ''} ago"
