"""`swarm key`: the key that makes nodes one swarm."""

from __future__ import annotations

import os
import secrets
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.commands.terminal_io import DEFAULT_HOME, AsJson, Home, print_json
from swarm.errors import ConfigError
from swarm.terms import NodeId

if TYPE_CHECKING:
    from pathlib import Path

    from swarm.gateway.client_io import RunningNode
    from swarm.home_io import Home as NodeHome
    from swarm.link.identity import SwarmKey
    from swarm.link.keyring import KeyRing

HELP = "The key that makes nodes one swarm. (Keys of the API: `swarm keys`.)"

DAY_S = 86_400.0

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


@app.command("rotate")
def rotate_key(
    keep: Annotated[
        float, typer.Option(min=0.0, help="Days for which the present key is accepted too.")
    ] = 7.0,
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Give the swarm a fresh key. Members that run get it at once, others when they are back."""
    folder, running = _at_home(home.expanduser())
    ring = _ring(folder).rotated(secrets.token_bytes(32), time.time() + keep * DAY_S)
    _use(folder, running, ring)
    if as_json:
        print_json({"generation": ring.generation, "tag": ring.key.tag})
        return
    print(f"the swarm has a fresh key; the one before is accepted for {keep:g} days")
    print("`swarm invite` prints what further machines need")


@app.command("revoke")
def revoke_node(
    node: Annotated[str, typer.Argument(help="Its id, the beginning of that, or its name.")],
    as_json: AsJson = False,
    home: Home = DEFAULT_HOME,
) -> None:
    """Put a node out of the swarm, and end every key that it knows.

    Members that run hang up on it and get a fresh key at once. Those that do not run now must be
    invited again.
    """
    folder, running = _at_home(home.expanduser())
    found = _node_named(running.client().state(), node)
    ring = _ring(folder).without(found, secrets.token_bytes(32))
    _use(folder, running, ring)
    if as_json:
        print_json({"revoked": found, "generation": ring.generation})
        return
    print(f"{found} is out, and the swarm has a fresh key")
    print("members that did not run just now need an invite: `swarm invite`")


def _at_home(path: Path) -> tuple[NodeHome, RunningNode]:
    """A change is told to the others by the node that runs. Raises ConfigError without one."""
    from swarm.gateway.client_io import running_node
    from swarm.home_io import Home as NodeHome

    if not hasattr(signal, "SIGHUP"):
        raise ConfigError("keys are changed on a machine of the swarm that runs Linux or macOS")
    running = running_node(path)
    return NodeHome(path), running


def _ring(folder: NodeHome) -> KeyRing:
    ring = folder.key_ring()
    if ring is None or ring.key.is_open:
        raise ConfigError("this node has no key of its own swarm: the open swarm's is everybody's")
    return ring


def _use(folder: NodeHome, running: RunningNode, ring: KeyRing) -> None:
    folder.save_key_ring(ring)
    os.kill(running.pid, signal.SIGHUP)


def _node_named(state: dict[str, Any], name: str) -> NodeId:
    """Raises ConfigError unless it is exactly one of the nodes known, and not this one."""
    nodes = state["nodes"]
    found = [n for n in nodes if n["id"] == name or n["name"] == name]
    found = found or [n for n in nodes if len(name) >= 4 and n["id"].startswith(name)]
    if len(found) != 1:
        what = "no node of the swarm is" if not found else f"{len(found)} nodes of the swarm are"
        raise ConfigError(f"{what} called {name!r}; `swarm status` lists them")
    if found[0]["self"]:
        raise ConfigError("this is the node that would have to tell the others; use another one")
    return NodeId(found[0]["id"])
