"""Notes that a peer can cause at will: each node is told of seldom, and few nodes at a time."""

from __future__ import annotations

from swarm.terms import NodeId

INTERVAL_S = 60.0
NODES_MAX = 64
"""Told of within one interval: keys cost nothing, so a limit per node alone limits nothing."""


class Seldom:
    """Says whether one more note about a node may be told."""

    def __init__(self) -> None:
        self._told_at: dict[NodeId, float] = {}

    def allows(self, node: NodeId, now: float) -> bool:
        """True at most once per node and INTERVAL_S, and for at most NODES_MAX nodes in it."""
        self._told_at = {n: at for n, at in self._told_at.items() if now < at + INTERVAL_S}
        if node in self._told_at or len(self._told_at) >= NODES_MAX:
            return False
        self._told_at[node] = now
        return True
