"""Links that sessions need and that are not there yet: dialled on demand, waited for, given up.

In a swarm where everybody is linked to everybody nothing of this happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable
from dataclasses import dataclass, field, replace
from enum import Enum

from swarm.config import RoutingConfig
from swarm.messages import Message, Open, Release
from swarm.terms import NodeId

DIAL_GRACE_S = 0.25
"""A failed dial is not the end at once: of two that cross one fails, and the peer may dial back."""

MISSES_MAX = 1024
"""Peers remembered as out of reach; beyond that whoever may be tried again first is forgotten."""


class Standing(Enum):
    """How a node is to be had from here."""

    LINKED = "linked"
    DIALABLE = "dialable"
    """Alive, somebody knows where, and no dial has failed lately."""
    DOUBTFUL = "doubtful"
    """A dial has failed lately, though not for a session: worth a try where nobody else is."""
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class _Want:
    until: float
    detour_at: float
    """When the dial is slow, and a way by a third node is to be sought meanwhile."""
    held: list[Message] = field(default_factory=list)
    """To be sent as soon as the link is up."""
    is_sessions: bool = True
    """Nobody but sessions wants it."""
    has_session: bool = False
    has_failed: bool = False
    """Its dial; only the peer's own could still come."""


@dataclass(frozen=True, slots=True)
class _Miss:
    life: Hashable
    length_s: float
    until: float
    is_hopeless: bool
    """A session has waited for the link in vain."""


class Reach:
    """`linked`: the peers that are linked now, kept up to date by its owner."""

    def __init__(self, config: RoutingConfig, linked: Container[NodeId]) -> None:
        self._config = config
        self._linked = linked
        self._wants: dict[NodeId, _Want] = {}
        self._misses: dict[NodeId, _Miss] = {}
        self._to_dial: list[NodeId] = []
        self._slow: list[NodeId] = []
        self._lost: list[NodeId] = []
        self.changed = False
        """Set when `wanted` changed; whoever looks at it clears it."""

    # ------------------------------------------------------------ views

    def standing(self, node: NodeId, life: Hashable, now: float) -> Standing:
        """Of a living node. `life`: what is known of an earlier one, or elsewhere, says nothing."""
        if node in self._linked:
            return Standing.LINKED
        miss = self._misses.get(node)
        if miss is None or miss.life != life or now >= miss.until:
            return Standing.DIALABLE
        return Standing.UNREACHABLE if miss.is_hopeless else Standing.DOUBTFUL

    def wanted(self) -> tuple[NodeId, ...]:
        return tuple(self._wants)

    def next_deadline(self) -> float | None:
        if not self._wants:
            return None
        return min(min(want.until, want.detour_at) for want in self._wants.values())

    @property
    def has_news(self) -> bool:
        return bool(self._to_dial or self._slow or self._lost)

    def take_dials(self) -> list[NodeId]:
        """Whom to dial now."""
        dials, self._to_dial = self._to_dial, []
        return dials

    def take_slow(self) -> list[NodeId]:
        """Peers whose dials have had no answer for long."""
        slow, self._slow = self._slow, []
        return slow

    def take_lost(self) -> list[NodeId]:
        """Peers that were waited for in vain."""
        lost, self._lost = self._lost, []
        return lost

    # ------------------------------------------------------------ facts

    def want(self, peer: NodeId, now: float, *, by_session: bool = True) -> None:
        """A session, or somebody else, needs a link to `peer`."""
        if peer in self._linked:
            return
        until = now + self._config.dial_wait_s
        want = self._wants.get(peer)
        if want is None:
            self._wants[peer] = want = _Want(until, now + self._config.detour_after_s)
            self._to_dial.append(peer)
            self.changed = True
        elif not want.has_failed:
            want.until = max(want.until, until)
        want.is_sessions = want.is_sessions and by_session
        want.has_session = want.has_session or by_session

    def still_needed(self, peers: Container[NodeId]) -> None:
        """Sessions need links to these alone: the others are waited for no more."""
        for peer, want in list(self._wants.items()):
            if want.is_sessions and not want.held and peer not in peers:
                del self._wants[peer]

    def send(self, peer: NodeId, message: Message, now: float) -> None:
        """A message to a peer without a link: openings wait for one, others are moot without."""
        if isinstance(message, Open):
            self.want(peer, now)
            want = self._wants[peer]
            want.held = [held for held in want.held if not _is_outdated(held, message)]
            want.held.append(message)
        elif isinstance(message, Release) and (known := self._wants.get(peer)):
            known.held = [held for held in known.held if not _is_outdated(held, message)]

    def link_up(self, peer: NodeId) -> list[Message]:
        """What waited for this link."""
        self._misses.pop(peer, None)
        want = self._wants.pop(peer, None)
        self.changed = self.changed or want is not None
        return want.held if want else []

    def dial_failed(self, peer: NodeId, life: Hashable, now: float) -> None:
        """Whoever ordered the dial: for a while the peer counts as out of reach from here."""
        if peer in self._linked:
            return
        self._miss(peer, life, now)
        if want := self._wants.get(peer):
            want.until, want.has_failed = min(want.until, now + DIAL_GRACE_S), True

    def tick(self, life_of: Callable[[NodeId], Hashable], now: float) -> None:
        for peer, want in self._wants.items():
            if now >= want.detour_at:
                want.detour_at = math.inf
                self._slow.append(peer)
        for peer, want in [(p, want) for p, want in self._wants.items() if now >= want.until]:
            del self._wants[peer]
            self._miss(peer, life_of(peer), now)
            if want.has_session:
                self._misses[peer] = replace(self._misses[peer], is_hopeless=True)
            self._lost.append(peer)
            self.changed = True

    def _miss(self, peer: NodeId, life: Hashable, now: float) -> None:
        known = self._misses.get(peer)
        length_s = self._config.unreachable_min_s
        if known is not None and known.life == life:
            if now < known.until:
                return
            length_s = min(2 * known.length_s, self._config.unreachable_max_s)
        if peer not in self._misses and len(self._misses) >= MISSES_MAX:
            del self._misses[min(self._misses, key=lambda known: self._misses[known].until)]
        self._misses[peer] = _Miss(life, length_s, now + length_s, is_hopeless=False)


def _is_outdated(held: Message, message: Open | Release) -> bool:
    return (
        isinstance(held, Open) and held.session == message.session and held.epoch <= message.epoch
    )
