"""How long a suspicion lasts, who shares it, and who accuses too freely.

The time to refute starts long and falls with the logarithm of independent confirmations
(Lifeguard, Dadgar et al. 2018), since most false accusations come from one slow accuser.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from swarm.terms import Incarnation, NodeId

CONFIRMATIONS_WANTED = 2
ACCUSERS_MAX = 64
"""Remembered of one subject: far more than count."""
ACCUSER_WINDOW_S = 2.0
ACCUSER_SHARE = 1 / 3
"""Who wrongly accuses more than this part of its peers within the window is not believed."""


def suspicion_s(confirmations: int, wanted: int, minimum_s: float, maximum_s: float) -> float:
    """Seconds until a suspect is dead: `maximum_s` alone, `minimum_s` with all confirmations."""
    if wanted < 1:
        return minimum_s
    shrunk = math.log(confirmations + 1) / math.log(wanted + 1)
    return max(minimum_s, maximum_s - (maximum_s - minimum_s) * shrunk)


def minimum_s(base_s: float, member_count: int) -> float:
    """The shortest suspicion: rumours need longer to cross a larger swarm."""
    return base_s * max(1.0, math.log10(max(1, member_count)))


@dataclass(frozen=True, slots=True)
class _Suspicion:
    begun_at: float
    incarnation: Incarnation
    wanted: int
    minimum_s: float
    maximum_s: float


class Suspicions:
    """Own suspicions, and what others said about the same nodes."""

    def __init__(self, base_s: float, maximum_factor: float) -> None:
        self._base_s = base_s
        self._maximum_factor = maximum_factor
        self._own: dict[NodeId, _Suspicion] = {}
        self._accusers: dict[NodeId, dict[NodeId, Incarnation]] = {}

    def begin(
        self, subject: NodeId, incarnation: Incarnation, now: float, *, member_count: int
    ) -> None:
        """Own evidence speaks against `subject`. `member_count`: living members, both included."""
        least_s = minimum_s(self._base_s, member_count)
        wanted = min(CONFIRMATIONS_WANTED, max(0, member_count - 2))
        most_s = least_s * self._maximum_factor
        self._own[subject] = _Suspicion(now, incarnation, wanted, least_s, most_s)

    def accuse(self, subject: NodeId, accuser: NodeId, incarnation: Incarnation) -> bool:
        """Somebody else could not reach `subject`. True when that is news."""
        said = self._accusers.setdefault(subject, {})
        if said.get(accuser, 0) >= incarnation:
            return False
        if len(said) >= ACCUSERS_MAX and accuser not in said:
            return False
        said[accuser] = incarnation
        return True

    def accuser_count(
        self,
        subject: NodeId,
        incarnation: Incarnation,
        believed: Callable[[NodeId], bool] = lambda accuser: True,
    ) -> int:
        """Others that accuse `subject` in this life."""
        said = self._accusers.get(subject)
        if said is None:
            return 0
        return sum(inc >= incarnation and believed(node) for node, inc in said.items())

    def clear(self, subject: NodeId) -> None:
        self._own.pop(subject, None)
        self._accusers.pop(subject, None)

    def is_open(self, subject: NodeId) -> bool:
        return subject in self._own

    def deadline(self, subject: NodeId, factor: float, believed: Callable[[NodeId], bool]) -> float:
        """When `subject` is dead. `factor` stretches it for a node that is not well itself."""
        own = self._own[subject]
        count = self.accuser_count(subject, own.incarnation, believed)
        lasts_s = suspicion_s(count, own.wanted, own.minimum_s, own.maximum_s)
        return own.begun_at + lasts_s * factor

    def __len__(self) -> int:
        return len(self._own)

    def subjects(self) -> list[NodeId]:
        return sorted(self._own)


class AccuserWatch:
    """Counts the accusations of each accuser that own evidence does not share."""

    def __init__(self) -> None:
        self._lately: dict[NodeId, deque[tuple[float, NodeId]]] = {}

    def accused(self, accuser: NodeId, subject: NodeId, now: float) -> None:
        lately = self._lately.setdefault(accuser, deque(maxlen=256))
        lately.append((now, subject))

    def is_discredited(
        self, accuser: NodeId, peer_count: int, now: float, agreed: Callable[[NodeId], bool]
    ) -> bool:
        """Whether it accused over a third of `peer_count` peers lately without good reason.

        `agreed` says whether own evidence supports the accusation of a node.
        """
        lately = self._lately.get(accuser)
        if lately is None:
            return False
        while lately and now - lately[0][0] > ACCUSER_WINDOW_S:
            lately.popleft()
        allowed = max(1.0, peer_count * ACCUSER_SHARE)
        if len(lately) <= allowed:
            return False
        return len({subject for _, subject in lately if not agreed(subject)}) > allowed

    def forget(self, accuser: NodeId) -> None:
        self._lately.pop(accuser, None)
