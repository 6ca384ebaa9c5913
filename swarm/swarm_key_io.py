"""Which swarm a starting node belongs to: the key that it is given, has, is told or makes."""

from __future__ import annotations

import asyncio
import secrets
import sys

from swarm.config import Config
from swarm.console_io import Console
from swarm.discovery.announcement import Announcement
from swarm.discovery.invite import invite_line
from swarm.discovery.mdns_io import Mdns
from swarm.home_io import Home
from swarm.link.identity import OPEN_SWARM_KEY, SwarmKey
from swarm.link.keyring import KeyRing
from swarm.messages import PROTOCOL_MAX, PROTOCOL_MIN
from swarm.notes import Level, note
from swarm.options import JoinOptions
from swarm.terms import Address, NodeId

FOREIGN_LISTEN_S = 1.5
"""How long a first start listens for swarms that it might have been meant to join."""
LISTEN_ANY = "0.0.0.0"  # noqa: S104


async def swarm_keys(options: JoinOptions, home: Home, config: Config, console: Console) -> KeyRing:
    """Given, kept from before, or (on first use) asked for or drawn afresh."""
    if options.open_swarm:
        console.note(note("swarm.open", Level.WARNING))
        return KeyRing(OPEN_SWARM_KEY)
    if options.key is not None:
        home.save_swarm_key(SwarmKey.parse(options.key))
    kept = home.key_ring()
    if kept is not None:
        return kept
    heard = await _foreign_swarms(config) if config.discovery.mdns else {}
    for tag, name in heard.items():
        console.note(note("swarm.heard", tag=tag, node_name=name))
    console.flush()
    asked = _asked_key() if heard and sys.stdin.isatty() else None
    key = asked or SwarmKey.generate(secrets.token_bytes)
    home.save_swarm_key(key)
    if asked is None:
        # The key itself is for the person alone: no log may hold it.
        console.note(note("key.made", show_it_with="swarm key show"))
        console.say("To add another machine to it, type there:  " + invite_line(key.text))
    return KeyRing(key)


def _asked_key() -> SwarmKey | None:
    text = input("Key of that swarm (empty: start a new one): ").strip()
    return SwarmKey.parse(text) if text else None


async def _foreign_swarms(config: Config) -> dict[str, str]:
    """Swarms that announce themselves on this network now."""
    heard: dict[str, str] = {}

    class Ear:
        def peer_sighted(self, node: NodeId, addresses: tuple[Address, ...]) -> None:
            """Nobody can be of a swarm that does not exist yet."""

        def foreign_swarm(self, tag: str, name: str) -> None:
            heard[tag] = name

    nobody = Announcement(NodeId(""), "", "", Address(LISTEN_ANY, 0), PROTOCOL_MIN, PROTOCOL_MAX)
    mdns = Mdns(nobody, config.discovery, Ear(), lambda entry: None, announce=False)
    await mdns.start()
    await asyncio.sleep(FOREIGN_LISTEN_S)
    await mdns.stop()
    return heard
