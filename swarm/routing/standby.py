"""Who stands by for whom, and how far they are. Pure; the origin's side is `followed`.

A standby is a hop of the session that nobody reads from: it is opened for the layers of one hop of
the route, fed the same rows by the same feeder (`mirror`), and sends nothing. When its hop is lost
the planner finds KV there, as with a survivor, and only the last few rows are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swarm.config import RoutingConfig
from swarm.routing.cost import Candidate, PlanRequest, SwarmView, kv_bytes, wire_cost_s
from swarm.routing.mirror import MIRROR_ROWS
from swarm.routing.outbox import DECODE_BUNDLE
from swarm.terms import Epoch, Hop, LayerRange, NodeId, Route

CAUGHT_UP_ROWS = 4 * DECODE_BUNDLE
"""A standby that lacks no more is as good as a survivor: the rest takes about one step to run."""
HAND_OVER_ROWS = MIRROR_ROWS + 2
"""What it may lack where there is time to wait: about what it always does."""
ROOM_SHARE = 2
"""A standby leaves at least as much KV free as it takes."""
QUEUE_MAX_S = 0.05
"""What may wait at a node that is asked to stand by."""


@dataclass(slots=True)
class Standby:
    """One node's, under the present epoch or, while a route is sought, the last."""

    node: NodeId
    layers: LayerRange
    epoch: Epoch
    kv_length: int = 0
    is_fed: bool = False
    """Its feeder was told to send it rows."""


class Standbys:
    """Of one session: at most one per hop, and one hop per node."""

    def __init__(self) -> None:
        self._by_node: dict[NodeId, Standby] = {}

    def __iter__(self) -> Iterator[Standby]:
        return iter(list(self._by_node.values()))

    def __len__(self) -> int:
        return len(self._by_node)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._by_node)

    def get(self, node: NodeId) -> Standby | None:
        return self._by_node.get(node)

    def for_layers(self, layers: LayerRange) -> Standby | None:
        return next((s for s in self._by_node.values() if s.layers == layers), None)

    def add(self, node: NodeId, layers: LayerRange, epoch: Epoch) -> Standby:
        self._by_node[node] = standby = Standby(node, layers, epoch)
        return standby

    def pop(self, node: NodeId) -> Standby | None:
        return self._by_node.pop(node, None)


def is_caught_up(standby: Standby, length: int, rows: int = CAUGHT_UP_ROWS) -> bool:
    """Whether it holds all but so many rows of a sequence of `length` positions."""
    return standby.is_fed and standby.kv_length >= length - rows


def choose(
    view: SwarmView, request: PlanRequest, route: Route, index: int, config: RoutingConfig
) -> NodeId | None:
    """The best node to stand by for a hop of the route: idle, roomy, of the hop's numeric class.

    Nobody who takes part already, who is avoided, or who would have to be dialled first; nobody cut
    off from either neighbour.
    """
    hop = route.hops[index]
    feeder = route.hops[index - 1].node if index else request.origin
    reader = request.origin if hop.head else route.hops[index + 1].node
    taken = {*route.nodes, *(node for node, _ in request.held), request.origin, *request.avoid}
    taken |= view.unlinked
    fit = [
        (
            (wire_cost_s(view.wire(feeder, c.node, config), c.shard.row_bytes) + _step_s(c, hop))
            * (1.0 + config.stall_price_s * view.rates.get(c.node, 0.0)),
            c,
        )
        for c in view.candidates
        if c.node not in taken
        and _fits(c, hop, request, config)
        and not any(_is_bad(view, request, c.node, other) for other in (feeder, reader))
    ]
    return min(fit, key=lambda each: (each[0], each[1].node))[1].node if fit else None


def _fits(candidate: Candidate, hop: Hop, request: PlanRequest, config: RoutingConfig) -> bool:
    shard, speed = candidate.shard, candidate.speed
    return (
        shard.model_id == request.model.model_id
        and shard.layers.start <= hop.layers.start
        and hop.layers.stop <= shard.layers.stop
        and shard.numeric_class == hop.numeric_class
        and (shard.embed or not hop.embed)
        and (shard.head or not hop.head)
        and speed.queue_s <= QUEUE_MAX_S
        and ROOM_SHARE * kv_bytes(shard, request, config) <= speed.kv_free_bytes
    )


def _step_s(candidate: Candidate, hop: Hop) -> float:
    speed = candidate.speed
    return len(hop.layers) * speed.decode_s_per_layer + (speed.head_s if hop.head else 0.0)


def _is_bad(view: SwarmView, request: PlanRequest, a: NodeId, b: NodeId) -> bool:
    bad = request.bad_wires | view.bad_wires
    return (a, b) in bad or (b, a) in bad
