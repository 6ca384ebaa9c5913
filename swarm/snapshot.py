"""What one node knows at one moment, as frozen values for gateways, maps and tests."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.terms import (
    Address,
    Epoch,
    Incarnation,
    LayerRange,
    MemberState,
    ModelSpec,
    NodeId,
    Route,
    SessionId,
    ShardInfo,
    ShardSpeed,
)


@dataclass(frozen=True, slots=True)
class ShardView:
    info: ShardInfo
    speed: ShardSpeed | None


@dataclass(frozen=True, slots=True)
class NodeView:
    node: NodeId
    name: str
    state: MemberState
    incarnation: Incarnation
    is_self: bool
    linked: bool
    addresses: tuple[Address, ...]
    device: str
    memory_bytes: int
    shards: tuple[ShardView, ...]
    rtt_s: float | None
    """From the snapshot's node to this one; None while unmeasured."""
    goodput_bytes_s: float | None
    penalty_s: float
    """How much longer this node avoids it, after evidence from a session; 0 for none."""


@dataclass(frozen=True, slots=True)
class ModelView:
    spec: ModelSpec
    covered: bool
    missing: tuple[LayerRange, ...]
    """Layers that nobody reachable serves; empty but not covered: embed or head is missing."""
    probe_age_s: float | None
    """How long ago a token last came through a whole route from this node."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session whose origin is this node."""

    session: SessionId
    model_name: str
    route: Route | None
    position: int
    epoch: Epoch
    reroutes: int
    phase: str


@dataclass(frozen=True, slots=True)
class HopView:
    """A session of somebody else that runs through this node's shard."""

    session: SessionId
    origin: NodeId
    layers: LayerRange
    kv_length: int
    outbox_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    node: NodeId
    name: str
    version: str
    swarm: str
    """The swarm tag: a hash, never the key."""
    is_open: bool
    nodes: tuple[NodeView, ...]
    models: tuple[ModelView, ...]
    sessions: tuple[SessionView, ...]
    hops: tuple[HopView, ...]
    kv_used_bytes: int
    kv_capacity_bytes: int
    foreign_swarms: tuple[str, ...]
    """Tags of swarms heard on the LAN that this node has no key for."""
