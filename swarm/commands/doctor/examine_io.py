"""Collects the facts: the machine's own, the nodes that can be found, and the ways to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swarm.commands.doctor import local_io, multicast_io
from swarm.commands.doctor.facts import (
    DIRECT,
    Card,
    Compute,
    Facts,
    Heard,
    Multicast,
    Origin,
    Peer,
    Port,
    RunningNode,
)
from swarm.config import Config, load_config
from swarm.discovery.interfaces import AddressClass
from swarm.errors import ConfigError
from swarm.home_io import Home
from swarm.link.found import Outcome
from swarm.link.identity import SwarmKey
from swarm.link.probe_io import visit
from swarm.notes import printable
from swarm.terms import Address, NodeId

LOOKS_MAX = 64
"""Addresses looked at; in a large swarm that many tell enough."""
LOOK_TIMEOUT_S = 2.5
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What the doctor was told on the command line."""

    home: Path
    peers: tuple[Address, ...]
    gateway: Address | None
    listen: Address | None
    key: SwarmKey | None
    looks_at_torch: bool


async def examine(question: Question) -> Facts:
    """Takes some seconds; nothing is changed, on this machine or elsewhere."""
    torch_task = None
    config, config_problem = _config(question.home)
    if question.looks_at_torch:
        wanted = config.shard.device
        torch_task = asyncio.create_task(asyncio.to_thread(local_io.read_compute, wanted))
    node, state = await asyncio.to_thread(local_io.read_node, question.home)
    key, key_problem = _key(question)
    network = await _network(question, config, key, node, state)
    ports = () if node is not None and not node.problem else _ports(question, config)
    kernels = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swarm"
    machine = await asyncio.to_thread(local_io.read_machine, question.home, kernels, ports)
    compute: Compute | None = await torch_task if torch_task is not None else None
    return Facts(
        tag=key.tag if key else "",
        key_problem=key_problem,
        config_problem=config_problem,
        cards=network.cards,
        multicast=network.multicast,
        uses_multicast=config.discovery.mdns,
        heard=network.heard,
        peers=network.peers,
        node=node,
        machine=machine,
        compute=compute,
    )


def _config(home: Path) -> tuple[Config, str]:
    """The settings, and what is wrong with them; then the defaults."""
    file = home / "config.toml"
    try:
        text = file.read_text() if file.exists() else ""
        return load_config(text, os.environ, {}), ""
    except ConfigError as error:
        return Config(), str(error)
    except (OSError, UnicodeDecodeError) as error:
        return Config(), f"{file} cannot be read ({error})"


def _key(question: Question) -> tuple[SwarmKey | None, str]:
    if question.key is not None:
        return question.key, ""
    try:
        return (Home(question.home).swarm_key() if question.home.is_dir() else None), ""
    except ConfigError as error:
        return None, str(error)
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def _ports(question: Question, config: Config) -> tuple[Port, ...]:
    gateway = question.gateway or Address(config.gateway.host, config.gateway.port)
    found = [
        local_io.try_port("the gateway", gateway, is_asked=question.gateway is not None),
    ]
    if question.listen is not None:
        found.append(local_io.try_port("other nodes", question.listen, is_asked=True))
    return tuple(found)


# -------------------------------------------------------------------- network


@dataclass(frozen=True, slots=True)
class _Network:
    cards: tuple[Card, ...]
    multicast: tuple[Multicast, ...]
    heard: tuple[Heard, ...]
    peers: tuple[Peer, ...]


async def _network(
    question: Question,
    config: Config,
    key: SwarmKey | None,
    node: RunningNode | None,
    state: Json,
) -> _Network:
    cards = local_io.read_cards()
    own = frozenset(card.host for card in cards)
    speaking = [c for c in cards if c.kind <= AddressClass.LINK_LOCAL and not c.is_v6]
    heard: tuple[Heard, ...] = ()
    if config.discovery.mdns:
        heard = await multicast_io.browse([card.host for card in speaking])
    me = NodeId(str(state.get("node_id", "")))
    heard = tuple(entry for entry in heard if entry.node != me)
    looks = _looks(question, key, state, heard)
    peers = await _visit_all(looks, key, _Door(node, question.listen))
    multicast = []
    if config.discovery.mdns:
        hosts = [peer.found.address.host for peer in peers]
        hosts += [a.host for entry in heard for a in entry.addresses]
        multicast = [
            await multicast_io.try_multicast(
                card, own, [host for host in dict.fromkeys(hosts) if card.reaches(host)]
            )
            for card in speaking
        ]
    return _Network(cards, tuple(multicast), heard, peers)


@dataclass(frozen=True, slots=True)
class _Look:
    address: Address
    name: str
    node: str
    origin: Origin
    is_linked: bool = False
    is_heard: bool = False
    kind: str = DIRECT


def _looks(
    question: Question, key: SwarmKey | None, state: Json, heard: Sequence[Heard]
) -> list[_Look]:
    """Whom to look at, each address once, from whoever knows it best."""
    tag = key.tag if key else ""
    announced = {entry.node for entry in heard if entry.tag == tag}
    looks = [_Look(address, "", "", Origin.ASKED) for address in question.peers]
    kinds = _link_kinds(state)
    for member in state.get("nodes", []):
        if not member["self"] and member["state"] in ("alive", "suspect"):
            for text in member["addresses"]:
                address, name = local_io.read_address(text), printable(member["name"])
                looks.append(
                    _Look(address, name, member["id"], Origin.STATE, bool(member["linked"]),
                          member["id"] in announced, kinds.get(member["id"], DIRECT))
                )  # fmt: skip
    for entry in heard:
        for address in entry.addresses:
            if entry.tag == tag:
                looks.append(_Look(address, entry.name, entry.node, Origin.HEARD, is_heard=True))
    if question.home.is_dir() and not state:
        remembered = Home(question.home).peers()
        looks += [_Look(address, "", "", Origin.REMEMBERED) for address in remembered]
    unique: dict[Address, _Look] = {}
    for look in looks:
        unique.setdefault(look.address, look)
    return list(unique.values())[:LOOKS_MAX]


def _link_kinds(state: Json) -> dict[str, str]:
    """How the links of the running node go, by the node at the other end."""
    me = state.get("node_id")
    ends = [
        (link["node"], link["peer"], link.get("kind", DIRECT)) for link in state.get("links", [])
    ]
    return {b if a == me else a: printable(kind) for a, b, kind in ends if me in (a, b)}


async def _visit_all(looks: Sequence[_Look], key: SwarmKey | None, door: _Door) -> tuple[Peer, ...]:
    """All at once. A node with several addresses counts once, by the one that answers best."""
    if key is None or not looks:
        return ()
    async with door as port:
        founds = await asyncio.gather(
            *(visit(look.address, key, own_port=port, timeout_s=LOOK_TIMEOUT_S) for look in looks)
        )
    near = local_io.neighbours()
    peers: dict[str, Peer] = {}
    for look, found in zip(looks, founds, strict=True):
        is_neighbour = None if near is None else found.address.host in near
        peer = Peer(found, look.name, look.origin, look.is_heard, look.is_linked,
                    look.kind, is_neighbour)  # fmt: skip
        who = found.node or look.node or str(found.address)
        known = peers.get(who)
        if known is None or _rank(peer) < _rank(known):
            name = peer.name or (known.name if known else "")
            peers[who] = replace(peer, name=name)
    return tuple(peers.values())


def _rank(peer: Peer) -> tuple[bool, bool]:
    """The smaller, the better the address works."""
    return (peer.found.outcome is not Outcome.MEMBER, peer.found.is_reached_back is False)


class _Door:
    """The port at which others are to try this machine: the node's, or one opened for it."""

    def __init__(self, node: RunningNode | None, listen: Address | None) -> None:
        self._node = node
        self._wanted = listen
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> int:
        if self._node is not None and self._node.listening:
            return self._node.listening[0].port
        loop = asyncio.get_running_loop()
        sock = self._socket()
        self._server = await loop.create_server(asyncio.Protocol, sock=sock)
        return int(sock.getsockname()[1])

    def _socket(self) -> socket.socket:
        """At the wanted place where that is free (the ports are another check), else anywhere."""
        if self._wanted is not None:
            with contextlib.suppress(OSError):
                family = socket.AF_INET6 if ":" in self._wanted.host else socket.AF_INET
                place = (self._wanted.host, self._wanted.port)
                return socket.create_server(place, family=family)
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", 0))

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
