"""The seam between a node and its links, whatever carries them (TCP, a simulated network)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.link.traffic import TrafficCounts
from swarm.messages import Message
from swarm.terms import Address, Incarnation, LinkKind, NodeId

SELF_DIALLED = "that address is this node itself"
ALREADY_LINKED = "already linked"
"""Reasons of `dial_failed` that are no trouble: compare with `in`, details may follow."""
LOOKED_ONLY = "looked only"
"""Said by who came to see whether this node answers, and never wanted a link."""
COPY_MET = "a copy of this node's identity is in use there"
IDENTITY_TAKEN = "another machine uses this identity too"
"""Why a node hangs up on the second of two copies; the same text goes to that one."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a link. `address` is its host with its *listening* port (0: it has none)."""

    node: NodeId
    public_key: bytes
    incarnation: Incarnation
    address: Address
    protocol: int
    dialled: bool
    """Whether this side dialled."""
    instance: bytes = b""
    """Which start of the node it is; b"" for a node that does not say."""
    via: NodeId | None = None
    """The node by way of which a relayed link goes, or a data channel was agreed upon; `address` is
    then unknown (no host, port 0)."""
    kind: LinkKind = LinkKind.DIRECT


@dataclass(frozen=True, slots=True)
class LinkStats:
    rtt_s: float | None
    """Low quantile of the recent pings; None until one was answered."""
    goodput_bytes_s: float | None
    """Median of the recent bulk probes from here to the peer; None until one was answered."""
    bytes_in: int
    bytes_out: int


class LinkEvents(Protocol):
    """What links tell their node. Called on the event loop, never from inside a `Links` method.

    For one peer: `link_up`, then messages, then `link_down`, and so on; never two ups in a row.
    `message_received` may raise RemoteProtocolError: the link is then closed for that reason.
    """

    def link_up(self, peer: Peer) -> None: ...

    def link_down(self, peer: NodeId, cause: str, orderly: bool) -> None:
        """`orderly`: a Goodbye came, or this side closed on purpose."""

    def message_received(self, peer: NodeId, message: Message) -> None:
        """In sending order per lane, and a sign of life.

        Link upkeep (message numbers 1-5) never comes here.
        """

    def heard(self, peer: NodeId) -> None:
        """Bytes arrived on some lane that are no message for the node: a sign of life as well."""

    def dial_failed(
        self, addresses: tuple[Address, ...], expected: NodeId | None, reason: str
    ) -> None:
        """A `dial` ended without a new link to the expected node (or to any, when none was)."""

    def relay_failed(self, peer: NodeId, via: NodeId, reason: str) -> None:
        """A `dial_via` ended without a new link to the peer."""

    def lane_writable(self, peer: NodeId) -> None:
        """The data lane, busy until now, has drained."""

    def bulk_ready(self, peer: NodeId) -> None:
        """The bulk lane has come up, or has drained, or is gone."""

    def copy_met(self, address: Address, yields: bool) -> None:
        """A living node at `address` holds this node's key: proven, and known there as well.

        `yields`: it is this node that must give the identity up; the other one keeps it.
        """

    def copy_reported(self, address: Address) -> None:
        """A peer has met a copy of this node at `address`. It is dialled; `copy_met` may follow."""


class Links(Protocol):
    """All links of one node."""

    async def listen(self, host: str, port: int) -> Address:
        """Take connections; port 0 picks a free one. Host `::` is every interface, IPv4 and, where
        there is any, IPv6. Raises OSError where that cannot be."""

    def dial(self, addresses: Sequence[Address], expected: NodeId | None) -> None:
        """Try all addresses at once; the first that authenticates wins, the others are dropped.

        Any member of the swarm becomes a link, but only `expected`, where given, ends the dial.
        The outcome comes as `link_up` or `dial_failed`.
        """

    def dial_via(self, peer: NodeId, via: NodeId) -> None:
        """Make a link to `peer` by way of `via`, a peer that is linked directly.

        Such a link is like any other, sealed from end to end, and gives way to a direct one. The
        outcome comes as `link_up` or `relay_failed`.
        """

    def open_channel(self, peer: NodeId) -> None:
        """Try to have a WebRTC data channel take the place of the relayed link to `peer`.

        The outcome comes as a new `link_up`, or only as a note: the relayed link stays meanwhile.
        """

    def send(self, peer: NodeId, message: Message) -> bool:
        """Queue a message on the lane of its kind. False when there is no link."""

    def data_lane_busy(self, peer: NodeId) -> bool:
        """Whether bulk should wait for `lane_writable`. True where there is no link."""

    def open_bulk(self, peer: NodeId) -> None:
        """Make the bulk lane. Only whoever dialled the link can; at the other end it does nothing,
        so both ends ask for it. `bulk_ready` follows."""

    def bulk_has_room(self, peer: NodeId) -> bool:
        """Whether a bulk message can be sent now; while not, wait for `bulk_ready`."""

    def close(self, peer: NodeId, reason: str) -> None:
        """Say goodbye and close; `link_down` follows. Nothing happens where there is no link."""

    def stats(self, peer: NodeId) -> LinkStats | None: ...

    def traffic(self) -> TrafficCounts:
        """Of all links together, those that ended too."""

    def set_incarnation(self, incarnation: Incarnation) -> None:
        """What handshakes say from now on, for a node that refuted; links that are up stay."""

    def peers(self) -> tuple[Peer, ...]:
        """Ends of the links that are up, in the order they came up."""

    async def close_all(self, reason: str) -> None:
        """Stop listening and dialling, close every link, and return when all is gone."""
