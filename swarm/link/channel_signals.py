"""Who offers whom a data channel, and what becomes of it: the signalling of both ends. Pure.

An attempt has a ticket. At the end that offers it is OFFERED until the answer comes; at the other
it is GATHERING until that end knows its own addresses. From the answer on both are CONNECTING. It
ends when the channel stands, is refused, comes to nothing, or the link that carries it is gone.

Two offers that cross: that of the smaller id stands.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum

from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.messages import TICKET_BYTES, ChannelAnswer, ChannelEnd, ChannelOffer, ChannelRefused
from swarm.terms import NodeId

CANDIDATES_MAX = 8
"""Addresses of one end: each pair of them costs a few datagrams."""
ATTEMPTS_MAX = 16
"""At once, over all peers: each has sockets and a handshake."""
_PORT_LIMIT = 1 << 16
_PRIORITY_LIMIT = 1 << 32
_USERNAME = re.compile(r"[A-Za-z0-9+/]{4,32}")
_PASSWORD = re.compile(r"[A-Za-z0-9+/]{22,64}")
_FINGERPRINT = re.compile(r"[0-9A-F]{2}(:[0-9A-F]{2}){31}")

CROSSED = "the other side's offer goes first"
_BUSY = "it makes no more channels now"
_NOT_RELAYED = "a channel is agreed upon over a relayed link only"


class Stage(Enum):
    OFFERED = "offered"
    GATHERING = "gathering"
    CONNECTING = "connecting"


_NEXT = {Stage.OFFERED: Stage.CONNECTING, Stage.GATHERING: Stage.CONNECTING}


@dataclass(frozen=True, slots=True)
class Answer:
    """Gather addresses, then tell `gathered`."""

    peer: NodeId
    ticket: bytes
    end: ChannelEnd


@dataclass(frozen=True, slots=True)
class Connect:
    """The other end has answered our offer."""

    ticket: bytes
    end: ChannelEnd


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nothing comes of the attempt."""

    ticket: bytes
    cause: str


@dataclass(frozen=True, slots=True)
class Say:
    peer: NodeId
    message: ChannelOffer | ChannelAnswer | ChannelRefused


SignalEffect = Answer | Connect | Abandon | Say


@dataclass(slots=True)
class _Attempt:
    peer: NodeId
    stage: Stage


class Signals:
    """Attempts of one node by ticket. Methods are facts; the answers are orders."""

    def __init__(self, own: NodeId) -> None:
        self._own = own
        self._attempts: dict[bytes, _Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def objection(self, peer: NodeId) -> str | None:
        """Why this node cannot offer `peer` a channel now."""
        if any(attempt.peer == peer for attempt in self._attempts.values()):
            return "one is being made already"
        return "too many are being made" if len(self._attempts) >= ATTEMPTS_MAX else None

    def offers(self, peer: NodeId, ticket: bytes, end: ChannelEnd) -> list[SignalEffect]:
        """This node's addresses are known, and nothing stands against the offer."""
        self._attempts[ticket] = _Attempt(peer, Stage.OFFERED)
        return [Say(peer, ChannelOffer(ticket, end))]

    def offered(
        self, peer: NodeId, offer: ChannelOffer, *, is_relayed: bool, refusal: str | None
    ) -> list[SignalEffect]:
        """Over a link with `peer`. `refusal`: why this node makes no channels."""
        if len(offer.ticket) != TICKET_BYTES:
            raise RemoteProtocolError("a channel ticket of wrong length")
        check_end(offer.end)
        ours = [t for t, attempt in self._attempts.items() if attempt.peer == peer]
        is_crossed = any(self._attempts[t].stage is Stage.OFFERED for t in ours)
        cause = refusal if is_relayed else _NOT_RELAYED
        if is_crossed and self._own < peer:
            cause = cause or CROSSED
        elif (ours and not is_crossed) or len(self._attempts) >= ATTEMPTS_MAX:
            cause = cause or _BUSY
        if offer.ticket in self._attempts or cause is not None:
            return [Say(peer, ChannelRefused(offer.ticket, cause or _BUSY))]
        effects: list[SignalEffect] = [self._abandon(t, CROSSED) for t in ours]
        self._attempts[offer.ticket] = _Attempt(peer, Stage.GATHERING)
        return [*effects, Answer(peer, offer.ticket, offer.end)]

    def gathered(self, ticket: bytes, end: ChannelEnd) -> list[SignalEffect]:
        """This node's addresses for an offer that it answers; it connects from now on."""
        attempt = self._attempts.get(ticket)
        if attempt is None:
            return []
        self._enter(attempt, Stage.GATHERING)
        return [Say(attempt.peer, ChannelAnswer(ticket, end))]

    def answered(self, peer: NodeId, answer: ChannelAnswer) -> list[SignalEffect]:
        """Answers to what this node did not offer, or no longer does, are late: no harm."""
        attempt = self._attempts.get(answer.ticket)
        if attempt is None or attempt.peer != peer or attempt.stage is not Stage.OFFERED:
            return []
        check_end(answer.end)
        self._enter(attempt, Stage.OFFERED)
        return [Connect(answer.ticket, answer.end)]

    def refused(self, peer: NodeId, refused: ChannelRefused) -> list[SignalEffect]:
        attempt = self._attempts.get(refused.ticket)
        if attempt is None or attempt.peer != peer or attempt.stage is not Stage.OFFERED:
            return []
        return [self._abandon(refused.ticket, refused.cause)]

    def over(self, ticket: bytes) -> None:
        """The channel stands, or this end has given it up."""
        self._attempts.pop(ticket, None)

    def link_gone(self, peer: NodeId) -> list[SignalEffect]:
        """What is connecting needs it no more."""
        waiting = [
            ticket
            for ticket, attempt in self._attempts.items()
            if attempt.peer == peer and attempt.stage is not Stage.CONNECTING
        ]
        return [self._abandon(ticket, "the relayed link has ended") for ticket in waiting]

    def _enter(self, attempt: _Attempt, source: Stage) -> None:
        if attempt.stage is not source:
            raise LocalProtocolError(f"a channel that is {attempt.stage.value}, not {source.value}")
        attempt.stage = _NEXT[source]

    def _abandon(self, ticket: bytes, cause: str) -> Abandon:
        del self._attempts[ticket]
        return Abandon(ticket, cause)


def check_end(end: ChannelEnd) -> None:
    """Raises RemoteProtocolError for what no end of a channel says of itself.

    Addresses must be literals: a name would be looked up for whoever sent it.
    """
    if not (_USERNAME.fullmatch(end.username) and _PASSWORD.fullmatch(end.password)):
        raise RemoteProtocolError("a channel end with impossible ICE names")
    if not _FINGERPRINT.fullmatch(end.fingerprint):
        raise RemoteProtocolError("a channel end without a fingerprint")
    if not 0 < len(end.candidates) <= CANDIDATES_MAX:
        raise RemoteProtocolError(f"a channel end with {len(end.candidates)} addresses")
    for candidate in end.candidates:
        is_sound = 0 < candidate.port < _PORT_LIMIT and 0 <= candidate.priority < _PRIORITY_LIMIT
        if not is_sound or not _is_literal(candidate.host):
            raise RemoteProtocolError("a channel end with an impossible address")


def _is_literal(host: str) -> bool:
    """Of one host, so that nothing is ever sent to a group."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (ip.is_multicast or ip.is_unspecified) and "%" not in host
