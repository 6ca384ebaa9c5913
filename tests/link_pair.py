"""Nodes made of links alone, for tests: what they were told, and how to wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aioice.ice
import pytest
import uvloop

from swarm.config import LinkConfig
from swarm.link.handshake import Credentials, ProtocolRange
from swarm.link.identity import Identity, SwarmKey
from swarm.link.link_io import Peer
from swarm.link.tcp_io import Surroundings, TcpLinks
from swarm.link.webrtc_io import find_maker
from swarm.messages import Message
from swarm.notes import Note
from swarm.terms import Address, Incarnation, LinkKind, NodeId

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
WAIT_S = 20.0
KEY = SwarmKey(bytes(range(32)))
OTHER_KEY = SwarmKey(bytes(32))
CONFIG = LinkConfig(handshakes_per_second=100_000, goodput_probe_bytes=0)


class Recorder:
    """LinkEvents that remembers everything and wakes whoever waits."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.up: dict[NodeId, Peer] = {}
        self.messages: list[tuple[NodeId, Message]] = []
        self.heard_count = 0
        self.notes: list[Note] = []
        self.on_message: Callable[[NodeId, Message], None] = lambda peer, message: None
        self.faults_expected = 0
        """An assertion that fails inside an event ends as one of these, so they are counted."""
        self.upgrade: Callable[[NodeId], None] | None = None
        """Told of each relayed link that is dialled here; these themselves are then not shown."""
        self._relayed: set[NodeId] = set()
        self._changed = asyncio.Event()
        self._hidden: set[NodeId] = set()

    def hide(self, node: NodeId) -> None:
        """From now on it is as if nothing came from `node`."""
        self._hidden.add(node)
        self.up.pop(node, None)
        self.log = [entry for entry in self.log if node not in entry]
        self.notes.clear()

    def passes_over(self, node: NodeId) -> bool:
        """Whether its link is one that is about to give way to a channel."""
        return node in self._relayed

    def link_up(self, peer: Peer) -> None:
        if peer.node in self._hidden:
            return
        if self.upgrade is not None and peer.kind is LinkKind.RELAYED:
            self._relayed.add(peer.node)
            if peer.dialled:
                self.upgrade(peer.node)
            return
        assert peer.node not in self.up, "two ups in a row"
        self.up[peer.node] = peer
        self._add("up", peer.node)

    def link_down(self, peer: NodeId, cause: str, orderly: bool) -> None:
        if peer in self._hidden:
            return
        if peer in self._relayed:
            self._relayed.discard(peer)
            return
        del self.up[peer]
        self._add("down", peer, cause, orderly)

    def message_received(self, peer: NodeId, message: Message) -> None:
        if peer in self._relayed:
            return
        assert peer in self.up
        self.messages.append((peer, message))
        self.on_message(peer, message)
        self._changed.set()

    def heard(self, peer: NodeId) -> None:
        if peer in self._hidden or peer in self._relayed:
            return
        assert peer in self.up
        self.heard_count += 1
        self._changed.set()

    def dial_failed(
        self, addresses: tuple[Address, ...], expected: NodeId | None, reason: str
    ) -> None:
        self._add("dial_failed", expected, reason)

    def relay_failed(self, peer: NodeId, via: NodeId, reason: str) -> None:
        """Where the node in the middle is hidden, a dial is a dial."""
        if via in self._hidden:
            self.dial_failed((), peer, reason)
        else:
            self._add("relay_failed", peer, via, reason)

    def lane_writable(self, peer: NodeId) -> None:
        self._add("writable", peer)

    def bulk_ready(self, peer: NodeId) -> None:
        self._add("bulk", peer)

    def copy_met(self, address: Address, yields: bool) -> None:
        self._add("copy_met", address, yields)

    def copy_reported(self, address: Address) -> None:
        self._add("copy_reported", address)

    def note(self, entry: Note) -> None:
        self.notes.append(entry)
        self._changed.set()

    def _add(self, *entry: Any) -> None:
        self.log.append(entry)
        self._changed.set()

    def all(self, kind: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.log if entry[0] == kind]

    def noted(self, event: str) -> list[Note]:
        return [entry for entry in self.notes if entry.event == event]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@dataclass(slots=True)
class LinkNode:
    links: Any
    events: Recorder
    address: Address
    identity: Identity

    @property
    def id(self) -> NodeId:
        return self.identity.node_id

    def kill(self) -> None:
        """All sockets end at once, as those of a killed process do."""
        for connection in list(self.links._connections.values()):
            connection.fail("killed")

    def go_silent(self) -> None:
        """Nothing is read any more and no socket ends: a host that vanished."""
        for connection in self.links._connections.values():
            connection._transport.pause_reading()

    async def linked_to(self, *others: LinkNode) -> None:
        await self.events.until(lambda: all(other.id in self.events.up for other in others))


@dataclass(frozen=True, slots=True)
class Build:
    """How to make a node that differs from the usual one."""

    seed: int = 0
    key: SwarmKey = KEY
    incarnation: int = 1
    protocol: ProtocolRange = field(default_factory=ProtocolRange)
    aes: bool = True
    instance: bytes = b""
    config: LinkConfig = CONFIG


def tcp_links(
    build: Build, identity: Identity, events: Recorder, *, with_channels: bool = False
) -> TcpLinks:
    credentials = Credentials(
        identity,
        build.key,
        Incarnation(build.incarnation),
        aes=build.aes,
        protocol=build.protocol,
        instance=build.instance,
    )
    make_wire = find_maker(LinkConfig(webrtc="on")) if with_channels else None
    surroundings = Surroundings(time.monotonic, os.urandom, events.note, make_wire=make_wire)
    return TcpLinks(credentials, build.config, events, surroundings)


HUB = Build(protocol=ProtocolRange(1, 9), config=dataclasses.replace(CONFIG, relay_bytes_s=1 << 40))
KINDS = ("tcp", "relayed", "webrtc")
LOOPS_AND_KINDS = [
    pytest.param(
        (loop, kind),
        id=f"{loop}-{kind}",
        # Python's work packet by packet, on the loop that hardly any node runs on.
        marks=[pytest.mark.slow] if (loop, kind) == ("asyncio", "webrtc") else [],
    )
    for loop in LOOPS
    for kind in KINDS
]
HUB_SEED = 1 << 64


class Bench:
    """Makes nodes of one kind of link and ends them all."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._nodes: list[LinkNode] = []
        self._seeds = itertools.count(1)
        self.seeds: dict[NodeId, int] = {}
        self.hub: LinkNode | None = None
        """The node in the middle of all relayed links, once there is one."""

    async def node(self, build: Build | None = None) -> LinkNode:
        build = build or Build()
        seed = build.seed or next(self._seeds)
        identity = Identity(seed.to_bytes(32, "big"))
        self.seeds[identity.node_id] = seed
        events = Recorder()
        links = tcp_links(build, identity, events, with_channels=self.kind == "webrtc")
        if self.kind == "webrtc":
            events.upgrade = links.open_channel
        address = await links.listen("127.0.0.1", 0)
        node = LinkNode(links, events, address, identity)
        if self.kind != "tcp" and build.key == KEY:
            await self._join_hub(node)
        self._nodes.append(node)
        return node

    async def _join_hub(self, node: LinkNode) -> None:
        """Every other node is dialled by the hub, so that legs are made in either direction."""
        if self.hub is None:
            identity, events = Identity(HUB_SEED.to_bytes(32, "big")), Recorder()
            links = tcp_links(HUB, identity, events)
            self.hub = LinkNode(links, events, await links.listen("127.0.0.1", 0), identity)
        if len(self._nodes) % 2:
            self.hub.links.dial([node.address], node.id)
        else:
            node.links.dial([self.hub.address], self.hub.id)
        await node.linked_to(self.hub)
        await self.hub.linked_to(node)
        node.links = ByWayOfHub(node, self.hub, self._nodes)
        node.events.hide(self.hub.id)

    async def pair(self, first: Build | None = None, second: Build | None = None) -> Pair:
        """Two linked nodes; the first has dialled."""
        left, right = await self.node(first), await self.node(second)
        left.links.dial([right.address], right.id)
        await left.linked_to(right)
        await right.linked_to(left)
        return Pair(left, right)

    async def close(self) -> None:
        for node in [*self._nodes, *([self.hub] if self.hub else [])]:
            await node.links.close_all("the test is over")
            assert not node.events.noted("link.close_incomplete")
            assert len(node.events.noted("link.fault")) == node.events.faults_expected


class ByWayOfHub:
    """Links of a node that reaches the other nodes of its bench by way of the hub alone."""

    def __init__(self, node: LinkNode, hub: LinkNode, others: list[LinkNode]) -> None:
        self._own = node.links
        self._hub = hub
        self._others = others

    def dial(self, addresses: Sequence[Address], expected: NodeId | None) -> None:
        if expected is not None:
            self._own.dial_via(expected, self._hub.id)
            return
        living = {other.address: other.id for other in self._others}
        for address in addresses:
            if address in living:
                self._own.dial_via(living[address], self._hub.id)
            else:
                self._own.dial([address], None)

    def peers(self) -> tuple[Peer, ...]:
        return tuple(peer for peer in self._own.peers() if peer.node != self._hub.id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@dataclass(frozen=True, slots=True)
class Pair:
    left: LinkNode
    right: LinkNode


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Channels leave the one address out that every machine has."""
    usual = aioice.ice.get_host_addresses
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    try:
        yield
    finally:
        aioice.ice.get_host_addresses = usual


def run(loop_name: str, kind: str, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a scenario on a loop; nothing may reach the loop's exception handler or be left over."""
    trouble: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: trouble.append(context))
        bench = Bench(kind)
        try:
            await scenario(bench)
        finally:
            await bench.close()
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, left

    with loopback_only(), asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(main())
    assert not trouble, trouble


@contextlib.asynccontextmanager
async def raw_connection(
    address: Address,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A plain TCP connection to a node, for whoever does not play by the rules."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def with_config(**changes: Any) -> Build:
    return Build(config=dataclasses.replace(CONFIG, **changes))
