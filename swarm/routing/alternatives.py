"""The best few routes and what each part of them costs: why the planner chose the first. Pure.

The same graph and the same costs as `planner.plan`, with several paths kept at each boundary; the
first of them is the one that `plan` finds.
"""

from __future__ import annotations

from dataclasses import replace

from swarm.config import RoutingConfig
from swarm.routing.cost import (
    Candidate,
    PlanRequest,
    SwarmView,
    rebuild_cost_s,
    wire_cost_s,
)
from swarm.routing.outbox import prefill_chunk
from swarm.routing.planner import (
    TOKEN_BYTES,
    Path,
    allowed,
    back,
    cuts_of,
    eligible,
    expected_tokens,
    is_bad,
    loaded_of,
    over_wire,
    route_of,
    through,
)
from swarm.snapshot import HopCost, RouteCost
from swarm.terms import LayerRange, NodeId

COUNT_MAX = 8
"""Routes told at once: the work grows with their square."""


def alternatives(
    view: SwarmView, request: PlanRequest, config: RoutingConfig, count: int
) -> tuple[RouteCost, ...]:
    """Up to `count` routes, the cheapest first."""
    view = replace(view, candidates=tuple(c for c in view.candidates if eligible(c, request)))
    paths = _best_paths(view, request, config, min(count, COUNT_MAX))
    return tuple(_told(view, request, config, path) for path in paths)


def _best_paths(
    view: SwarmView, request: PlanRequest, config: RoutingConfig, count: int
) -> list[Path]:
    cuts = cuts_of(view, request)
    frontier: dict[int, dict[NodeId | None, list[Path]]] = {cut: {} for cut in cuts}
    frontier[0][None] = [Path(0.0, 0.0, (), TOKEN_BYTES)]
    for start in cuts[:-1]:
        arrivals = [path for paths in frontier[start].values() for path in paths]
        for candidate in view.candidates:
            if start in candidate.shard.layers:
                moved = _arrivals(view, request, config, arrivals, candidate)[:count]
                _extend(frontier, view, request, config, (candidate, start, moved), count)
    ends = [path for paths in frontier[request.model.layer_count].values() for path in paths]
    whole = [
        back(view, request, config, path)
        for path in ends
        if not is_bad(view, request, path.hops[-1].node, request.origin)
    ]
    return sorted(whole, key=lambda path: path.rank)[:count]


def _arrivals(
    view: SwarmView,
    request: PlanRequest,
    config: RoutingConfig,
    arrivals: list[Path],
    candidate: Candidate,
) -> list[Path]:
    """All ways to the candidate, the wire paid, cheapest first."""
    node = candidate.node
    moved = [
        over_wire(view, request, config, path, node)
        for path in arrivals
        if node not in (hop.node for hop in path.hops)
        and not is_bad(view, request, path.last or request.origin, node)
    ]
    return sorted(moved, key=lambda path: path.rank)


def _extend(
    frontier: dict[int, dict[NodeId | None, list[Path]]],
    view: SwarmView,
    request: PlanRequest,
    config: RoutingConfig,
    use: tuple[Candidate, int, list[Path]],
    count: int,
) -> None:
    candidate, start, moved = use
    loaded = loaded_of(view, request, candidate)
    for stop, column in frontier.items():
        if not start < stop <= candidate.shard.layers.stop:
            continue
        layers = LayerRange(start, stop)
        if not allowed(candidate, layers, request, config):
            continue
        longer = [through(path, loaded, layers, request, config) for path in moved]
        kept = [*column.get(candidate.node, []), *longer]
        column[candidate.node] = sorted(kept, key=lambda path: path.rank)[:count]


# -------------------------------------------------------------------- what it is made of


def _told(view: SwarmView, request: PlanRequest, config: RoutingConfig, path: Path) -> RouteCost:
    by_node = {candidate.node: candidate for candidate in view.candidates}
    costs: list[HopCost] = []
    sender, row_bytes = request.origin, TOKEN_BYTES
    for hop in path.hops:
        candidate = by_node[hop.node]
        wire = view.wire(sender, hop.node, config)
        load = loaded_of(view, request, candidate).load
        speed = candidate.speed
        head_s = speed.head_s if hop.head else 0.0
        costs.append(
            HopCost(
                node=hop.node,
                layers=hop.layers,
                queue_s=speed.queue_s,
                compute_s=(1 + load) * (len(hop.layers) * speed.decode_s_per_layer + head_s),
                link_s=wire_cost_s(wire, row_bytes) + config.hop_overhead_s,
                prefill_s=rebuild_cost_s(candidate, hop.layers, request),
                bulk_s=request.prompt_count * row_bytes / wire.goodput_bytes_s,
                dial_s=config.dial_cost_s if hop.node in view.unlinked else 0.0,
            )
        )
        sender, row_bytes = hop.node, candidate.shard.row_bytes
    back_s = wire_cost_s(view.wire(sender, request.origin, config), TOKEN_BYTES)
    return RouteCost(
        route=route_of(view, request, config, path),
        hops=tuple(costs),
        back_s=back_s,
        expected_tokens=expected_tokens(request, config),
        total_s=path.total_s,
        first_token_s=_first_token_s(request, config, costs) + back_s,
    )


def _first_token_s(request: PlanRequest, config: RoutingConfig, hops: list[HopCost]) -> float:
    """A prompt flows in chunks: the first passes all hops, the others follow at the slowest's pace;
    then one token is computed."""
    chunk = prefill_chunk(request.prompt_count, len(hops), config.prefill_chunk_tokens)
    chunks = max(1, -(-request.prompt_count // chunk))
    stages = [(hop.prefill_s + hop.bulk_s) / chunks for hop in hops]
    flow_s = sum(stages) + (chunks - 1) * max(stages)
    return flow_s + sum(hop.dial_s + hop.queue_s + hop.compute_s + hop.link_s for hop in hops)
