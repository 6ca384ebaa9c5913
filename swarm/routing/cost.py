"""What a hop and a link cost, in predicted seconds. Pure arithmetic over measured speeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.config import RoutingConfig
from swarm.messages import KV_BLOCK_TOKENS
from swarm.routing.outbox import DECODE_BUNDLE
from swarm.routing.rooms import admitted
from swarm.terms import LayerRange, ModelSpec, NodeId, NumericClass, ShardInfo, ShardSpeed


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shard that may take part in a route now: its node is alive, to be had, and serving."""

    node: NodeId
    shard: ShardInfo
    speed: ShardSpeed


@dataclass(frozen=True, slots=True)
class Wire:
    """One direction between two nodes."""

    rtt_s: float
    goodput_bytes_s: float


@dataclass(frozen=True, slots=True)
class SwarmView:
    """What the planner sees. `wires` holds measured pairs, in either order of the two nodes."""

    candidates: tuple[Candidate, ...]
    wires: Mapping[tuple[NodeId, NodeId], Wire]
    loads: Mapping[NodeId, int] = field(default_factory=dict)
    """Sessions that this origin has running through each node: gossip tells of them too late for
    requests that come together."""
    unlinked: frozenset[NodeId] = frozenset()
    """Candidates that the origin must dial before it can use them."""
    bad_wires: frozenset[tuple[NodeId, NodeId]] = frozenset()
    """Pairs, in either order, that could not be joined lately."""
    rates: Mapping[NodeId, float] = field(default_factory=dict)
    """Departures a second to be expected of nodes, by how long they used to stay."""

    def wire(self, a: NodeId, b: NodeId, config: RoutingConfig) -> Wire:
        if a == b:
            return Wire(0.0, float("inf"))
        known = self.wires.get((a, b)) or self.wires.get((b, a))
        return known or Wire(config.unknown_rtt_s, config.unknown_goodput_bytes_s)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One session that looks for a route.

    `held` names the nodes that hold the session's KV for exactly that range: using them so costs
    no rebuild. `classes` binds layers to the numeric class that computed them first.
    """

    model: ModelSpec
    origin: NodeId
    prompt_count: int
    generated_count: int
    remaining_count: int
    avoid: frozenset[NodeId] = frozenset()
    bad_wires: frozenset[tuple[NodeId, NodeId]] = frozenset()
    held: tuple[tuple[NodeId, LayerRange], ...] = ()
    classes: tuple[tuple[LayerRange, NumericClass], ...] = ()
    cached: tuple[tuple[NodeId, LayerRange, int], ...] = ()
    """Positions of the prompt that nodes are thought to have kept for these layers."""
    followers: frozenset[NodeId] = frozenset()
    """Of those who hold KV, whose last rows are missing."""

    def new_prompt_count(self, node: NodeId, layers: LayerRange) -> int:
        """Rows of the prompt that a node may have to run."""
        kept = (n for who, what, n in self.cached if who == node and what == layers)
        return max(1, self.prompt_count - max(kept, default=0))

    @property
    def position_limit(self) -> int:
        """Positions that need KV: all but the last token's."""
        return self.prompt_count + self.generated_count + self.remaining_count

    def admitted_positions(self, config: RoutingConfig) -> int:
        """Positions that a hop promises room for before it takes the session in."""
        length = self.prompt_count + self.generated_count
        return admitted(length, self.position_limit, config.kv_growth_tokens)


def kv_bytes(shard: ShardInfo, request: PlanRequest, config: RoutingConfig) -> int:
    """What a hop must have free to take the session in: whole blocks, of all layers it serves."""
    blocks = -(-request.admitted_positions(config) // KV_BLOCK_TOKENS)
    return blocks * KV_BLOCK_TOKENS * len(shard.layers) * shard.kv_bytes_per_token_layer


def decode_cost_s(candidate: Candidate, layers: LayerRange, *, head: bool, load: int) -> float:
    """One token through a hop: its queue, and a turn for each of `load` sessions beside this."""
    speed = candidate.speed
    compute = len(layers) * speed.decode_s_per_layer + (speed.head_s if head else 0.0)
    return speed.queue_s + (1 + load) * compute


def leaving_cost_s(
    candidate: Candidate, rate: float, layer_count: int, tokens: int, config: RoutingConfig
) -> float:
    """What it counts that a node may leave before so many tokens have come, at its own pace."""
    lasts_s = tokens * layer_count * candidate.speed.decode_s_per_layer
    return config.stall_price_s * -math.expm1(-rate * lasts_s)


def rebuild_cost_s(candidate: Candidate, layers: LayerRange, request: PlanRequest) -> float:
    """Filling the hop's KV: prompt rows as prefill, generated rows one by one, as first made."""
    speed = candidate.speed
    if (candidate.node, layers) in request.held:
        missing = DECODE_BUNDLE if candidate.node in request.followers else 0
        return missing * len(layers) * speed.decode_s_per_layer
    rows = request.new_prompt_count(candidate.node, layers)
    prompt = rows * speed.prefill_s_per_token_layer
    generated = request.generated_count * speed.decode_s_per_layer
    return len(layers) * (prompt + generated)


def step_cost_s(candidate: Candidate, layers: LayerRange, chunk: int) -> float:
    """The longest single step on a hop: a prefill chunk, or a bundle of rebuilt decode rows."""
    speed = candidate.speed
    prefill = chunk * speed.prefill_s_per_token_layer
    return speed.queue_s + len(layers) * max(prefill, DECODE_BUNDLE * speed.decode_s_per_layer)


def wire_cost_s(wire: Wire, byte_count: int) -> float:
    """One message over a wire, one way."""
    return wire.rtt_s / 2 + byte_count / wire.goodput_bytes_s


def same_classes(
    present: tuple[tuple[LayerRange, NumericClass], ...],
    first: tuple[tuple[LayerRange, NumericClass], ...],
) -> bool:
    """Whether every layer is computed in the numeric class that computed it first."""
    return all(
        numeric_class == bound_class or not layers.overlaps(bound)
        for layers, numeric_class in present
        for bound, bound_class in first
    )
