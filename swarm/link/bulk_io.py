"""Bulk lanes: the third connection of a link, for weights. It comes and goes; the link stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.link.connection_io import Connection
from swarm.link.dial_io import Destination, Dialler
from swarm.link.lanes import LinkTable
from swarm.link.link_io import LinkEvents
from swarm.link.live_io import LiveLink
from swarm.messages import Lane
from swarm.terms import Address, LinkKind, NodeId

IDLE = "no weights were asked for any more"
REPLACED = "another bulk lane took its place"


@dataclass(frozen=True, slots=True)
class BulkPorts:
    """What bulk lanes share with the links they belong to.

    links  all that are up; live: the same by the number of each of their connections
    """

    links: dict[NodeId, LiveLink]
    live: dict[int, LiveLink]
    table: LinkTable
    dialler: Dialler
    events: LinkEvents
    clock: Callable[[], float]


class BulkLanes:
    def __init__(self, ports: BulkPorts, idle_s: float) -> None:
        self._ports = ports
        self._idle_s = idle_s
        self._turn = 0
        self._lanes: dict[NodeId, Connection] = {}
        self._dials: dict[NodeId, Connection] = {}
        self._moved: dict[NodeId, tuple[int, float]] = {}
        """Bytes of a lane when they were last seen to have changed, and when that was."""

    def open(self, peer: NodeId) -> None:
        """See `Links.open_bulk`."""
        link, binding = self._ports.links.get(peer), self._ports.table.binding(peer)
        if link is None or binding is None or not link.peer.dialled:
            return
        if peer not in self._lanes and peer not in self._dials:
            self._dials[peer] = self._ports.dialler.open_further_lane(
                Lane.BULK, binding, self._way_to(link)
            )

    def has_room(self, peer: NodeId) -> bool:
        lane = self._lanes.get(peer)
        return lane is not None and not lane.busy

    def authenticated(self, connection: Connection, peer: NodeId) -> None:
        """A bulk lane of a link that is up."""
        ports = self._ports
        self._dials.pop(peer, None)
        self._drop(peer, REPLACED)
        link = ports.links[peer]
        self._lanes[peer] = link.bulk = connection
        self._moved[peer] = (0, ports.clock())
        ports.live[connection.number] = link
        connection.settled()
        ports.events.bulk_ready(peer)

    def writable(self, connection: Connection) -> bool:
        """Whether it was a bulk lane that drained."""
        for peer, lane in self._lanes.items():
            if lane is connection:
                self._ports.events.bulk_ready(peer)
                return True
        return False

    def ended(self, connection: Connection) -> bool:
        """Whether it was a bulk lane, whose end no link minds."""
        for peer, lane in self._lanes.items():
            if lane is connection:
                self._forget(peer)
                self._ports.events.bulk_ready(peer)
                return True
        for peer, dial in self._dials.items():
            if dial is connection:
                del self._dials[peer]
                self._ports.events.bulk_ready(peer)
                return True
        found = connection.established
        return found is not None and found.lane is Lane.BULK

    def link_gone(self, peer: NodeId, reason: str) -> None:
        self._drop(peer, reason)
        dial = self._dials.pop(peer, None)
        if dial is not None:
            dial.fail(reason)

    def tick(self) -> None:
        """Close lanes on which nothing has moved for a while."""
        now = self._ports.clock()
        for peer, lane in list(self._lanes.items()):
            moved = lane.bytes_in + lane.bytes_out
            if moved != self._moved[peer][0]:
                self._moved[peer] = (moved, now)
            elif now - self._moved[peer][1] >= self._idle_s:
                self._drop(peer, IDLE)

    def _way_to(self, link: LiveLink) -> Destination:
        """As its other lanes go; beside a data channel by way of a third node, whose sockets take
        less work a byte: the one that helped before, or else each direct peer in its turn."""
        if link.peer.kind is not LinkKind.WEBRTC:
            return Destination.of(link.control)
        direct = [p for p, known in self._ports.links.items() if known.peer.via is None]
        via = link.peer.via
        if via not in direct and direct:
            self._turn += 1
            via = direct[self._turn % len(direct)]
        assert via is not None
        return Destination(Address(via, 0), via, link.peer.node, LinkKind.RELAYED)

    def _drop(self, peer: NodeId, reason: str) -> None:
        lane = self._forget(peer)
        if lane is not None:
            lane.fail(reason)

    def _forget(self, peer: NodeId) -> Connection | None:
        lane = self._lanes.pop(peer, None)
        if lane is None:
            return None
        del self._moved[peer]
        link = self._ports.live.pop(lane.number, None)
        if link is not None:
            link.bulk = None
        return lane
