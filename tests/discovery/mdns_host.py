"""Run in a network namespace: announce a node, print the first sighting, wait for the other."""

from __future__ import annotations

import asyncio
import sys

from swarm.config import DiscoveryConfig
from swarm.discovery.announcement import Announcement
from swarm.discovery.mdns_io import Mdns
from swarm.terms import Address, NodeId


class FirstSighting:
    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.line = ""

    def peer_sighted(self, node: NodeId, addresses: tuple[Address, ...]) -> None:
        cabled = [str(address) for address in addresses if address.host.startswith("10.77.")]
        if cabled:
            self.line = " ".join([node, *cabled])
            self.done.set()

    def foreign_swarm(self, tag: str, name: str) -> None:
        pass


async def main(letter: str) -> None:
    first = FirstSighting()
    own = Announcement(NodeId(letter * 32), "tag", letter, Address("0.0.0.0", 7000), 1, 1)
    mdns = Mdns(own, DiscoveryConfig(), first, lambda _: None)
    await mdns.start()
    await first.done.wait()
    print(first.line, flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)
    await mdns.stop()


asyncio.run(main(sys.argv[1]))
