"""How a node gets links: addresses to dial, links that sessions need, ways by third nodes. Pure.

Joins the address book, `Reach`, `Detours` and `Upgrades`; what they order comes out of
`take_effects`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from random import Random
from typing import Protocol

from swarm.config import Config
from swarm.discovery.addresses import AddressBook, Source
from swarm.discovery.detours import Detours
from swarm.discovery.upgrades import Upgrades
from swarm.effects import Dial, DialVia, Effect, OpenChannel
from swarm.routing.reach import Reach
from swarm.terms import Address, LinkKind, LinkSpeed, NodeId, Way


class Sight(Protocol):
    """What is known of others."""

    @property
    def links(self) -> Mapping[NodeId, LinkSpeed | None]: ...

    @property
    def relayed(self) -> Mapping[NodeId, NodeId]:
        """Peers whose links are not direct, and which others they go or were made by."""

    def middles(self, peer: NodeId) -> list[NodeId]:
        """Peers linked directly that may have a link to `peer`, the best first."""

    def life_of(self, node: NodeId) -> Hashable: ...


class Ways:
    def __init__(self, me: NodeId, config: Config, sight: Sight, rng: Random) -> None:
        self.book = AddressBook(me, config.discovery, rng)
        self.reach = Reach(config.routing, sight.links)
        self._detours = Detours()
        self._upgrades = Upgrades(me, config.link)
        self._sight = sight
        self._out: list[Effect] = []

    def start(
        self, seeds: tuple[Address, ...], remembered: tuple[Address, ...], now: float
    ) -> None:
        for source, addresses in ((Source.SEED, seeds), (Source.REMEMBERED, remembered)):
            for address in addresses:
                self.book.sighted(None, (address,), source, now)

    def moved(self, addresses: tuple[Address, ...], now: float) -> None:
        """This node is to be found elsewhere."""
        self.book.own_addresses(addresses)
        self.book.network_changed(now)

    def reached_self(self, addresses: tuple[Address, ...]) -> None:
        for address in addresses:
            self.book.reached_self(address)

    def take_effects(self) -> list[Effect]:
        effects, self._out = self._out, []
        return effects

    def link_up(self, peer: NodeId, address: Address | None, way: Way, now: float) -> None:
        self.book.link_up(peer, address, now, is_relayed=way.kind is not LinkKind.DIRECT)
        self._detours.linked(peer, way.via)
        self._upgrades.linked(peer, way.kind, now)

    def link_down(self, peer: NodeId, *, orderly: bool, now: float) -> None:
        """Told before `Sight` forgets what the link was like."""
        self.book.link_down(peer, now)
        self._upgrades.down(peer, now)
        if peer in self._sight.relayed and not orderly:
            self._seek(peer)

    def want(self, peers: Iterable[NodeId], now: float) -> None:
        """Links that somebody other than a session needs."""
        for peer in peers:
            self.reach.want(peer, now, by_session=False)

    def dial_failed(
        self, addresses: tuple[Address, ...], expected: NodeId | None, now: float
    ) -> NodeId | None:
        """Whom all dials have failed to reach, if that is sure now."""
        self.book.dial_failed(Dial(addresses, expected), now)
        if expected is None:
            return None
        if expected in self._sight.links:
            return None  # of two dials that crossed one has failed
        self._seek(expected)
        if self._detours.is_sought(expected):
            return None
        self.reach.dial_failed(expected, self._sight.life_of(expected), now)
        return expected

    def relay_failed(self, peer: NodeId, via: NodeId, now: float) -> NodeId | None:
        """As `dial_failed`, of a way by a third node. A direct dial may still be under way."""
        if peer in self._sight.links:
            self._detours.linked(peer, self._sight.relayed.get(peer))
            return None
        following = self._detours.failed(peer, via, self._sight.middles(peer))
        if following is not None:
            self._out.append(DialVia(peer, following))
            return None
        if self.book.is_dialling(peer):
            return None
        self.reach.dial_failed(peer, self._sight.life_of(peer), now)
        return peer

    def reach_out(self, wishes: Iterable[NodeId], now: float) -> list[NodeId]:
        """Dial whom sessions need; those that were waited for in vain."""
        for peer in wishes:
            self.reach.want(peer, now)
        if not self.reach.has_news:
            return []
        for peer in self.reach.take_dials():
            self._out += self.book.dial_now(peer, now)
            if self._detours.is_closed(peer):
                self._seek(peer)
        for peer in self.reach.take_slow():
            if peer not in self._sight.links:
                self._seek(peer)
        return self.reach.take_lost()

    def tick(self, in_use: frozenset[NodeId], now: float) -> None:
        """A link that is not direct is not replaced while sessions use it: they would have to
        move."""
        for order in self.book.tick(now):
            if not isinstance(order, Dial) or not (
                order.expected in self._sight.relayed and order.expected in in_use
            ):
                self._out.append(order)
        self._out += map(OpenChannel, self._upgrades.tick(self._sight.links, in_use, now))

    def next_deadline(self) -> float | None:
        """Of `tick`."""
        moments = (self.book.next_deadline(), self._upgrades.next_deadline())
        return min((moment for moment in moments if moment is not None), default=None)

    def _seek(self, peer: NodeId) -> None:
        via = self._detours.seek(peer, self._sight.middles(peer))
        if via is not None:
            self._out.append(DialVia(peer, via))
