"""What is really the case in a simulated world: who is in trouble, with whom, and since when.

Faults are entered here as they are done to the world; invariants ask whether what nodes believe
of each other is excused by it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

NEVER = float("-inf")
WEDGED = "wedged"
"""The one trouble that may go unnoticed for as long as nobody asks for anything."""


@dataclass(slots=True)
class _Trouble:
    """Of one node or one pair: what is the matter now, and when something last was."""

    now: Counter[str] = field(default_factory=Counter)
    last_s: float = NEVER


class Truth:
    """Nodes are numbers. Pairs are unordered: a one-way cut is trouble for both."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Trouble] = {}
        self._pairs: dict[tuple[int, int], _Trouble] = {}
        self.fault_times: list[float] = []
        """When each fault began, in order."""
        self._wedges: list[tuple[int, float, float]] = []
        """Node, begin and end of each wedge of a worker that is over."""

    # ------------------------------------------------------------ entering

    def begin(self, kind: str, now_s: float, *nodes: int, is_part: bool = False) -> None:
        """`nodes`: one node, or the two of a pair. `is_part`: of a fault that was counted."""
        trouble = self._of(nodes)
        trouble.now[kind] += 1
        trouble.last_s = now_s
        if not is_part:
            self.fault_times.append(now_s)

    def end(self, kind: str, now_s: float, *nodes: int) -> None:
        trouble = self._of(nodes)
        if trouble.now[kind]:
            if kind == WEDGED:
                self._wedges.append((nodes[0], trouble.last_s, now_s))
            trouble.now[kind] -= 1
            trouble.last_s = now_s

    def clear(self, now_s: float, *nodes: int) -> None:
        """All is well again with this node, or this pair."""
        trouble = self._of(nodes)
        if trouble.now.total():
            trouble.now.clear()
            trouble.last_s = now_s

    def touch(self, now_s: float, *nodes: int) -> None:
        """Something befell it and is over already: a reset, a crash, a start."""
        self._of(nodes).last_s = now_s
        self.fault_times.append(now_s)

    # ------------------------------------------------------------ asking

    def has(self, kind: str, *nodes: int) -> bool:
        return self._of(nodes).now[kind] > 0

    def quiet_s(self, now_s: float, *nodes: int) -> float:
        """For how long nothing has been the matter; 0 while something is."""
        trouble = self._nodes.get(nodes[0]) if len(nodes) == 1 else self._pairs.get(_key(nodes))
        if trouble is None:
            return float("inf")
        return 0.0 if any(trouble.now.values()) else now_s - trouble.last_s

    def direct_quiet_s(self, now_s: float, a: int, b: int) -> float:
        """For how long two nodes, and what lies between them, have been well."""
        return min(self.quiet_s(now_s, a), self.quiet_s(now_s, b), self.quiet_s(now_s, a, b))

    def faults_between(self, start_s: float, stop_s: float) -> int:
        """Faults that began in this time."""
        return sum(start_s <= at <= stop_s for at in reversed(self.fault_times))

    def wedges_at(self, at_s: float, now_s: float) -> int:
        """Workers that had been wedged for a while then. Who has no work does not notice."""
        over = sum(begin < at_s <= end for _, begin, end in self._wedges)
        since = [t.last_s for t in self._nodes.values() if t.now[WEDGED]]
        return over + sum(begin < at_s <= now_s for begin in since)

    def is_calm(self) -> bool:
        """Whether nothing at all is the matter now."""
        troubles = [*self._nodes.values(), *self._pairs.values()]
        return not any(trouble.now.total() for trouble in troubles)

    def _of(self, nodes: tuple[int, ...]) -> _Trouble:
        if len(nodes) == 1:
            return self._nodes.setdefault(nodes[0], _Trouble())
        return self._pairs.setdefault(_key(nodes), _Trouble())


def _key(nodes: tuple[int, ...]) -> tuple[int, int]:
    a, b = nodes
    return (a, b) if a < b else (b, a)
