"""What is really the case in a simulated world: who is in trouble, with whom, and since when.

Faults are entered here as they are done to the world; invariants ask whether what nodes believe
of each other is excused by it, and what a fault that touched certain nodes explains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field

NEVER = float("-inf")
FOREVER = float("inf")
STEADY_KINDS = ("start",)
"""What is done to a node and is no harm to anybody that it serves."""


@dataclass(slots=True)
class Fault:
    """Done to one node, or to what lies between two. `number`: alike for the parts of one deed."""

    number: int
    kind: str
    at_s: float
    nodes: tuple[int, ...]
    until_s: float = FOREVER


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
        self.faults: list[Fault] = []
        """In the order in which they began."""
        self._open: dict[tuple[int, ...], list[Fault]] = {}
        self._deeds = 0

    # ------------------------------------------------------------ entering

    def begin(self, kind: str, now_s: float, *nodes: int, is_part: bool = False) -> None:
        """`nodes`: one node, or the two of a pair. `is_part`: of a fault that was counted."""
        trouble = self._of(nodes)
        trouble.now[kind] += 1
        trouble.last_s = now_s
        self._open.setdefault(_place(nodes), []).append(self._enter(kind, now_s, nodes, is_part))

    def end(self, kind: str, now_s: float, *nodes: int) -> None:
        trouble = self._of(nodes)
        if trouble.now[kind]:
            trouble.now[kind] -= 1
            trouble.last_s = now_s
            faults = self._open[_place(nodes)]
            over = next(fault for fault in faults if fault.kind == kind)
            over.until_s = now_s
            faults.remove(over)

    def clear(self, now_s: float, *nodes: int) -> None:
        """All is well again with this node, or this pair."""
        trouble = self._of(nodes)
        if trouble.now.total():
            trouble.now.clear()
            trouble.last_s = now_s
            for fault in self._open.pop(_place(nodes), []):
                fault.until_s = now_s

    def touch(self, kind: str, now_s: float, *nodes: int) -> None:
        """Something befell it and is over already: a reset, a crash, a start."""
        self._of(nodes).last_s = now_s
        self._enter(kind, now_s, nodes, is_part=False).until_s = now_s

    # ------------------------------------------------------------ asking

    def has(self, kind: str, *nodes: int) -> bool:
        return self._of(nodes).now[kind] > 0

    def has_any(self, kind: str) -> bool:
        """Whether that is the matter between any two."""
        return any(trouble.now[kind] > 0 for trouble in self._pairs.values())

    def quiet_s(self, now_s: float, *nodes: int) -> float:
        """For how long nothing has been the matter; 0 while something is."""
        trouble = self._nodes.get(nodes[0]) if len(nodes) == 1 else self._pairs.get(_key(nodes))
        if trouble is None:
            return float("inf")
        return 0.0 if any(trouble.now.values()) else now_s - trouble.last_s

    def direct_quiet_s(self, now_s: float, a: int, b: int) -> float:
        """For how long two nodes, and what lies between them, have been well."""
        return min(self.quiet_s(now_s, a), self.quiet_s(now_s, b), self.quiet_s(now_s, a, b))

    def harm(self, among: Container[int], start_s: float, stop_s: float) -> list[Fault]:
        """Faults to these nodes, or between two of them, that went on in this time; one for all
        parts of one deed."""
        found: dict[int, Fault] = {}
        for fault in reversed(self.faults):
            is_then = fault.at_s <= stop_s and fault.until_s >= start_s
            if is_then and fault.kind not in STEADY_KINDS and all(n in among for n in fault.nodes):
                found[fault.number] = fault
        return list(found.values())

    # ------------------------------------------------------------ small parts

    def _enter(self, kind: str, now_s: float, nodes: tuple[int, ...], is_part: bool) -> Fault:
        self._deeds += not is_part
        fault = Fault(self._deeds, kind, now_s, nodes)
        self.faults.append(fault)
        return fault

    def _of(self, nodes: tuple[int, ...]) -> _Trouble:
        if len(nodes) == 1:
            return self._nodes.setdefault(nodes[0], _Trouble())
        return self._pairs.setdefault(_key(nodes), _Trouble())


def _key(nodes: tuple[int, ...]) -> tuple[int, int]:
    a, b = nodes
    return (a, b) if a < b else (b, a)


def _place(nodes: tuple[int, ...]) -> tuple[int, ...]:
    return nodes if len(nodes) == 1 else _key(nodes)
