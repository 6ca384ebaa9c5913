"""The node in the middle: joins two of its peers that cannot reach each other.

It sees who talks with whom, when and how much, and ciphertext. A peer asks for each stream by a
ticket; when the legs to both ends stand they are spliced. All of it ends with the link to either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.config import LinkConfig
from swarm.link.live_io import LiveLink
from swarm.link.passages import Pace, Passage, Passages
from swarm.link.sockets_io import set_background
from swarm.link.splice_io import Half, SplicePorts
from swarm.messages import Lane, RelayOffer, RelayOpen, RelayRefused
from swarm.terms import NodeId


@dataclass(frozen=True, slots=True)
class MiddlePorts:
    """`dial_leg`: make a leg of a link that this side dialled."""

    links: dict[NodeId, LiveLink]
    dial_leg: Callable[[LiveLink, bytes], None]
    clock: Callable[[], float]


@dataclass(slots=True)
class _Open:
    passage: Passage
    expiry: asyncio.TimerHandle
    halves: dict[NodeId, Half] = field(default_factory=dict)


class Middle:
    def __init__(self, ports: MiddlePorts, config: LinkConfig) -> None:
        self._ports = ports
        self._config = config
        self._passages = Passages(config.relay_streams_max, config.relay_streams_per_peer_max)
        self._open: dict[bytes, _Open] = {}
        self._pace = Pace(config.relay_bytes_s, ports.clock())
        self.bytes_passed = 0
        """Since the start, both directions."""

    @property
    def stream_count(self) -> int:
        return len(self._passages)

    def asked(self, link: LiveLink, order: RelayOpen) -> None:
        passage = Passage(order.ticket, link.peer.node, order.target, order.lane)
        target = self._ports.links.get(order.target)
        objection = self._objection(link, target) or self._passages.begin(passage)
        if objection is not None or target is None:
            link.send(RelayRefused(order.ticket, objection or ""))
            return
        loop = asyncio.get_running_loop()
        wait_s = self._config.handshake_timeout_s
        expiry = loop.call_later(wait_s, self._give_up, order.ticket, "no answer in time")
        self._open[order.ticket] = _Open(passage, expiry)
        target.send(RelayOffer(order.ticket, link.peer.node, order.lane))
        for end in (link, target):
            if end.peer.dialled:
                self._ports.dial_leg(end, order.ticket)

    def awaits(self, peer: NodeId, ticket: bytes) -> bool:
        """Whether a leg to `peer` is missing."""
        found = self._open.get(ticket)
        return found is not None and peer in found.passage.ends and peer not in found.halves

    def stands(
        self, peer: NodeId, ticket: bytes, transport: asyncio.Transport, rest: bytes
    ) -> None:
        """The leg to `peer` that was awaited."""
        found = self._open[ticket]
        lane = found.passage.lane
        if lane is Lane.BULK:
            sock = transport.get_extra_info("socket")
            set_background(sock, self._config.bulk_buffer_bytes)

        def passed(byte_count: int) -> float:
            self.bytes_passed += byte_count
            wait_s = self._pace.spent(byte_count, self._ports.clock())
            return 0.0 if lane is Lane.CONTROL else wait_s

        ports = SplicePorts(passed, lambda: self._ended(ticket))
        half = Half(transport, rest, self._config.relay_buffer_bytes, ports)
        found.halves[peer] = half
        if len(found.halves) == 2:
            found.expiry.cancel()
            one, other = found.halves.values()
            one.join(other)

    def leg_failed(self, ticket: bytes, cause: str) -> None:
        if ticket in self._open:
            self._give_up(ticket, cause)

    def link_gone(self, peer: NodeId) -> None:
        for passage in self._passages.through(peer):
            self._give_up(passage.ticket, "the node in the middle has lost its link")

    def close(self) -> None:
        for ticket in list(self._open):
            self._give_up(ticket, "the node in the middle stops")

    def _objection(self, link: LiveLink, target: LiveLink | None) -> str | None:
        if target is None or target is link:
            return "it has no link to that node"
        if link.peer.via is not None or target.peer.via is not None:
            return "its own link to that node is relayed"
        return None

    def _give_up(self, ticket: bytes, cause: str) -> None:
        found = self._open.pop(ticket)
        self._passages.end(ticket)
        found.expiry.cancel()
        if len(found.halves) < 2:
            for end in found.passage.ends:
                if (link := self._ports.links.get(end)) is not None:
                    link.send(RelayRefused(ticket, cause))
        for half in found.halves.values():
            half.abort()

    def _ended(self, ticket: bytes) -> None:
        """A half is gone; the other goes when it has sent what it was given."""
        found = self._open.get(ticket)
        if found is None:
            return
        if len(found.halves) < 2:
            self._give_up(ticket, "a leg of it broke")
            return
        del self._open[ticket]
        self._passages.end(ticket)
