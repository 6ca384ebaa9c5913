"""Messages by which two nodes whose link is relayed agree on a WebRTC data channel (import from
`messages`).

They travel on the control lane of that link, so that they are sealed from end to end and come from
the node that the link was proven to lead to. What they describe needs no trust beyond that: the
handshake of links runs inside the channel once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.message_base import Message


@dataclass(frozen=True, slots=True)
class ChannelCandidate:
    """A UDP address of the sender, an IP literal. `reflexive`: as a server outside sees it."""

    host: str
    port: int
    priority: int
    reflexive: bool = False


@dataclass(frozen=True, slots=True)
class ChannelEnd:
    """One end: what ICE (RFC 8445) and DTLS need to know of it.

    `fingerprint`: SHA-256 of the certificate that it will show, in hexadecimal pairs with colons.
    """

    username: str
    password: str
    fingerprint: str
    candidates: tuple[ChannelCandidate, ...]


@dataclass(frozen=True, slots=True)
class ChannelOffer(Message):
    """Let us have a data channel. `ticket`: drawn by the sender, names this attempt."""

    NUMBER: ClassVar[int] = 75
    ticket: bytes
    end: ChannelEnd


@dataclass(frozen=True, slots=True)
class ChannelAnswer(Message):
    NUMBER: ClassVar[int] = 76
    ticket: bytes
    end: ChannelEnd


@dataclass(frozen=True, slots=True)
class ChannelRefused(Message):
    """To who offered: nothing comes of the ticket."""

    NUMBER: ClassVar[int] = 77
    ticket: bytes
    cause: str
