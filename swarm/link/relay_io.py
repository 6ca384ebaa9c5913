"""Relayed streams at all three nodes: the ends ask and take, the one in the middle joins.

A relayed stream is a connection like any other: the handshake of the two ends runs inside it, and
its socket happens to lead to a third node. What is agreed beforehand (`relay_messages`) travels on
the links of the ends to that node, whose legs are dialled in the direction in which those were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from swarm.config import LinkConfig
from swarm.errors import RemoteProtocolError
from swarm.link.connection_io import Connection
from swarm.link.dial_io import Destination, Dialler
from swarm.link.lanes import LinkTable
from swarm.link.live_io import LiveLink
from swarm.link.middle_io import Middle, MiddlePorts
from swarm.link.sockets_io import printable
from swarm.messages import (
    TICKET_BYTES,
    Lane,
    RelayLeg,
    RelayOffer,
    RelayOpen,
    RelayRefused,
)
from swarm.terms import LinkKind, NodeId, short

RELAY_MESSAGES = (RelayOpen, RelayOffer, RelayRefused)
LOST = "the node in the middle is no longer linked"
_UNWANTED = "nobody waits for this leg"


@dataclass(frozen=True, slots=True)
class RelayPorts:
    """`accept`: a connection, not yet made, for a stream that comes from a node by way of `via`."""

    links: dict[NodeId, LiveLink]
    table: LinkTable
    dialler: Dialler
    accept: Callable[[NodeId], Connection]
    clock: Callable[[], float]
    entropy: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class _Leg:
    peer: NodeId
    ticket: bytes


class Relays:
    """Owns the legs until they are handed over, and the streams that pass through this node."""

    def __init__(self, ports: RelayPorts, config: LinkConfig) -> None:
        self._ports = ports
        self._config = config
        self.middle = Middle(MiddlePorts(ports.links, self._dial_leg, ports.clock), config)
        self._legs: dict[Connection, _Leg] = {}
        """Dialled here and not yet handed over."""
        self._asked: dict[bytes, tuple[NodeId, Connection, asyncio.Future[None]]] = {}
        self._offered: dict[bytes, tuple[NodeId, asyncio.TimerHandle]] = {}

    # ------------------------------------------------------------ the end that asks

    async def connect(self, connection: Connection) -> None:
        """Bring a connection about by way of `connection.via`. Raises OSError with the reason."""
        via, target = connection.via, connection.target
        assert via is not None
        assert target is not None
        link = self._ports.links.get(via)
        if link is None or link.peer.via is not None:
            raise OSError(f"{short(via)} is not linked directly")
        ticket = self._ports.entropy(TICKET_BYTES)
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = (via, connection, made)
        try:
            link.send(RelayOpen(ticket, target, connection.lane))
            if link.peer.dialled:
                self._dial_leg(link, ticket)
            await made
        finally:
            del self._asked[ticket]
            self._drop_leg(ticket, _UNWANTED)

    # ------------------------------------------------------------ what links bring

    def received(self, link: LiveLink, message: RelayOpen | RelayOffer | RelayRefused) -> None:
        match message:
            case RelayOpen():
                self.middle.asked(link, message)
            case RelayOffer():
                self._offer(link, message)
            case RelayRefused():
                self._refused(link, message)

    def authenticated(self, connection: Connection, peer: NodeId) -> None:
        """A leg of a link that is up. One that was accepted says next what it is for."""
        leg = self._legs.get(connection)
        if leg is not None:
            connection.send(RelayLeg(leg.ticket))
            del self._legs[connection]
            self._stands(connection, peer, leg.ticket)
        elif connection.dialled:
            connection.fail(_UNWANTED)

    def leg_named(self, connection: Connection, peer: NodeId, message: RelayLeg) -> None:
        if connection.dialled:
            raise RemoteProtocolError("a leg is named by whoever dialled it")
        self._stands(connection, peer, message.ticket)

    def ended(self, connection: Connection, cause: str) -> bool:
        """Whether it was a leg, whose end no link minds."""
        leg = self._legs.pop(connection, None)
        if leg is not None:
            self.middle.leg_failed(leg.ticket, cause)
            self._fail_asked(leg.ticket, cause)
        found = connection.established
        return leg is not None or (found is not None and found.lane is Lane.RELAY)

    def link_gone(self, peer: NodeId) -> list[Connection]:
        """The link to `peer` is gone, and with it all that led through it."""
        self.middle.link_gone(peer)
        for ticket, (via, _, _) in list(self._asked.items()):
            if via == peer:
                self._fail_asked(ticket, LOST)
        for ticket, (via, expiry) in list(self._offered.items()):
            if via == peer:
                expiry.cancel()
                del self._offered[ticket]
        for connection, leg in list(self._legs.items()):
            if leg.peer == peer:
                self._ports.dialler.give_up(connection, LOST)
        return [
            link.control
            for link in self._ports.links.values()
            if link.peer.via == peer and link.peer.kind is LinkKind.RELAYED
        ]

    def close(self) -> None:
        self.middle.close()
        for _, expiry in self._offered.values():
            expiry.cancel()
        self._offered.clear()

    # ------------------------------------------------------------ inside

    def _dial_leg(self, link: LiveLink, ticket: bytes) -> None:
        binding = self._ports.table.binding(link.peer.node)
        assert binding is not None
        destination = Destination.of(link.control)
        leg = self._ports.dialler.open_further_lane(Lane.RELAY, binding, destination)
        self._legs[leg] = _Leg(link.peer.node, ticket)

    def _offer(self, link: LiveLink, offer: RelayOffer) -> None:
        """The end that is asked for: the leg to the middle, and then an ordinary handshake."""
        via = link.peer.node
        if len(offer.ticket) != TICKET_BYTES:
            raise RemoteProtocolError("a relay ticket of wrong length")
        of_peer = sum(known == via for known, _ in self._offered.values())
        is_known = offer.ticket in self._offered or offer.ticket in self._asked
        if is_known or of_peer >= self._config.relay_streams_per_peer_max:
            link.send(RelayRefused(offer.ticket, "it takes no more streams now"))
            return
        loop = asyncio.get_running_loop()
        wait_s = self._config.handshake_timeout_s
        expiry = loop.call_later(wait_s, self._offer_over, offer.ticket)
        self._offered[offer.ticket] = (via, expiry)
        if link.peer.dialled:
            self._dial_leg(link, offer.ticket)

    def _offer_over(self, ticket: bytes) -> None:
        del self._offered[ticket]
        self._drop_leg(ticket, "no answer in time")

    def _refused(self, link: LiveLink, message: RelayRefused) -> None:
        """By the middle, or, to the middle, by the end that was asked for."""
        peer, cause = link.peer.node, printable(message.cause)
        if self.middle.awaits(peer, message.ticket):
            self.middle.leg_failed(message.ticket, cause)
        asked = self._asked.get(message.ticket)
        if asked is not None and asked[0] == peer:
            self._fail_asked(message.ticket, cause)
        offered = self._offered.get(message.ticket)
        if offered is not None and offered[0] == peer:
            offered[1].cancel()
            self._offer_over(message.ticket)

    def _stands(self, connection: Connection, peer: NodeId, ticket: bytes) -> None:
        """A leg to or from `peer`: whoever waits for it gets its socket."""
        if self.middle.awaits(peer, ticket):
            self.middle.stands(peer, ticket, *connection.hand_over())
            return
        asked, offered = self._asked.get(ticket), self._offered.get(ticket)
        if asked is not None and asked[0] == peer and not asked[2].done():
            asked[2].set_result(None)
            asked[1].adopt(*connection.hand_over())
        elif offered is not None and offered[0] == peer:
            offered[1].cancel()
            del self._offered[ticket]
            self._ports.accept(peer).adopt(*connection.hand_over())
        else:
            connection.fail(_UNWANTED)

    def _fail_asked(self, ticket: bytes, cause: str) -> None:
        asked = self._asked.get(ticket)
        if asked is not None and not asked[2].done():
            asked[2].set_exception(OSError(cause))

    def _drop_leg(self, ticket: bytes, cause: str) -> None:
        for connection, leg in list(self._legs.items()):
            if leg.ticket == ticket and not self.middle.awaits(leg.peer, ticket):
                self._ports.dialler.give_up(connection, cause)
