"""Why a hop does not take an honest `Open`: the answer that the origin then plans by. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarm.config import RoutingConfig
from swarm.messages import Open, RefusalCode, Refused
from swarm.routing.hop_session import HopPhase, HopSession
from swarm.routing.reach import Standing
from swarm.terms import NodeId, ShardInfo, short


def refused(order: Open, code: RefusalCode, detail: str, peer: NodeId | None = None) -> Refused:
    return Refused(order.session, order.epoch, code, detail, peer)


def old_epoch(order: Open, known: HopSession | None) -> Refused | None:
    """An epoch may be opened twice, a resumed one may not."""
    if known is None:
        return None
    again = known.phase is HopPhase.OPENED
    if order.epoch > known.epoch or (again and order.epoch == known.epoch):
        return None
    return refused(order, RefusalCode.OLD_EPOCH, f"epoch {known.epoch} is open here")


def unplaceable(
    order: Open,
    shard: ShardInfo | None,
    standing: Callable[[NodeId], Standing],
    positions_max: int,
) -> Refused | None:
    """Its layers, its length or its neighbours are not to be had here."""
    problem = _shard_problem(order, shard)
    if problem is not None:
        return refused(order, RefusalCode.NO_SHARD, problem)
    assert shard is not None
    if order.head and order.sampling.guide is not None and not shard.guides:
        detail = "its head cannot follow structured output: it lacks the model's tokenizer"
        return refused(order, RefusalCode.UNFIT, detail)
    if order.position_limit > positions_max:
        detail = f"{order.position_limit} positions, {positions_max} are allowed"
        return refused(order, RefusalCode.KV_EXHAUSTED, detail)
    for peer in (order.previous, order.next):
        if standing(peer) is Standing.UNREACHABLE:
            return no_link(order, peer)
    return None


def no_link(order: Open, peer: NodeId, *, waited: bool = False) -> Refused:
    detail = f"no link to {short(peer)}"
    return Refused(order.session, order.epoch, RefusalCode.NO_LINK, detail, peer, waited)


def full(
    order: Open, count: int, share: int, config: RoutingConfig, *, is_leaving: bool
) -> Refused | None:
    """A new session finds no room, or no future, on a node with `count` of them.

    `share` of these are of the same origin.
    """
    if is_leaving:
        return refused(order, RefusalCode.LEAVING, "the node is leaving")
    if count >= config.hop_sessions_max:
        return refused(order, RefusalCode.SESSION_LIMIT, "too many sessions on this node")
    if share >= config.hop_sessions_per_origin_max:
        detail = f"{share} sessions of one origin on this node"
        return refused(order, RefusalCode.SESSION_LIMIT, detail)
    return None


def is_same_shard(known: ShardInfo, shard: ShardInfo) -> bool:
    """Whether KV made under `known` is good under `shard`; room and plans may change meanwhile."""
    return replace(
        shard,
        kv_capacity_bytes=known.kv_capacity_bytes,
        next=known.next,
        room_layers=known.room_layers,
        load_s=known.load_s,
        copies=known.copies,
    ) == known  # fmt: skip


def _shard_problem(order: Open, shard: ShardInfo | None) -> str | None:
    """The origin's view may be older than the shard."""
    if shard is None or not shard.layers.covers(order.layers):
        return f"layers {order.layers} are not served here"
    if (order.embed and not shard.embed) or (order.head and not shard.head):
        return "no embedding or no head is served here"
    if shard.head and order.head != (order.layers.stop == shard.layers.stop):
        return "the head goes with the last layer"
    return None
