"""Whom one session, or one node, does not ask for a while, and why that ends by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarm.config import RoutingConfig
from swarm.errors import KvExhausted, RouteError, SessionLimitReached, SwarmError
from swarm.messages import FailureCode, RefusalCode, Refused
from swarm.terms import Incarnation, NodeId

AVOID_S = 1.0
"""A node that failed a session is not asked again by it for this long (its link may lag behind)."""
SILENT_WIRE_S = 10.0
"""A pair of nodes that lost each other in silence is not joined again by it for this long, or
after AVOID_S where there is no way around: it may have been one late packet."""
UNJOINED_S = 60.0
"""A pair of nodes that could not be joined is not tried again by it for this long."""
HEARD_MIN_S = 1.0
HEARD_SHARE = 0.25
HEARD_GAP_S = 1.0
"""Who was silent leaves the box when it was heard for this long, or this part of its stay, without
a gap above two heartbeats: one packet that gets through proves little on a link that flaps."""


class Avoidance:
    """Nodes and pairs of nodes that one session leaves out of its next plans."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, float] = {}
        self._unlinked: set[NodeId] = set()
        self._wires: dict[tuple[NodeId, NodeId], float] = {}
        self._silent: dict[tuple[NodeId, NodeId], float] = {}
        """Those of the wires that went silent, and from when on they are better than none."""

    def node(self, node: NodeId, now: float, *, is_unlinked: bool = False) -> None:
        """`is_unlinked`: what failed was the link to it, so that a new one changes everything."""
        self._nodes[node] = now + AVOID_S
        self._unlinked.discard(node)
        if is_unlinked:
            self._unlinked.add(node)

    def wire(self, a: NodeId, b: NodeId, code: FailureCode, now: float) -> None:
        """`a` reports that it cannot reach `b`. A broken link may be up again at once."""
        if code is FailureCode.SILENT:
            self._wires[(a, b)] = now + SILENT_WIRE_S
            self._silent[(a, b)] = now + AVOID_S
        elif code is FailureCode.LINK_DOWN:
            self._wires[(a, b)] = now + AVOID_S

    def no_link(self, a: NodeId, b: NodeId, waited: bool, now: float) -> None:
        """`a` reports that it and `b` have no link, and get none where it waited for one."""
        self._wires[(a, b)] = now + (UNJOINED_S if waited else AVOID_S)
        self._silent.pop((a, b), None)

    def began_anew(self, node: NodeId) -> None:
        """Nothing that was found of its earlier life, or of a pair with that, holds any more."""
        self._nodes.pop(node, None)
        for pair in [pair for pair in self._wires if node in pair]:
            self._drop(pair)

    def joined(self, a: NodeId, b: NodeId) -> None:
        """The two have a link; `a` is the origin."""
        for pair in ((a, b), (b, a)):
            self._drop(pair)
        if b in self._unlinked:
            self._unlinked.discard(b)
            self._nodes.pop(b, None)

    def _drop(self, pair: tuple[NodeId, NodeId]) -> None:
        self._wires.pop(pair, None)
        self._silent.pop(pair, None)

    def nodes_at(self, now: float) -> frozenset[NodeId]:
        return frozenset(node for node, until in self._nodes.items() if until > now)

    def wires_at(self, now: float, *, sparing: bool = True) -> frozenset[tuple[NodeId, NodeId]]:
        """`sparing` False: where no route does without them, silent wires are tried again."""
        return frozenset(
            pair
            for pair, until in self._wires.items()
            if until > now and (sparing or self._silent.get(pair, until) > now)
        )

    def next_expiry(self, now: float) -> float | None:
        ends = [*self._nodes.values(), *self._wires.values(), *self._silent.values()]
        return min((end for end in ends if end > now), default=None)


class BadWires:
    """Pairs of nodes that could not be joined lately, for all sessions of this origin."""

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._until: dict[tuple[NodeId, NodeId], float] = {}

    def missed(self, a: NodeId, b: NodeId, now: float) -> None:
        """`a` says that it and `b` have no link and get none."""
        self._until = {pair: until for pair, until in self._until.items() if until > now}
        self._until[(a, b)] = now + self._config.unreachable_min_s

    def began_anew(self, node: NodeId) -> None:
        """What an earlier life of it could not do says nothing of this one."""
        self._until = {pair: until for pair, until in self._until.items() if node not in pair}

    def joined(self, a: NodeId, b: NodeId) -> None:
        """The two have a link."""
        for pair in ((a, b), (b, a)):
            self._until.pop(pair, None)

    def at(self, now: float) -> frozenset[tuple[NodeId, NodeId]]:
        return frozenset(pair for pair, until in self._until.items() if until > now)


class Offence(Enum):
    SILENT = "silent"
    STUCK = "stuck"
    """It had work and finished none."""


@dataclass(slots=True)
class _Penalty:
    incarnation: Incarnation
    offence: Offence
    length_s: float
    until: float
    steps_done: int | None = None
    """Finished by its worker when it was first heard in the box."""
    heard_since: float = 0.0
    heard_at: float | None = None
    was_withdrawn: bool = False
    """Its shards were not served for a while."""
    served: bool = False


class PenaltyBox:
    """Peers that went silent or got stuck in the middle of an answer, seen by this node itself.

    Each offence doubles the stay. A new incarnation starts clean; so does a peer that behaved
    for ten times its last stay. Evidence of life ends a stay early: who was silent is heard again
    for a while, whose worker was stuck finishes a step or serves a shard anew.
    """

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._penalties: dict[NodeId, _Penalty] = {}

    def punish(self, node: NodeId, incarnation: Incarnation, offence: Offence, now: float) -> float:
        """Put the node in the box; returns for how long, in seconds."""
        known = self._penalties.get(node)
        length_s = self._config.penalty_min_s
        if known and known.incarnation == incarnation and now < known.until + 10 * known.length_s:
            length_s = min(2 * known.length_s, self._config.penalty_max_s)
        self._penalties[node] = _Penalty(incarnation, offence, length_s, now + length_s)
        return length_s

    def heard(self, node: NodeId, now: float) -> None:
        """Bytes came from it, of whatever kind."""
        known = self._serving(node, Offence.SILENT, now)
        if known is None:
            return
        if known.heard_at is None or now - known.heard_at > HEARD_GAP_S:
            known.heard_since = now
        known.heard_at = now
        if now - known.heard_since >= max(HEARD_MIN_S, known.length_s * HEARD_SHARE):
            known.until = now

    def worked(self, node: NodeId, steps_done: int, now: float) -> None:
        """It says how many steps its worker has finished."""
        known = self._serving(node, Offence.STUCK, now)
        if known is None:
            return
        if known.steps_done is None:
            known.steps_done = steps_done
        elif steps_done > known.steps_done:
            known.until = now

    def announced(self, node: NodeId, *, is_serving: bool, now: float) -> None:
        """Its own record says whether it serves anything: a worker was started anew."""
        known = self._serving(node, Offence.STUCK, now)
        if known is None:
            return
        if not is_serving:
            known.was_withdrawn = True
        elif known.was_withdrawn:
            known.until = now

    def _serving(self, node: NodeId, offence: Offence, now: float) -> _Penalty | None:
        known = self._penalties.get(node)
        if known is None or known.offence is not offence or known.until <= now:
            return None
        return known

    def remaining_s(self, node: NodeId, incarnation: Incarnation, now: float) -> float:
        known = self._penalties.get(node)
        if known is None or known.incarnation != incarnation:
            return 0.0
        return max(0.0, known.until - now)

    def is_heard(self, node: NodeId, now: float) -> bool:
        """Whether one that was silent speaks again, though not for long enough to be trusted."""
        known = self._serving(node, Offence.SILENT, now)
        return (
            known is not None
            and known.heard_at is not None
            and (now - known.heard_at <= HEARD_GAP_S)
        )

    def is_used(self, now: float) -> bool:
        """Whether anybody is in it."""
        return any(p.until > now for p in self._penalties.values())

    def next_expiry(self) -> float | None:
        if not self._penalties:
            return None
        return min((p.until for p in self._penalties.values() if not p.served), default=None)

    def take_expired(self, now: float) -> bool:
        """Whether some stay has ended since the last call."""
        if not self._penalties:
            return False
        ended = [p for p in self._penalties.values() if not p.served and p.until <= now]
        for penalty in ended:
            penalty.served = True
        return bool(ended)


def refusal_error(message: Refused) -> SwarmError | None:
    """The refusal as the error that a client may see, when it is about room or ability."""
    if message.code is RefusalCode.UNFIT:
        return RouteError(message.detail)
    if message.code is RefusalCode.KV_EXHAUSTED:
        return KvExhausted(message.detail)
    if message.code is RefusalCode.SESSION_LIMIT:
        return SessionLimitReached(message.detail)
    return None
