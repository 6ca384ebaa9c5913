"""Real zeroconf: on this machine's interfaces, and between network namespaces."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from zeroconf.asyncio import AsyncZeroconf

from swarm.config import DiscoveryConfig
from swarm.discovery.announcement import Announcement
from swarm.discovery.interfaces import Interface
from swarm.discovery.mdns_io import Mdns
from swarm.notes import Note
from swarm.terms import Address, NodeId

pytestmark = pytest.mark.xdist_group("multicast")
"""Two of these at once would hear each other."""

PATIENCE_S = 20.0
"""Far above what is needed; reached only when something is broken."""
HERE = Path(__file__).parent
LOOPBACK = (Interface("lo", "127.0.0.1"),)


class Ears:
    """Records what an `Mdns` tells."""

    def __init__(self) -> None:
        self.sighted: dict[NodeId, tuple[Address, ...]] = {}
        self.foreign: list[tuple[str, str]] = []
        self.notes: list[Note] = []
        self.news = asyncio.Event()

    def peer_sighted(self, node: NodeId, addresses: tuple[Address, ...]) -> None:
        self.sighted[node] = addresses
        self.news.set()

    def foreign_swarm(self, tag: str, name: str) -> None:
        self.foreign.append((tag, name))
        self.news.set()

    def note(self, entry: Note) -> None:
        self.notes.append(entry)
        self.news.set()

    def events(self) -> list[str]:
        return [entry.event for entry in self.notes]

    async def until(self, condition: object) -> None:
        assert callable(condition)

        async def wait() -> None:
            while not condition():
                self.news.clear()
                await self.news.wait()

        await asyncio.wait_for(wait(), PATIENCE_S)


def mdns(letter: str, ears: Ears, tag: str = "ours", read: object = None) -> Mdns:
    node = NodeId(letter * 32)
    own = Announcement(node, tag, f"node {letter}", Address("127.0.0.1", 7000 + ord(letter)), 1, 1)
    config = DiscoveryConfig(interface_rescan_s=0.05)
    reader = read or (lambda: LOOPBACK)
    return Mdns(own, config, ears, ears.note, reader)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def multicast() -> None:
    """Skip where the machine does not let multicast through on loopback."""

    async def heard() -> bool:
        one, two = Ears(), Ears()
        nodes = [mdns("a", one), mdns("b", two)]
        for node in nodes:
            await node.start()
        try:
            await asyncio.wait_for(one.until(lambda: one.sighted), 5.0)
        except TimeoutError:
            return False
        finally:
            for node in nodes:
                await node.stop()
        return True

    if not asyncio.run(heard()):
        pytest.skip("multicast does not work on this machine's loopback")


def test_two_nodes_find_each_other_and_name_a_foreign_swarm(multicast: None) -> None:
    async def run() -> None:
        ears = [Ears() for _ in range(3)]
        nodes = [mdns("c", ears[0]), mdns("d", ears[1]), mdns("e", ears[2], tag="theirs")]
        for node in nodes:
            await node.start()
            await node.start()
        await ears[0].until(lambda: ears[0].sighted and ears[0].foreign)
        await ears[1].until(lambda: ears[1].sighted and ears[1].foreign)
        await ears[2].until(lambda: len(ears[2].foreign) == 2)
        for node in nodes:
            await node.stop()
            await node.stop()
        assert ears[0].sighted == {"d" * 32: (Address("127.0.0.1", 7000 + ord("d")),)}
        assert ears[1].foreign == [("theirs", "node e")]
        assert not ears[2].sighted

    asyncio.run(run())


def test_a_second_process_with_our_identity_does_not_stop_us(multicast: None) -> None:
    async def run() -> None:
        ears = [Ears() for _ in range(3)]
        nodes = [mdns("f", ears[0]), mdns("f", ears[1]), mdns("g", ears[2])]
        for node in nodes:
            await node.start()
        for one in ears:
            await one.until(lambda one=one: "mdns.started" in one.events())
        await ears[1].until(lambda: ears[1].sighted)
        await asyncio.gather(*(node.stop() for node in nodes))
        assert set(ears[0].sighted) == {"g" * 32}, "itself is not news"

    asyncio.run(run())


def test_without_a_network_it_waits_and_starts_when_there_is_one(multicast: None) -> None:
    async def run() -> None:
        ears = Ears()
        present: list[tuple[Interface, ...]] = [()]
        node = mdns("h", ears, read=lambda: present[0])
        await node.start()
        await ears.until(lambda: "mdns.unavailable" in ears.events())
        present[0] = LOOPBACK
        await ears.until(lambda: "mdns.started" in ears.events())
        present[0] = ()
        await ears.until(lambda: ears.events().count("mdns.unavailable") == 2)
        await node.stop()
        assert ears.events().count("mdns.unavailable") == 2, "said once each time"

    asyncio.run(run())


def test_no_permission_for_multicast_is_said_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: AsyncZeroconf, **_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(AsyncZeroconf, "__init__", refuse)

    async def run() -> None:
        ears = Ears()
        node = mdns("i", ears)
        await node.start()
        await ears.until(lambda: "mdns.unavailable" in ears.events())
        await node.stop()
        assert "Operation not permitted" in str(ears.notes[0].get("cause"))

    asyncio.run(run())


def test_a_fault_of_its_own_ends_mdns_and_nothing_else() -> None:
    async def run() -> None:
        ears = Ears()

        def broken() -> tuple[Interface, ...]:
            raise RuntimeError("broken")

        node = mdns("j", ears, read=broken)
        await node.start()
        await ears.until(lambda: "mdns.failed" in ears.events())
        await node.stop()

    asyncio.run(run())


# ---------------------------------------------------------------- namespaces


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two hosts joined by a cable; each has eth0 and loopback."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"swarmtest{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        ends = ["link", "add", "eth0", "netns", names[0], "type", "veth"]
        ip(*ends, "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_two_hosts_on_one_cable_find_each_other(namespaces: list[str]) -> None:
    command = [sys.executable, str(HERE / "mdns_host.py")]
    hosts = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *command, letter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, letter in zip(namespaces, "ab", strict=True)
    ]
    try:
        heard = [host.stdout.readline() for host in hosts if host.stdout]
        rest = [host.communicate(timeout=PATIENCE_S)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert rest == ["", ""]
    assert heard == [f"{'b' * 32} 10.77.0.2:7000\n", f"{'a' * 32} 10.77.0.1:7000\n"]
