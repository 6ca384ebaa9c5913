"""Which connections form which links: pairing lanes, simultaneous dials, restarts. Pure.

A link is a control and a data connection of the same two nodes, made by the same dialler. Of the
two nodes the one with the smaller id *settles*: it picks one complete link and speaks first on it;
the other holds its tongue until then. So both always agree, and two dials that cross cost nothing
but one of the connections (docs/decisions/008-crossing-dials.md).

A linked node that shows another instance has restarted, or there are two of it. The link that
stands is asked for a sign of life first: if it gives one, it stays, and both copies are told
(docs/decisions/014-copied-identity.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.link.handshake import Established
from swarm.link.instances import are_two_starts
from swarm.link.link_io import ALREADY_LINKED, IDENTITY_TAKEN, SELF_DIALLED, Peer
from swarm.messages import Lane
from swarm.terms import Incarnation, LinkKind, NodeId

ConnectionId = int
BETTER_NOW = {
    LinkKind.DIRECT: "a direct link takes its place",
    LinkKind.WEBRTC: "a data channel takes its place",
}
DIRECT_NOW = BETTER_NOW[LinkKind.DIRECT]


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


@dataclass(frozen=True, slots=True)
class Challenge:
    """Ask for a sign of life on `standing`, then tell `answered` or `unanswered` of `newcomer`.

    Both are control connections of one node, of two starts of it.
    """

    standing: ConnectionId
    newcomer: ConnectionId


@dataclass(frozen=True, slots=True)
class CopySeen:
    """Two living nodes share one key: tell each of them where the other is."""

    standing: ConnectionId
    newcomer: ConnectionId
    standing_peer: Peer
    newcomer_peer: Peer


TableEffect = OpenDataLane | LinkUp | LinkDown | CloseConnection | Challenge | CopySeen


@dataclass(slots=True)
class _Link:
    peer: Peer
    control: ConnectionId
    binding: bytes
    data: ConnectionId | None = None
    confirmed: bool = False
    up_since: float | None = None
    challenged: ConnectionId | None = None
    """The standing link of another start of this node, which was asked whether it lives."""

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

    def objection(
        self,
        found: Established,
        *,
        dialled: bool,
        kind: LinkKind = LinkKind.DIRECT,
        now: float,
    ) -> str | None:
        """Why a connection that just authenticated is not wanted; None when it is."""
        if found.node == self.own:
            return None if found.is_copy else SELF_DIALLED
        if found.lane is Lane.DATA:
            return self._objection_to_data(found, dialled)
        if found.lane in (Lane.BULK, Lane.RELAY):
            return self._objection_to_further(found, dialled)
        up = self._up.get(found.node)
        is_better = up is not None and kind < up.peer.kind
        if up is not None and not is_better and not self._may_replace(up, found, dialled, now):
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

    def answered(self, newcomer: ConnectionId) -> list[TableEffect]:
        """The challenged link gave a sign of life after the newcomer had given its own."""
        link = self._pending.get(newcomer)
        standing = None if link is None else self._up.get(link.peer.node)
        if link is None or standing is None or link.challenged != standing.control:
            return []
        seen = CopySeen(standing.control, link.control, standing.peer, link.peer)
        return [seen, *self._end(link, IDENTITY_TAKEN, orderly=True)]

    def unanswered(self, newcomer: ConnectionId, now: float) -> list[TableEffect]:
        """The challenged link gave no sign of life in time: the newcomer is a restart."""
        link = self._pending.get(newcomer)
        if link is None or link.challenged is None:
            return []
        standing = self._up.get(link.peer.node)
        effects: list[TableEffect] = []
        if standing is not None and standing.control == link.challenged:
            effects += self._end(standing, "restarted, and silent on its old link", orderly=False)
        link.challenged = None
        return effects + self._settle(link, now)

    def lost(
        self, connection: ConnectionId, cause: str, orderly: bool, now: float = 0.0
    ) -> list[TableEffect]:
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
            for newcomer in [p for p in self._pending.values() if p.challenged == link.control]:
                effects += self.unanswered(newcomer.control, now)
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

    def binding(self, node: NodeId) -> bytes | None:
        """Of the link that is up: what a further lane of it must show."""
        link = self._up.get(node)
        return None if link is None else link.binding

    def peers(self) -> tuple[Peer, ...]:
        return tuple(link.peer for link in self._up.values())

    def _objection_to_data(self, found: Established, dialled: bool) -> str | None:
        if any(self._pairs(link, found, dialled) for link in self._pending.values()):
            return None
        if dialled or len(self._early_data) >= self.limits.links_max:
            return "a data lane without its control lane"
        return None

    def _objection_to_further(self, found: Established, dialled: bool) -> str | None:
        """A further lane belongs to a link that is up, and is dialled by whoever dialled that."""
        link = self._up.get(found.node)
        if link is None or link.binding != found.binding or link.peer.dialled != dialled:
            return f"a {found.lane.value} lane without its link"
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
        if old is not None and are_two_starts(old.peer.instance, link.peer.instance):
            if link.challenged == old.control:
                return []
            link.challenged = old.control
            return [Challenge(old.control, link.control)]
        if old is not None:
            newer = link.peer.incarnation
            is_same_life = newer == old.peer.incarnation
            if is_same_life and link.peer.kind < old.peer.kind:
                effects += self._end(old, BETTER_NOW[link.peer.kind], orderly=True)
            elif settles and not self._supersedes(old, newer, link.peer.dialled, now):
                return self._end(link, ALREADY_LINKED, orderly=True)
            else:
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
            if are_two_starts(link.peer.instance, winner.peer.instance):
                continue
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

    def _may_replace(self, old: _Link, found: Established, dialled: bool, now: float) -> bool:
        """Another start of a linked node is judged once its link is complete."""
        other_start = are_two_starts(old.peer.instance, found.instance)
        return other_start or self._supersedes(old, found.incarnation, dialled, now)

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
            and not are_two_starts(link.peer.instance, found.instance)
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
