"""What checks read inside a running node that it shows to nobody: one place, so that it is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sims.stage import SIDE_MODEL
from swarm.routing.hop_session import HopPhase
from swarm.terms import LayerRange, MemberState, NodeId, SessionId, ShardInfo, ShardState

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
    """Of the model that stories are about."""
    return _served(node.core._hosting.shards())


def _served(shards: Iterable[ShardInfo]) -> list[LayerRange]:
    return [
        shard.layers
        for shard in shards
        if shard.state is ShardState.SERVING and shard.model_id != SIDE_MODEL.model_id
    ]


def has_link(node: SimNode, other: SimNode) -> bool:
    """Whether it believes that it has one."""
    return node.is_up and other.id in node.core._picture.links


def is_penalised(node: SimNode, other: SimNode) -> bool:
    """Whether it will not use the other for now."""
    core = node.core
    incarnation = core._picture.incarnation_of(other.id)
    if incarnation is None:
        return True
    return core._sentinel.penalties.remaining_s(other.id, incarnation, node.clock_s) > 0.0


def knows_layers(node: SimNode, other: SimNode) -> bool:
    """Whether what it has been told of the other's shards, and of their speed, is so now."""
    member = node.core._gossip.member(other.id)
    if member is None or member.state is not MemberState.ALIVE or member.static is None:
        return False
    told = _served(member.static.shards)
    return (
        told == served_layers(other) and member.dynamic is not None and bool(member.dynamic.speeds)
    )


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


def task_names(node: SimNode) -> Counter[str]:
    """Tasks of its process that are not done, by the coroutine that they run."""
    assert node.process is not None
    coroutines: list[Any] = [t.get_coro() for t in node.process.tasks.values() if not t.done()]
    return Counter(coroutine.__qualname__ for coroutine in coroutines)


def queue_sizes(node: SimNode) -> dict[str, int]:
    """How much waits in it now, by what it waits for."""
    reach, links = node.core._reach, node.links._links.values()
    sessions = node.core._relay._sessions.values()
    unsent = [c.unsent_bytes for link in links for c in (link.control, link.data)]
    events = [generation._events.qsize() for generation in node.io._generations.values()]
    return {
        "bytes unsent on one connection": max(unsent, default=0),
        "peers remembered as out of reach": len(reach._misses),
        "peers waited for": len(reach._wants),
        "messages held for a link": sum(len(want.held) for want in reach._wants.values()),
        "events unread by one client": max(events, default=0),
        "steps under way of one session": max((s.under_way for s in sessions), default=0),
    }
