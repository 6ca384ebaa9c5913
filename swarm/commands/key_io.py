"""`swarm key`: the key that makes nodes one swarm."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json
from swarm.errors import ConfigError

if TYPE_CHECKING:
    from swarm.link.identity import SwarmKey

HELP = "The key that makes nodes one swarm. (Keys of the API: `swarm keys`.)"

app = typer.Typer()


@app.command("show")
def show_key(as_json: AsJson = False, home: Home = DEFAULT_HOME) -> None:
    """Print the line that lets another machine join this swarm. It is a secret."""
    from swarm.home_io import Home as NodeHome

    folder = home.expanduser()
    key = NodeHome(folder).swarm_key() if folder.is_dir() else None
    if key is None:
        raise ConfigError(f"there is no swarm key in {folder}; `swarm key new` makes one")
    _print_key(key, as_json=as_json)


@app.command("new")
def new_key(
    replace: Annotated[bool, typer.Option("--replace", help="Throw the present key away.")] = False,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Make a fresh key, that is a new swarm, and print the line for the other machines."""
    from swarm.home_io import Home as NodeHome
    from swarm.link.identity import SwarmKey

    folder = NodeHome(home.expanduser())
    if folder.swarm_key() is not None and not replace:
        raise ConfigError(
            f"there is a swarm key in {folder.path} already, which other machines may use;"
            " add --replace to throw it away"
        )
    key = SwarmKey.generate(secrets.token_bytes)
    folder.save_swarm_key(key)
    _print_key(key, as_json=as_json)


def _print_key(key: SwarmKey, *, as_json: bool) -> None:
    if as_json:
        print_json({"key": key.text, "tag": key.tag})
    else:
        print(f"swarm join --key {key.text}")
