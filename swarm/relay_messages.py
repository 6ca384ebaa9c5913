"""Messages by which a third node joins two that cannot reach each other (import from `messages`).

A *leg* is a connection between the node in the middle and one end, made by whoever dialled the
link between the two. After its one sealed message it carries the ends' own bytes, which only they
can read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.message_base import Lane, Message
from swarm.terms import NodeId

TICKET_BYTES = 16


@dataclass(frozen=True, slots=True)
class RelayOpen(Message):
    """Please join me to `target`, a peer of yours. `ticket`: drawn by the sender, names this wish.

    `lane`: what the stream is for, so that weights can be made to wait for rows.
    """

    NUMBER: ClassVar[int] = 70
    ticket: bytes
    target: NodeId
    lane: Lane


@dataclass(frozen=True, slots=True)
class RelayOffer(Message):
    """`source` wants a stream to the receiver. Nothing is believed of it: its handshake proves."""

    NUMBER: ClassVar[int] = 71
    ticket: bytes
    source: NodeId
    lane: Lane


@dataclass(frozen=True, slots=True)
class RelayRefused(Message):
    """To either end: nothing comes of the ticket."""

    NUMBER: ClassVar[int] = 72
    ticket: bytes
    cause: str


@dataclass(frozen=True, slots=True)
class RelayLeg(Message):
    """The first and only message of a leg, from whoever dialled it."""

    NUMBER: ClassVar[int] = 73
    LANE: ClassVar[Lane] = Lane.RELAY
    ticket: bytes
