"""Whom to ask for a relayed link, where a direct one cannot be made. Pure.

A round begins when a direct dial has come to nothing, and asks one peer after the other. Peers
that were found out of direct reach are asked for at once the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.terms import NodeId

ASKED_MAX = 4
"""Peers asked in one round: those that say they are linked to the node come first."""
CLOSED_MAX = 1024


@dataclass(slots=True)
class _Round:
    asking: NodeId
    asked: set[NodeId] = field(default_factory=set)


class Detours:
    def __init__(self) -> None:
        self._rounds: dict[NodeId, _Round] = {}
        self._closed: dict[NodeId, None] = {}
        """Nodes whose last link was a relayed one."""

    def seek(self, peer: NodeId, middles: Sequence[NodeId]) -> NodeId | None:
        """No link to `peer` comes about: whom of `middles`, best first, to ask now."""
        if peer in self._rounds:
            return None
        return self._ask(peer, _Round(NodeId("")), middles)

    def is_sought(self, peer: NodeId) -> bool:
        """Whether an answer is awaited."""
        return peer in self._rounds

    def failed(self, peer: NodeId, via: NodeId, middles: Sequence[NodeId]) -> NodeId | None:
        """`via` could not join us: whom to ask next; None: the round is over."""
        known = self._rounds.get(peer)
        if known is None or known.asking != via:
            return None
        return self._ask(peer, known, middles)

    def linked(self, peer: NodeId, via: NodeId | None) -> None:
        self._rounds.pop(peer, None)
        self._closed.pop(peer, None)
        if via is not None:
            self._closed[peer] = None
            if len(self._closed) > CLOSED_MAX:
                del self._closed[next(iter(self._closed))]

    def is_closed(self, peer: NodeId) -> bool:
        """Whether only relayed links to it have worked lately."""
        return peer in self._closed

    def _ask(self, peer: NodeId, known: _Round, middles: Sequence[NodeId]) -> NodeId | None:
        left = (m for m in middles if m not in known.asked and m != peer)
        via = next(left, None)
        if via is None or len(known.asked) >= ASKED_MAX:
            self._rounds.pop(peer, None)
            return None
        known.asked.add(via)
        known.asking = via
        self._rounds[peer] = known
        return via
