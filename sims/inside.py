"""What checks read inside a running node that it shows to nobody: one place, so that it is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.routing.hop_session import HopPhase
from swarm.terms import LayerRange, MemberState, NodeId, SessionId, ShardState

if TYPE_CHECKING:
    from sims.node import SimNode


@dataclass(frozen=True, slots=True)
class HopState:
    """One session on a hop. `produced`: positions in its KV whose rows have come back."""

    origin: NodeId
    session: SessionId
    epoch: int
    produced: int


def hop_states(node: SimNode) -> list[HopState]:
    sessions = node.core._relay._sessions.values()
    return [HopState(s.origin, s.session, s.epoch, s.produced) for s in sessions]


def served_layers(node: SimNode) -> list[LayerRange]:
    shards = node.core._hosting.shards()
    return [shard.layers for shard in shards if shard.state is ShardState.SERVING]


def alive_members(node: SimNode) -> set[NodeId]:
    """Whom it holds for alive, itself included."""
    members = node.core._gossip.members()
    return {member.node for member in members if member.state is MemberState.ALIVE}


def state_hash(node: SimNode) -> bytes:
    return node.core._gossip.state_hash()


def generation_count(node: SimNode) -> int:
    """Answers that clients of this node wait for."""
    return len(node.io._generations)


def outbox_bytes(node: SimNode) -> tuple[int, int]:
    """Rows kept for resending, over all sessions: all of them, and those that may be dropped.

    Kept they must be until they are sent, and while the origin counts on them.
    """
    held = droppable = 0
    for s in node.core._relay._sessions.values():
        held += s.outbox.byte_count
        if s.phase is HopPhase.RUNNING:
            entries = s.outbox._entries
            droppable += sum(len(e.payload) for e in entries if e.stop <= s.feed.next_position)
    return held, droppable


def steps_on_credit(node: SimNode) -> int:
    """The most steps on credit that one session's feeder has sent and that are not done."""
    sessions = node.core._relay._sessions.values()
    return max((sum(step.needs_credit for step in s.unanswered) for s in sessions), default=0)
