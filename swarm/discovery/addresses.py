"""Where members may be reached, and whom to dial next. Pure.

Sources only propose; a link proves. A candidate is a node known by its id, or an endpoint whose
node is not known yet. Absent ones are tried for ever, ever more slowly, never two dials at once.
Members that live and to which no link is wanted are left in peace.

Deadlines are asked for at every message, so that the earliest is kept, and sought anew only when
its owner is dialled or needs no dial any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import assert_never

from swarm.config import DiscoveryConfig
from swarm.effects import Dial, Effect
from swarm.terms import Address, NodeId

DIAL_PATIENCE_S = 8.0
"""A dial whose outcome nobody reports counts as failed after this time."""
LASTING_S = 10.0
"""A link that ends sooner counts as a failed dial: some peers hang up on all we say."""
PROMPT_S = 0.05
"""News of an absent node is acted on within about this time, unless it was just tried."""
ENDPOINTS_MAX = 256
NODES_MAX = 1024

Key = NodeId | Address


class Source(Enum):
    """Where an address was learnt."""

    SEED = "seed"
    """The operator named it: it is never dropped for want of room."""
    REMEMBERED = "remembered"
    MDNS = "mdns"
    GOSSIP = "gossip"
    LINK = "link"
    """A link was up there."""


class Interest(Enum):
    """What a link to a node is worth at present."""

    WANTED = "wanted"
    """It lives and should be linked; also whatever nobody has judged yet."""
    RESTING = "resting"
    """It lives, and a link is not needed."""
    ABSENT = "absent"
    """It was lost: tried for ever."""
    DEPARTED = "departed"
    """It left in good order, and will dial when it is back."""


@dataclass(slots=True)
class _Candidate:
    key: Key
    addresses: list[Address] = field(default_factory=list)
    """Best first: those that worked, then the newest sightings."""
    is_linked: bool = False
    is_relayed: bool = False
    """Linked by way of another node: a direct link is still sought, without haste."""
    is_remembered: bool = False
    failures: int = 0
    tried_at: float | None = None
    dial_at: float | None = None
    """When to dial next; None while linked."""
    is_dialling: bool = False
    proven: Address | None = None
    """Where the present link was dialled."""
    linked_at: float = 0.0
    linked_order: int = 0
    """Rises with each link; remembered peers are sorted by it."""
    interest: Interest = Interest.WANTED
    lost_at: float | None = None
    """When its last link ended, if that had lasted."""
    told: tuple[Address, ...] = ()
    """What gossip said last."""


class AddressBook:
    """Facts come in as methods; `tick` says whom to dial."""

    def __init__(self, me: NodeId, config: DiscoveryConfig, rng: Random) -> None:
        self._me = me
        self._config = config
        self._rng = rng
        self._own: frozenset[Address] = frozenset()
        self._reached_self: set[Address] = set()
        self._seeds: set[Address] = set()
        self._candidates: dict[Key, _Candidate] = {}
        self._proven: dict[Address, Key] = {}
        """Where links stand that were dialled."""
        self._link_count = 0
        self._due: float | None = math.inf
        """When the next dial is; None: to be sought."""
        self._absent_count = 0
        """Lost peers that are to be dialled, as of the last time that all were looked at."""

    # ------------------------------------------------------------ facts

    def own_addresses(self, addresses: tuple[Address, ...]) -> None:
        """Where this node itself listens now: never dialled. What it left may be another's."""
        self._own = frozenset(addresses)

    def reached_self(self, address: Address) -> None:
        """A dial to `address` ended at this very node."""
        self._reached_self.add(address)
        self._drop(address)

    def stands(self, node: NodeId, interest: Interest, now: float) -> None:
        """How the swarm sees the node now, and whether this node wants a link to it."""
        candidate = self._candidates.get(node)
        if candidate is None or candidate.interest is interest:
            return
        candidate.interest = interest
        if candidate.is_linked:
            return
        match interest:
            case Interest.WANTED:
                self._hasten(candidate, now, fresh=True)
            case Interest.RESTING:
                candidate.is_dialling = False
                self._dial_at(candidate, None)
            case Interest.ABSENT:
                candidate.failures = 0
                self._dial_at(candidate, now + self._pause_s(candidate, now))
            case Interest.DEPARTED:
                candidate.is_dialling = False
                self._dial_at(candidate, now + self._pause_s(candidate, now))
            case _:
                assert_never(interest)

    def sighted(
        self, node: NodeId | None, addresses: tuple[Address, ...], source: Source, now: float
    ) -> None:
        """Somebody says that `node` (None: an unknown member) may be reached at `addresses`."""
        usable = [address for address in addresses if self._is_usable(address, node)]
        if not usable:
            return
        if node == self._me:
            node = None  # our own id where we are not: a copy of this node, or old news
        if source is Source.SEED:
            self._seeds |= set(usable)
        if node is None:
            for address in usable:
                self._endpoint_sighted(address, source, now)
            return
        candidate = self._candidate(node)
        if candidate is None:
            return
        if source is Source.GOSSIP:
            candidate.told = addresses
        for address in usable:
            self._absorb(candidate, address)
        fresh = [address for address in usable if address not in candidate.addresses]
        stays = [address for address in candidate.addresses if address not in usable]
        self._set_addresses(candidate, [*usable, *stays])
        if fresh or source is Source.MDNS:
            self._hasten(candidate, now, fresh=bool(fresh))

    def link_up(
        self, node: NodeId, address: Address | None, now: float, *, is_relayed: bool = False
    ) -> None:
        """`node` is linked; `address` is where it was dialled (None: it dialled us).

        Also for a dial that reached a node which is linked already. `is_relayed`: by way of
        another node, so that no address of it is proven.
        """
        candidate = self._candidate(node, is_linked=True)
        if candidate is None:
            return
        self._link_count += 1
        candidate.is_linked, candidate.linked_order = not is_relayed, self._link_count
        candidate.is_relayed = is_relayed
        candidate.is_dialling = False
        candidate.tried_at = candidate.linked_at = now
        if is_relayed:
            candidate.failures = 0
        self._dial_at(candidate, now + self._pause_s(candidate, now) if is_relayed else None)
        if address is None or is_relayed:
            return
        self._absorb(candidate, address)
        for other in self._candidates.values():
            if other is not candidate and address in other.addresses:
                other.addresses.remove(address)
                self._dial_missed(other, now)
        others = [known for known in candidate.addresses if known != address]
        self._set_addresses(candidate, [address, *others])
        if candidate.proven is not None:
            self._proven.pop(candidate.proven, None)
        candidate.proven = address
        self._proven[address] = candidate.key

    def link_down(self, node: NodeId, now: float) -> None:
        """The link to `node` is gone: try to find it again, unless no link is needed."""
        candidate = self._candidates.get(node)
        if candidate is None or not (candidate.is_linked or candidate.is_relayed):
            return
        if candidate.proven is not None:
            self._proven.pop(candidate.proven, None)
        candidate.is_linked, candidate.is_relayed, candidate.proven = False, False, None
        has_lasted = now - candidate.linked_at >= LASTING_S
        candidate.failures = 0 if has_lasted else candidate.failures
        candidate.lost_at = now if has_lasted else None
        if candidate.interest is not Interest.RESTING:
            self._dial_at(candidate, now + self._pause_s(candidate, now))
        candidate.failures += not has_lasted

    def dial_failed(self, dial: Dial, now: float) -> None:
        """None of the addresses of a `Dial` of this book led to a member."""
        tried = set(dial.addresses)
        for candidate in self._candidates.values():
            if candidate.is_dialling and not tried.isdisjoint(candidate.addresses):
                self._dial_missed(candidate, now)

    def network_changed(self, now: float) -> None:
        """Own interfaces changed or the machine woke up: everybody absent is worth a try.

        Which addresses lead to this node itself must be found out anew, at one dial each.
        """
        self._reached_self.clear()
        for candidate in self._candidates.values():
            self._hasten(candidate, now, fresh=True)

    def dial_now(self, node: NodeId, now: float) -> list[Effect]:
        """Somebody needs `node` at once: the dial, unless it is linked or one is under way."""
        candidate = self._candidates.get(node)
        if candidate is None or candidate.is_linked or not candidate.addresses:
            return []
        if candidate.is_dialling and candidate.dial_at is not None and now < candidate.dial_at:
            return []
        return [self._dial(candidate, now)]

    def is_dialling(self, node: NodeId) -> bool:
        """Whether a dial may still find it."""
        candidate = self._candidates.get(node)
        return candidate is not None and candidate.is_dialling

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> list[Effect]:
        """The dials that are due, all addresses of a node in one."""
        if now < (self.next_deadline() or math.inf):
            return []
        effects: list[Effect] = []
        waiting = [c for c in self._candidates.values() if c.dial_at is not None]
        self._absent_count = sum(c.linked_order > 0 for c in waiting)
        for candidate in waiting:
            if candidate.dial_at is None or now < candidate.dial_at:
                continue
            if candidate.is_dialling:
                candidate.failures += 1
            if not candidate.addresses:
                self._dial_at(candidate, None)
                continue
            effects.append(self._dial(candidate, now))
        return effects

    def next_deadline(self) -> float | None:
        if self._due is None:
            times = (c.dial_at for c in self._candidates.values())
            self._due = min((at for at in times if at is not None), default=math.inf)
        return None if self._due == math.inf else self._due

    # ------------------------------------------------------------ views

    def remembered(self) -> tuple[Address, ...]:
        """The best address of each node: linked now, linked before, remembered from last time."""
        known = [c for c in self._candidates.values() if c.addresses]
        known = [c for c in known if c.linked_order or c.is_remembered]
        known.sort(key=lambda c: (not c.is_linked, -c.linked_order))
        best = [candidate.addresses[0] for candidate in known]
        return tuple(dict.fromkeys(best))[: self._config.remembered_peers_max]

    def addresses_of(self, node: NodeId) -> tuple[Address, ...]:
        candidate = self._candidates.get(node)
        return tuple(candidate.addresses) if candidate else ()

    def seed_nodes(self) -> tuple[NodeId, ...]:
        """Nodes that live where the operator said."""
        found = {self._proven.get(address) for address in self._seeds}
        return tuple(sorted(NodeId(key) for key in found if isinstance(key, str)))

    # ------------------------------------------------------------ inner moves

    def _dial(self, candidate: _Candidate, now: float) -> Dial:
        candidate.tried_at, candidate.is_dialling = now, True
        self._dial_at(candidate, now + max(DIAL_PATIENCE_S, self._pause_s(candidate, now)))
        expected = None if isinstance(candidate.key, Address) else candidate.key
        return Dial(tuple(candidate.addresses), expected)

    def _endpoint_sighted(self, address: Address, source: Source, now: float) -> None:
        if any(address in candidate.addresses for candidate in self._candidates.values()):
            return
        endpoints = sum(isinstance(key, Address) for key in self._candidates)
        if endpoints >= ENDPOINTS_MAX and source is not Source.SEED:
            return
        candidate = _Candidate(address, [address])
        candidate.is_remembered = source is Source.REMEMBERED
        self._candidates[address] = candidate
        self._hasten(candidate, now, fresh=True)

    def _candidate(self, node: NodeId, *, is_linked: bool = False) -> _Candidate | None:
        """The node's entry, made if there is room; linked nodes always have room."""
        known = self._candidates.get(node)
        if known or node == self._me:
            return known
        if len(self._candidates) >= NODES_MAX:
            absent = [c for c in self._candidates.values() if self._is_dispensable(c)]
            if not absent:
                return None
            worst = max(absent, key=lambda c: c.failures)
            if not is_linked and worst.failures == 0:
                return None
            self._drop(worst.key)
        self._candidates[node] = _Candidate(node)
        return self._candidates[node]

    def _absorb(self, candidate: _Candidate, address: Address) -> None:
        """An endpoint turns out to be this node's."""
        if not self._drop(address):
            return
        if address not in candidate.addresses:
            candidate.addresses.append(address)

    def _is_usable(self, address: Address, node: NodeId | None) -> bool:
        """Not ours, and not where somebody else is linked at this moment."""
        if address in self._own or address in self._reached_self:
            return False
        return self._proven.get(address, node) == node

    def _is_dispensable(self, candidate: _Candidate) -> bool:
        return not candidate.is_linked and not self._seeds & set(candidate.addresses)

    def _set_addresses(self, candidate: _Candidate, addresses: list[Address]) -> None:
        """Keep the best ones; what the operator named stays in any case."""
        limit = self._config.addresses_per_peer_max
        named = [address for address in addresses[limit:] if address in self._seeds]
        candidate.addresses = addresses[:limit] + named

    def _dial_missed(self, candidate: _Candidate, now: float) -> None:
        if candidate.is_dialling:
            candidate.is_dialling = False
            candidate.failures += 1
            self._dial_at(candidate, now + self._pause_s(candidate, now))

    def _drop(self, key: Key) -> bool:
        """Whether there was such a candidate."""
        if self._candidates.pop(key, None) is None:
            return False
        self._due = None
        return True

    def _dial_at(self, candidate: _Candidate, at: float | None) -> None:
        if self._due is not None:
            was_next = candidate.dial_at is not None and candidate.dial_at <= self._due
            self._due = None if was_next else min(self._due, math.inf if at is None else at)
        candidate.dial_at = at

    def _hasten(self, candidate: _Candidate, now: float, *, fresh: bool) -> None:
        """Try an absent node soon; `fresh` news starts its pauses from the shortest again."""
        if candidate.is_linked or candidate.is_dialling or candidate.interest is Interest.RESTING:
            return
        if fresh:
            candidate.failures = 0
        soon = now + PROMPT_S * self._rng.random()
        if candidate.tried_at is not None:
            soon = max(soon, candidate.tried_at + self._config.redial_min_s)
        at = candidate.dial_at
        self._dial_at(candidate, soon if at is None else min(at, soon))

    def _pause_s(self, candidate: _Candidate, now: float) -> float:
        """Doubling pauses, spread by half to either side so that nodes do not dial in step.

        Where many are absent each has its turn at any moment of a longer span: of all the pairs
        that a partition has cut, some pair tries soon after it heals.
        """
        config = self._config
        if candidate.is_relayed:
            pause_s = config.relayed_redial_s * (1 << min(candidate.failures, 3))
            return pause_s * (0.5 + self._rng.random())
        if candidate.interest is Interest.DEPARTED:
            return config.departed_redial_s * (0.5 + self._rng.random())
        if candidate.interest is Interest.ABSENT and not candidate.linked_order:
            crowd = max(1.0, len(self._candidates) / config.absent_dialers)
            return config.redial_max_s * crowd * (0.5 + self._rng.random())
        steps = min(candidate.failures, 16)
        most_s = config.redial_max_s
        if candidate.lost_at is not None and now < candidate.lost_at + config.redial_recent_s:
            most_s = config.redial_recent_max_s
        pause_s = min(most_s, config.redial_min_s * (1 << steps)) * (0.5 + self._rng.random())
        if not candidate.failures:
            return pause_s
        span_s = 2 * self._absent_count / config.absent_dials_per_s
        return max(pause_s, span_s * self._rng.random())
