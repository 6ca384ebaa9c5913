"""What one node knows at one moment, as frozen values for gateways, maps and tests."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.terms import (
    Address,
    Epoch,
    HubShare,
    Incarnation,
    LayerRange,
    LinkKind,
    MemberState,
    ModelSpec,
    NodeId,
    Route,
    SessionId,
    ShardInfo,
    ShardSpeed,
    StepTimes,
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
    departs_in_s: float = 0.0
    """How soon it will leave, about, as it has announced; 0: it has not."""
    wants: tuple[HubShare, ...] = ()
    """Models of the Hugging Face hub that its owner named and that it does not have yet."""


@dataclass(frozen=True, slots=True)
class ModelView:
    spec: ModelSpec
    covered: bool
    missing: tuple[LayerRange, ...]
    """Layers that nobody reachable serves; empty but not covered: embed or head is missing."""
    probe_age_s: float | None
    """How long ago a token last came through a whole route from this node."""


@dataclass(frozen=True, slots=True)
class LinkView:
    """A pair of nodes as one of them measured it."""

    node: NodeId
    peer: NodeId
    rtt_s: float
    goodput_bytes_s: float
    kind: LinkKind = LinkKind.DIRECT


@dataclass(frozen=True, slots=True)
class HopTrace:
    """What a hop said last of its steps for one session, under one epoch."""

    node: NodeId
    prompt: StepTimes
    tokens: StepTimes


@dataclass(frozen=True, slots=True)
class LegView:
    """A session on one of its routes."""

    route: Route
    epoch: Epoch
    position: int
    """Length of the sequence when the route was taken."""
    first_token_s: float | None
    """From there to its first token, with all that had to be computed (again) for it."""
    token_count: int
    """Tokens after that first one ..."""
    tokens_s: float
    """... and what they took, as the origin sees it."""
    hops: tuple[HopTrace, ...]
    """In the order of the route, those that said something."""

    @property
    def wire_s(self) -> float | None:
        """Of one token, what no hop accounts for: links, and the daemons at their ends."""
        counted = [hop.tokens for hop in self.hops if hop.tokens.rows]
        if not self.token_count or len(counted) < len(self.route.hops):
            return None
        held_s = sum(times.held_s / times.rows for times in counted)
        return max(0.0, self.tokens_s / self.token_count - held_s)


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
    prompt_count: int = 0
    token_limit: int = 0
    """Tokens to be generated at most."""
    stalls_s: tuple[float, ...] = ()
    exact: bool = True
    legs: tuple[LegView, ...] = ()
    """The routes it took, first one first."""
    outcome: str = ""
    """Of one that ended: stop, length, failed, cancelled."""
    ended_age_s: float | None = None
    """How long ago that was."""


@dataclass(frozen=True, slots=True)
class HopView:
    """A session of somebody else that runs through this node's shard."""

    session: SessionId
    origin: NodeId
    layers: LayerRange
    kv_length: int
    outbox_bytes: int


@dataclass(frozen=True, slots=True)
class Vitals:
    """How the node's process fares, counted since it started."""

    loop_stalls: int = 0
    """Times that its event loop was late by more than a few milliseconds ..."""
    loop_stall_s: float = 0.0
    """... and by how much in all."""
    received_bytes: tuple[tuple[str, int], ...] = ()
    """From links, sealed, by what they are for."""
    sent_bytes: tuple[tuple[str, int], ...] = ()


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
    links: tuple[LinkView, ...]
    """Each measured pair once, this node's own measurements first."""
    sessions: tuple[SessionView, ...]
    recent: tuple[SessionView, ...]
    """Some that ended lately, the last one last."""
    hops: tuple[HopView, ...]
    kv_used_bytes: int
    kv_capacity_bytes: int
    foreign_swarms: tuple[str, ...]
    """Tags of swarms heard on the LAN that this node has no key for."""
    vitals: Vitals = Vitals()


@dataclass(frozen=True, slots=True)
class HopCost:
    """Seconds. Of each token: `queue_s`, `compute_s`, `link_s` (to this hop, with its fixed cost).

    Once: `prefill_s` (its KV), `bulk_s` (the prompt's rows over the link), `dial_s`.
    """

    node: NodeId
    layers: LayerRange
    queue_s: float
    compute_s: float
    link_s: float
    prefill_s: float
    bulk_s: float
    dial_s: float


@dataclass(frozen=True, slots=True)
class RouteCost:
    """One route, in the planner's own sums. `total_s` is what routes are compared by."""

    route: Route
    hops: tuple[HopCost, ...]
    back_s: float
    """Of each token: the way from the last hop to the origin."""
    expected_tokens: int
    total_s: float
    first_token_s: float
    """Until the first token, the hops working on chunks of the prompt side by side."""
