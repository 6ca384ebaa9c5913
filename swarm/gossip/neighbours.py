"""Which links a node wants. Up to `full_mesh_max` living members: one to everybody.

Above: some to the nearest and some across the whole swarm. The latter are the peers that come
first in an order which both ends of a pair compute alike, from a hash of their two ids: no choice
has to be told or kept, a change of membership moves few links, and a graph in which every node
holds its first few of random weights hangs together (Cooper and Frieze 1995, for three and more).
Nearness is the measured round trip, in classes of a factor of two, so that noise moves nothing.

All times are awake time.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from swarm.config import GossipConfig
from swarm.gossip.heartbeat import Heartbeats
from swarm.gossip.membership import Membership
from swarm.gossip.store import RecordStore
from swarm.terms import LinkSpeed, NodeId

PLAN_PAUSE_S = 0.1
"""Between two plans: a crowd of joining nodes is taken in as one change."""
PATIENCE_S = 5.0
"""A wanted peer that is not linked after this time no longer stands for one that is."""
CHOICES_FACTOR = 4
"""At most this many times the links wanted are tried for."""
EXPLORE_S = 20.0
"""How long a peer is wanted for the sake of measuring it."""
MESH_SLACK = 4
"""Members above `full_mesh_max` from which surplus links are closed: swarms of about that size
would make and break half their links with every node that comes and goes."""
EXPECTING_S = 2.0
"""How long a peer's word on the size of the swarm counts: by then its records have come."""
RTT_FLOOR_S = 0.0005
RTT_STEP = 0.8
"""A round trip must leave its class by this part of a class, in powers of two, to change it."""


@dataclass(slots=True)
class _Link:
    is_dialled: bool
    """By this side."""
    rests_until: float
    """Not closed as surplus before."""


class Neighbours:
    def __init__(
        self,
        config: GossipConfig,
        membership: Membership,
        heartbeats: Heartbeats,
        store: RecordStore,
        rng: Random,
    ) -> None:
        self._config = config
        self._members = membership
        self._heartbeats = heartbeats
        self._store = store
        self._rng = rng
        self._order: list[tuple[int, NodeId]] = []
        """All other living members, in the order of pair hashes."""
        self._ranks: dict[NodeId, int] = {}
        self._links: dict[NodeId, _Link] = {}
        self._classes: dict[NodeId, int] = {}
        """Of round trips, also of links that are gone."""
        self._released: dict[NodeId, float] = {}
        """Who closed a link as surplus, and until when it is not chosen again."""
        self._tried: dict[NodeId, float] = {}
        """Since when somebody without a link is wanted."""
        self._wanted: frozenset[NodeId] | None = None
        self._near: tuple[NodeId, ...] = ()
        self._kept: frozenset[NodeId] = frozenset()
        self._explored: tuple[NodeId, float] | None = None
        self._explore_at: float | None = None
        self._plan_at: float | None = None
        self._planned_at = -PLAN_PAUSE_S
        self._expecting_until: float | None = None
        self._surplus_at: float | None = None

    # ------------------------------------------------------------ views

    @property
    def is_partial(self) -> bool:
        """Too many members for a link to each: news travels as rumours."""
        is_large = self._members.living_count > self._config.full_mesh_max
        return is_large or self._expecting_until is not None

    def wants(self, node: NodeId) -> bool:
        if self._wanted is None:
            return not self.is_partial
        return node in self._wanted

    def nearest(self, links: tuple[LinkSpeed, ...]) -> tuple[LinkSpeed, ...]:
        """Of the links to tell others of, those to the nearest peers; all in a full mesh."""
        if self._wanted is None:
            return links
        told = frozenset(self._near[: self._config.dynamic_links_max])
        return tuple(link for link in links if link.peer in told)

    # ------------------------------------------------------------ facts

    def expect(self, node_count: int, now: float) -> None:
        """A peer knows so many nodes: who joins does not link the first few dozen it hears of."""
        if node_count > self._config.full_mesh_max:
            self._expecting_until = now + EXPECTING_S

    def link_up(self, peer: NodeId, now: float, *, is_dialled: bool) -> None:
        self._links[peer] = _Link(is_dialled, now + self._rest_s())
        self._tried.pop(peer, None)
        self._surplus_at = now

    def link_down(self, peer: NodeId, now: float, *, is_released: bool) -> None:
        """`is_released`: the other side closed it in good order, and does not leave."""
        self._links.pop(peer, None)
        if is_released and self._wanted is not None:
            pause_s = self._config.released_pause_s * (0.5 + self._rng.random())
            self._released[peer] = now + pause_s

    def measured(self, peer: NodeId, rtt_s: float) -> None:
        place = math.log2(max(rtt_s, RTT_FLOOR_S) / RTT_FLOOR_S)
        known = self._classes.get(peer)
        if (known is None or abs(place - known) >= RTT_STEP) and peer in self._links:
            self._classes[peer] = round(place)
            self._plan_soon()

    def keep(self, in_use: Iterable[NodeId], seeds: Iterable[NodeId], now: float) -> None:
        """Links that sessions use, or that the operator named, are not closed."""
        kept = set(in_use)
        if self._members.living_count <= self._config.seed_links_members_max:
            kept.update(seeds)
        if kept == self._kept:
            return
        for peer in sorted(self._kept - kept):
            self._rest_again(peer, now)
        self._kept = frozenset(kept)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> list[NodeId]:
        """Plan where something changed. Returns the peers whose links are to be closed now."""
        if self._expecting_until is not None and now >= self._expecting_until:
            self._expecting_until = None
            self._plan_soon()
        if self._is_due(now):
            self._plan(now)
        if self._explore_at is not None and now >= self._explore_at:
            self._explore(now)
        if self._surplus_at is not None and now >= self._surplus_at:
            return self._surplus(now)
        return []

    def next_deadline(self) -> float | None:
        marks = (self._plan_at, self._surplus_at, self._explore_at, self._expecting_until)
        times = [t for t in marks if t is not None]
        if self._members.has_moved:
            times.append(self._planned_at + PLAN_PAUSE_S)
        return min(times, default=None)

    # ------------------------------------------------------------ planning

    def _is_due(self, now: float) -> bool:
        if self._members.has_moved and now >= self._planned_at + PLAN_PAUSE_S:
            return True
        return self._plan_at is not None and now >= self._plan_at

    def _plan_soon(self) -> None:
        soon = self._planned_at + PLAN_PAUSE_S
        self._plan_at = soon if self._plan_at is None else min(self._plan_at, soon)

    def _plan(self, now: float) -> None:
        self._planned_at, self._plan_at = now, None
        self._follow_members()
        before, wanted = self._wanted, None
        if self.is_partial:
            wanted = self._choose(now)
        else:
            self._tried.clear()
            self._explore_at = self._surplus_at = None
        self._wanted = wanted
        if wanted != before:
            self._tell(before, wanted, now)

    def _follow_members(self) -> None:
        for node in self._members.take_moved():
            entry = self._members.get(node)
            is_living = entry is not None and not entry.is_buried
            if node == self._members.me or is_living == (node in self._ranks):
                continue
            if is_living:
                rank = self._ranks[node] = _pair_hash(self._members.me, node)
                insort(self._order, (rank, node))
            else:
                rank = self._ranks.pop(node)
                del self._order[bisect_left(self._order, (rank, node))]
                for known in (self._classes, self._released, self._tried):
                    known.pop(node, None)

    def _choose(self, now: float) -> frozenset[NodeId]:
        self._released = {n: until for n, until in self._released.items() if now < until}
        across = self._fill((n for _, n in self._order), self._config.links_random, set(), now)
        near = self._fill(self._by_distance(), self._config.links_near, set(across), now)
        self._near = tuple(near)
        wanted = {*across, *near}
        if self._explored is not None and now < self._explored[1]:
            wanted.add(self._explored[0])
        waiting = {n: t for n, t in self._tried.items() if n in wanted}
        self._tried = waiting
        fresh = [t + PATIENCE_S for t in waiting.values() if now < t + PATIENCE_S]
        self._plan_at = min(fresh, default=None)
        if self._explore_at is None:
            self._explore_at = now + self._config.explore_interval_s * self._rng.random()
        if self._surplus_at is None:
            self._surplus_at = now
        return frozenset(wanted)

    def _fill(
        self, ranking: Iterable[NodeId], count: int, taken: set[NodeId], now: float
    ) -> list[NodeId]:
        """The first `count` that are linked or may soon be, with those before them that are not."""
        chosen: list[NodeId] = []
        have = 0
        for node in ranking:
            if have >= count or len(chosen) >= CHOICES_FACTOR * count:
                break
            is_linked = node in self._links
            if node in taken or (node in self._released and not is_linked):
                continue
            chosen.append(node)
            taken.add(node)
            if is_linked or now < self._tried.setdefault(node, now) + PATIENCE_S:
                have += 1
            if is_linked:
                self._tried.pop(node, None)
        return chosen

    def _by_distance(self) -> Iterator[NodeId]:
        """Measured peers, the nearest first; then the others in the order of pair hashes."""
        yield from sorted(self._classes, key=lambda n: (self._classes[n], self._ranks.get(n, 0)))
        yield from (node for _, node in self._order)

    def _tell(
        self, before: frozenset[NodeId] | None, wanted: frozenset[NodeId] | None, now: float
    ) -> None:
        everybody = frozenset(self._ranks)
        old = everybody if before is None else before
        new = everybody if wanted is None else wanted
        for node in sorted(old - new):
            self._rest_again(node, now)
        for node in sorted(new if before is None else old ^ new):
            self._members.touch(node)

    def _explore(self, now: float) -> None:
        self._explore_at = now + self._config.explore_interval_s * (0.5 + self._rng.random())
        known = self._classes.keys() | self._links.keys()
        told = [
            (link.rtt_s, link.peer)
            for near in self._near
            if (record := self._store.dynamic(near)) is not None
            for link in record.links
            if link.peer in self._ranks and link.peer not in known
        ]
        if told:
            node = min(told)[1]
        elif self._order:
            node = self._rng.choice(self._order)[1]
        else:
            return
        self._explored = (node, now + EXPLORE_S)
        self._plan_soon()

    # ------------------------------------------------------------ surplus

    def _surplus(self, now: float) -> list[NodeId]:
        """Links to close now. Only the dialler closes, unless this node has far too many."""
        self._surplus_at = None
        if self._members.living_count <= self._config.full_mesh_max + MESH_SLACK:
            return []
        spare = len(self._links) - self._config.links_near - self._config.links_random
        closing: list[NodeId] = []
        waits: list[float] = []
        for peer in sorted(self._links):
            link = self._links[peer]
            if self.wants(peer) or peer in self._kept:
                continue
            is_ours = link.is_dialled or len(self._links) > self._config.links_high
            if not is_ours:
                continue
            if now < link.rests_until:
                waits.append(link.rests_until)
            elif len(closing) < spare:
                closing.append(peer)
        self._surplus_at = min(waits, default=now + self._config.link_rest_s)
        return closing

    def _rest_again(self, peer: NodeId, now: float) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.rests_until = max(link.rests_until, now + self._rest_s())

    def _rest_s(self) -> float:
        return self._config.link_rest_s * (1.0 + self._rng.random())


def _pair_hash(one: NodeId, other: NodeId) -> int:
    """The same for both ends of a pair."""
    text = min(one, other) + max(one, other)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
