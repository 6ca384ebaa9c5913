"""Who of those that want the same model of the hub fetches it there. Pure.

One node does, all others wait for it and take their layers from it. Every node follows the same
rule on the same records, so all mean the same one; where their views differ for a moment and two
begin, the larger id gives way. One that dies is gone from the records; one that stands still for
`stall_s` is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.terms import HubShare, HubState, ModelId, NodeId

LOOKING_STALLS = 10
"""What is whole is hashed before it is announced; nobody sees how far, so it has longer."""

Shares = Mapping[NodeId, Sequence[HubShare]]
"""What each living node, this one included, says of models of the hub."""


class HubTurns:
    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._seen: dict[tuple[NodeId, str], tuple[HubShare, float]] = {}

    def look(self, shares: Shares, now: float) -> None:
        """Remember who has moved, and when."""
        present = {(node, share.name): share for node, each in shares.items() for share in each}
        for key, share in present.items():
            known = self._seen.get(key)
            if known is None or known[0] != share:
                self._seen[key] = (share, now)
        self._seen = {key: seen for key, seen in self._seen.items() if key in present}

    def turn(self, name: str, now: float) -> NodeId | None:
        """Whose turn it is to fetch this model; None: nobody can."""
        shares = {node: share for (node, one), (share, _) in self._seen.items() if one == name}
        stalled = {node for node in shares if self._is_stalled(node, name, now)}
        at_work = (HubState.WHOLE, HubState.FETCHING)
        for state in (*at_work, HubState.WANTED):
            fit = [node for node, s in shares.items() if s.state is state and node not in stalled]
            if fit:
                return min(fit)
        return min((node for node, s in shares.items() if s.state in at_work), default=None)

    def holder(self, name: str, me: NodeId) -> ModelId | None:
        """What the model of this name is, as another node says that has it."""
        found = [
            (node, share.model_id)
            for (node, one), (share, _) in self._seen.items()
            if one == name and node != me and share.state is HubState.HELD
        ]
        return min(found)[1] if found else None

    def is_hopeless(self, name: str, me: NodeId) -> bool:
        """No other node has it, or may yet get it."""
        return all(
            share.state is HubState.UNABLE
            for (node, one), (share, _) in self._seen.items()
            if one == name and node != me
        )

    def next_stall(self, now: float) -> float | None:
        """When somebody may have stood still for too long."""
        due = [
            at + self._limit_s(share)
            for share, at in self._seen.values()
            if share.state in (HubState.FETCHING, HubState.WHOLE)
        ]
        return min((moment for moment in due if moment > now), default=None)

    def _is_stalled(self, node: NodeId, name: str, now: float) -> bool:
        share, at = self._seen[(node, name)]
        is_at_work = share.state in (HubState.FETCHING, HubState.WHOLE)
        return is_at_work and now - at >= self._limit_s(share)

    def _limit_s(self, share: HubShare) -> float:
        return self._stall_s * (LOOKING_STALLS if share.state is HubState.WHOLE else 1)
