"""Which connections form which links: pairing lanes, simultaneous dials, restarts. Pure.

A link is a control and a data connection of the same two nodes, made by the same dialler. Of the
two nodes the one with the smaller id *settles*: it picks one complete link and speaks first on it;
the other holds its tongue until then. So both always agree, and two dials that cross cost nothing
but one of the connections (docs/decisions/008-crossing-dials.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.link.handshake import Established
from swarm.link.link_io import ALREADY_LINKED, SELF_DIALLED, Peer
from swarm.messages import Lane
from swarm.terms import Address, Incarnation, NodeId

ConnectionId = int


@dataclass(frozen=True, slots=True)
class OpenDataLane:
    """Dial the same address again for the data lane of this control connection."""

    control: ConnectionId
    binding: bytes


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both lanes may carry messages now. `speak`: this side settled it and must be heard first."""

    peer: Peer
    control: ConnectionId
    data: ConnectionId
    speak: bool


@dataclass(frozen=True, slots=True)
class LinkDown:
    peer: NodeId
    cause: str
    orderly: bool


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """`tell`: say goodbye with the reason first; otherwise just break it off."""

    connection: ConnectionId
    reason: str
    tell: bool


TableEffect = OpenDataLane | LinkUp | LinkDown | CloseConnection


@dataclass(slots=True)
class _Link:
    peer: Peer
    control: ConnectionId
    binding: bytes
    data: ConnectionId | None = None
    confirmed: bool = False
    up_since: float | None = None

    @property
    def connections(self) -> tuple[ConnectionId, ...]:
        return (self.control,) if self.data is None else (self.control, self.data)


@dataclass(frozen=True, slots=True)
class TableLimits:
    links_max: int
    young_s: float
    """A link younger than this may still be unknown to the other side (a handshake's time)."""


@dataclass(slots=True)
class LinkTable:
    """All links of one node, complete or not. Methods are facts; the answers are orders."""

    own: NodeId
    limits: TableLimits
    _up: dict[NodeId, _Link] = field(default_factory=dict)
    _pending: dict[ConnectionId, _Link] = field(default_factory=dict)
    _by_connection: dict[ConnectionId, _Link] = field(default_factory=dict)
    _early_data: dict[ConnectionId, Established] = field(default_factory=dict)
    """Accepted data lanes that overtook their control lanes; the handshake limit ends them."""

    def objection(self, found: Established, *, dialled: bool, now: float) -> str | None:
        """Why a connection that just authenticated is not wanted; None when it is."""
        if found.node == self.own:
            return SELF_DIALLED
        if found.lane is Lane.DATA:
            return self._objection_to_data(found, dialled)
        up = self._up.get(found.node)
        if up is not None and not self._supersedes(up, found.incarnation, dialled, now):
            return ALREADY_LINKED
        if dialled and self._dialling(found):
            return ALREADY_LINKED
        if up is None and len(self._up) + len(self._pending) >= self.limits.links_max:
            return f"this node has all the {self.limits.links_max} links it may have"
        return None

    def control_ready(
        self, connection: ConnectionId, peer: Peer, binding: bytes, now: float
    ) -> list[TableEffect]:
        """A control lane authenticated and nothing stood against it."""
        link = _Link(peer, connection, binding)
        self._pending[connection] = link
        self._by_connection[connection] = link
        if peer.dialled:
            return [OpenDataLane(connection, binding)]
        for data, found in self._early_data.items():
            if self._pairs(link, found, dialled=False):
                del self._early_data[data]
                return self._join(link, data, now)
        return []

    def data_ready(
        self, connection: ConnectionId, found: Established, *, dialled: bool, now: float
    ) -> list[TableEffect]:
        """A data lane authenticated: it joins the control lane that its binding names.

        Two connections keep no order between them: an accepted data lane may be early.
        """
        for link in self._pending.values():
            if self._pairs(link, found, dialled):
                return self._join(link, connection, now)
        self._early_data[connection] = found
        return []

    def heard(self, connection: ConnectionId, now: float) -> list[TableEffect]:
        """A frame came on a connection whose link is not up: the other side has settled it."""
        link = self._by_connection.get(connection)
        if link is None or link.up_since is not None:
            return []
        link.confirmed = True
        return self._settle(link, now)

    def lost(self, connection: ConnectionId, cause: str, orderly: bool) -> list[TableEffect]:
        """A connection ended or failed: its link goes with it, both lanes at once."""
        self._early_data.pop(connection, None)
        link = self._by_connection.get(connection)
        if link is None:
            return []
        self._forget(link)
        others = [c for c in link.connections if c != connection]
        effects: list[TableEffect] = [CloseConnection(c, cause, tell=False) for c in others]
        if link.up_since is not None:
            effects.append(LinkDown(link.peer.node, cause, orderly))
        return effects

    def close(self, node: NodeId, reason: str) -> list[TableEffect]:
        """This side wants the link gone."""
        link = self._up.get(node)
        return [] if link is None else self._end(link, reason, orderly=True)

    def connections(self, node: NodeId) -> tuple[ConnectionId, ConnectionId] | None:
        """(control, data) of the link that is up."""
        link = self._up.get(node)
        if link is None or link.data is None:
            return None
        return link.control, link.data

    def peer_of(self, connection: ConnectionId) -> Peer | None:
        """The peer on this connection, if its link is up."""
        link = self._by_connection.get(connection)
        return link.peer if link is not None and link.up_since is not None else None

    def peers(self) -> tuple[Peer, ...]:
        return tuple(link.peer for link in self._up.values())

    def _objection_to_data(self, found: Established, dialled: bool) -> str | None:
        if any(self._pairs(link, found, dialled) for link in self._pending.values()):
            return None
        if dialled or len(self._early_data) >= self.limits.links_max:
            return "a data lane without its control lane"
        return None

    def _join(self, link: _Link, data: ConnectionId, now: float) -> list[TableEffect]:
        link.data = data
        self._by_connection[data] = link
        return self._settle(link, now)

    def _settle(self, link: _Link, now: float) -> list[TableEffect]:
        """Bring a link up once both lanes stand and the settling side has chosen it."""
        settles = self.own < link.peer.node
        if link.data is None or not (settles or link.confirmed):
            return []
        effects: list[TableEffect] = []
        old = self._up.get(link.peer.node)
        if old is not None:
            newer = link.peer.incarnation
            if settles and not self._supersedes(old, newer, link.peer.dialled, now):
                return self._end(link, ALREADY_LINKED, orderly=True)
            effects += self._end(old, f"replaced by incarnation {newer}", orderly=False)
        self._pending.pop(link.control)
        link.up_since = now
        self._up[link.peer.node] = link
        effects.append(LinkUp(link.peer, link.control, link.data, speak=settles))
        if settles:
            effects += self._end_rivals(link)
        return effects

    def _end_rivals(self, winner: _Link) -> list[TableEffect]:
        """Incomplete links with the same incarnation of a node that is linked now."""
        effects: list[TableEffect] = []
        for link in list(self._pending.values()):
            same = link.peer.node == winner.peer.node
            if same and link.peer.incarnation <= winner.peer.incarnation:
                effects += self._end(link, ALREADY_LINKED, orderly=True)
        return effects

    def _end(self, link: _Link, reason: str, *, orderly: bool) -> list[TableEffect]:
        was_up = link.up_since is not None
        self._forget(link)
        effects: list[TableEffect] = [
            CloseConnection(c, reason, tell=orderly) for c in link.connections
        ]
        return [*effects, LinkDown(link.peer.node, reason, orderly)] if was_up else effects

    def _forget(self, link: _Link) -> None:
        self._pending.pop(link.control, None)
        if self._up.get(link.peer.node) is link:
            del self._up[link.peer.node]
        for connection in link.connections:
            self._by_connection.pop(connection, None)

    def _supersedes(self, old: _Link, incarnation: Incarnation, dialled: bool, now: float) -> bool:
        """Whether a new link of a linked node is worth more than the one there is.

        A restart always is. In one life, a node that has a link does not dial: its dialling tells
        that the old link is dead over there, unless that link is too young to be known there.
        """
        if incarnation != old.peer.incarnation:
            return incarnation > old.peer.incarnation
        if dialled or old.up_since is None:
            return False
        return now - old.up_since > self.limits.young_s

    def _dialling(self, found: Established) -> bool:
        """Whether another dial of ours has already reached the same node in the same life."""
        return any(
            link.peer.dialled
            and link.peer.node == found.node
            and link.peer.incarnation >= found.incarnation
            for link in self._pending.values()
        )

    @staticmethod
    def _pairs(link: _Link, found: Established, dialled: bool) -> bool:
        return (
            link.data is None
            and link.peer.dialled == dialled
            and link.peer.node == found.node
            and link.binding == found.binding
        )


@dataclass(slots=True)
class DialRound:
    """One `dial`: several addresses at once. It ends linked, or failed when all came to nothing."""

    addresses: tuple[Address, ...]
    expected: NodeId | None
    open: list[Address]
    failures: list[str] = field(default_factory=list)
    chosen: Address | None = None
    over: bool = False

    @staticmethod
    def start(addresses: tuple[Address, ...], expected: NodeId | None) -> DialRound:
        return DialRound(addresses, expected, list(addresses))

    def is_stranger(self, node: NodeId) -> bool:
        """Whether a node that answered is not the one this round looks for."""
        return self.expected is not None and node != self.expected

    def reached(self, address: Address) -> bool:
        """An address authenticated as a node looked for. False when another one was faster."""
        if self.chosen is None and not self.over:
            self.chosen = address
        return self.chosen == address

    def failed(self, address: Address, reason: str) -> bool:
        """An address came to nothing. True when by that the whole round has failed."""
        if self.over or address not in self.open:
            return False
        self.open.remove(address)
        self.failures.append(f"{address}: {reason}")
        self.over = address == self.chosen or not self.open
        return self.over

    def linked(self, address: Address) -> None:
        """The link through this address is up."""
        self.over = self.over or address == self.chosen

    @property
    def reason(self) -> str:
        return "; ".join(self.failures)
