"""The cheapest route: a shortest path over (layer boundary, node).

Costs are linear in layers, so an optimal route changes nodes only where some shard begins or
ends, or where a survivor's held range does; those boundaries are the graph's columns. A node's
range may be used in part; a node takes part at most once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from swarm.config import RoutingConfig
from swarm.errors import KvExhausted, NoRoute, SwarmError
from swarm.routing.cost import (
    Candidate,
    PlanRequest,
    SwarmView,
    decode_cost_s,
    kv_bytes,
    leaving_cost_s,
    rebuild_cost_s,
    step_cost_s,
    wire_cost_s,
)
from swarm.routing.outbox import prefill_chunk
from swarm.routing.standby import choose
from swarm.terms import Hop, LayerRange, NodeId, Route

TOKEN_BYTES = 64
"""About what an id or a sampled token takes on the wire."""


@dataclass(frozen=True, slots=True)
class Path:
    """A way from the origin to some boundary. Ordered by cost, then hops, then node ids."""

    total_s: float
    token_s: float
    hops: tuple[Hop, ...]
    row_bytes: int

    @property
    def rank(self) -> tuple[float, int, tuple[NodeId, ...]]:
        return (self.total_s, len(self.hops), tuple(hop.node for hop in self.hops))

    @property
    def last(self) -> NodeId | None:
        return self.hops[-1].node if self.hops else None


class Planner(Protocol):
    """What a session asks when it needs a route."""

    def plan(self, request: PlanRequest) -> Route | None: ...

    def why_not(self, request: PlanRequest) -> SwarmError: ...

    def standby(self, request: PlanRequest, route: Route, index: int) -> NodeId | None:
        """Who may stand by for the hop at `index`."""

    def in_danger(self, route: Route) -> tuple[int, ...]:
        """Its hops, who is most likely to leave first."""


class ViewSource(Protocol):
    def __call__(self, *, desperate: bool = False) -> SwarmView:
        """`desperate`: also with members that may be out of reach, or were just now."""


class ViewPlanner:
    """A planner over a view that is built afresh for each question."""

    def __init__(self, config: RoutingConfig, view: ViewSource) -> None:
        self._config = config
        self._view = view

    def plan(self, request: PlanRequest) -> Route | None:
        view = self._view()
        route = plan(view, request, self._config)
        if route is None and len((last := self._view(desperate=True)).candidates) > len(
            view.candidates
        ):
            return plan(last, request, self._config)
        return route

    def why_not(self, request: PlanRequest) -> SwarmError:
        return why_not(self._view(), request, self._config)

    def standby(self, request: PlanRequest, route: Route, index: int) -> NodeId | None:
        return choose(self._view(), request, route, index, self._config)

    def in_danger(self, route: Route) -> tuple[int, ...]:
        rates = self._view().rates
        order = sorted(enumerate(route.hops), key=lambda hop: -rates.get(hop[1].node, 0.0))
        return tuple(index for index, _ in order)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A candidate and the other sessions that this origin runs through it."""

    candidate: Candidate
    load: int
    rate: float = 0.0
    """Departures a second to be expected of its node."""


def plan(view: SwarmView, request: PlanRequest, config: RoutingConfig) -> Route | None:
    """The cheapest route that satisfies the request, or None."""
    layer_count = request.model.layer_count
    view = replace(view, candidates=tuple(c for c in view.candidates if eligible(c, request)))
    cuts = cuts_of(view, request)
    frontier: dict[int, dict[NodeId | None, Path]] = {cut: {} for cut in cuts}
    frontier[0][None] = Path(0.0, 0.0, (), TOKEN_BYTES)
    for start in cuts[:-1]:
        arrivals = sorted(frontier[start].values(), key=lambda path: path.total_s)
        for candidate in view.candidates:
            if start not in candidate.shard.layers:
                continue
            path = _best_arrival(view, request, config, arrivals, candidate)
            if path is not None:
                loaded = loaded_of(view, request, candidate)
                _extend(frontier, path, loaded, start, request, config)
    return _finish(view, request, config, list(frontier[layer_count].values()))


def why_not(view: SwarmView, request: PlanRequest, config: RoutingConfig) -> SwarmError:
    """The error that says why `plan` found nothing."""
    missing = missing_layers(view, request.model.layer_count, request.model.model_id)
    name = request.model.name
    if missing:
        ranges = ", ".join(str(part) for part in missing)
        text = f"no reachable node serves layers {ranges} of {name}"
        return NoRoute(request.model.model_id, missing, text)
    roomy = replace(request, remaining_count=0, prompt_count=0, generated_count=0, classes=())
    if plan(view, roomy, config) is not None:
        positions = request.admitted_positions(config)
        return KvExhausted(
            f"the nodes that serve {name} have no memory free for {positions} tokens"
        )
    return NoRoute(request.model.model_id, (), f"the nodes that serve {name} cannot be joined now")


def missing_layers(view: SwarmView, layer_count: int, model_id: str) -> tuple[LayerRange, ...]:
    """Layers that no candidate serves, as maximal ranges in order."""
    covered = [False] * layer_count
    for candidate in view.candidates:
        if candidate.shard.model_id == model_id:
            for layer in range(candidate.shard.layers.start, candidate.shard.layers.stop):
                if layer < layer_count:
                    covered[layer] = True
    ranges: list[LayerRange] = []
    start: int | None = None
    for layer, is_covered in enumerate([*covered, True]):
        if not is_covered and start is None:
            start = layer
        elif is_covered and start is not None:
            ranges.append(LayerRange(start, layer))
            start = None
    return tuple(ranges)


def eligible(candidate: Candidate, request: PlanRequest) -> bool:
    return (
        candidate.shard.model_id == request.model.model_id and candidate.node not in request.avoid
    )


def cuts_of(view: SwarmView, request: PlanRequest) -> list[int]:
    ranges = [c.shard.layers for c in view.candidates] + [layers for _, layers in request.held]
    ranges += [layers for _, layers, _ in request.cached]
    inner = {edge for layers in ranges for edge in (layers.start, layers.stop)}
    last = request.model.layer_count
    return sorted({0, last} | {edge for edge in inner if edge < last})


def _best_arrival(
    view: SwarmView,
    request: PlanRequest,
    config: RoutingConfig,
    arrivals: list[Path],
    candidate: Candidate,
) -> Path | None:
    """The cheapest way to bring a row from `arrivals` to the candidate, its wire paid.

    `arrivals` come cheapest first, so that most need no look: a wire takes nothing off.
    """
    node = candidate.node
    best: Path | None = None
    for path in arrivals:
        if best is not None and path.total_s > best.total_s:
            break
        sender = path.last or request.origin
        if node in (hop.node for hop in path.hops) or is_bad(view, request, sender, node):
            continue
        moved = over_wire(view, request, config, path, node)
        if best is None or moved.rank < best.rank:
            best = moved
    return best


def over_wire(
    view: SwarmView, request: PlanRequest, config: RoutingConfig, path: Path, node: NodeId
) -> Path:
    wire = view.wire(path.last or request.origin, node, config)
    token_s = wire_cost_s(wire, path.row_bytes) + config.hop_overhead_s
    bulk_s = request.prompt_count * path.row_bytes / wire.goodput_bytes_s
    expected = expected_tokens(request, config)
    dial_s = config.dial_cost_s if node in view.unlinked else 0.0
    return replace(
        path,
        total_s=path.total_s + bulk_s + expected * token_s + dial_s,
        token_s=path.token_s + token_s,
    )


def _extend(
    frontier: dict[int, dict[NodeId | None, Path]],
    path: Path,
    loaded: Loaded,
    start: int,
    request: PlanRequest,
    config: RoutingConfig,
) -> None:
    """Add every use [start, stop) of the candidate's range to the frontier."""
    candidate = loaded.candidate
    shard = candidate.shard
    for stop, column in frontier.items():
        if not start < stop <= shard.layers.stop:
            continue
        layers = LayerRange(start, stop)
        if not allowed(candidate, layers, request, config):
            continue
        longer = through(path, loaded, layers, request, config)
        known = column.get(candidate.node)
        if known is None or longer.rank < known.rank:
            column[candidate.node] = longer


def through(
    path: Path, loaded: Loaded, layers: LayerRange, request: PlanRequest, config: RoutingConfig
) -> Path:
    """The path with one hop more."""
    candidate = loaded.candidate
    head = layers.stop == request.model.layer_count
    token_s = decode_cost_s(candidate, layers, head=head, load=loaded.load)
    hop = Hop(candidate.node, layers, layers.start == 0, head, candidate.shard.numeric_class)
    rebuild_s = rebuild_cost_s(candidate, layers, request)
    tokens = expected_tokens(request, config)
    count = request.model.layer_count
    leaving_s = leaving_cost_s(candidate, loaded.rate, count, tokens, config) if loaded.rate else 0
    return Path(
        path.total_s + rebuild_s + tokens * token_s + leaving_s,
        path.token_s + token_s,
        (*path.hops, hop),
        candidate.shard.row_bytes,
    )


def loaded_of(view: SwarmView, request: PlanRequest, candidate: Candidate) -> Loaded:
    """`held`: the session itself is one of those that run there."""
    is_held = any(node == candidate.node for node, _ in request.held)
    load = max(0, view.loads.get(candidate.node, 0) - is_held)
    return Loaded(candidate, load, view.rates.get(candidate.node, 0.0))


def allowed(
    candidate: Candidate, layers: LayerRange, request: PlanRequest, config: RoutingConfig
) -> bool:
    shard = candidate.shard
    if layers.start == 0 and not shard.embed:
        return False
    if layers.stop == request.model.layer_count and not shard.head:
        return False
    if any(
        layers.overlaps(bound) and shard.numeric_class != numeric_class
        for bound, numeric_class in request.classes
    ):
        return False
    if (candidate.node, layers) in request.held:
        return True
    return kv_bytes(shard, request, config) <= candidate.speed.kv_free_bytes


def _finish(
    view: SwarmView, request: PlanRequest, config: RoutingConfig, paths: list[Path]
) -> Route | None:
    """Pay the way back to the origin and choose."""
    best: Path | None = None
    for path in paths:
        if is_bad(view, request, path.hops[-1].node, request.origin):
            continue
        whole = back(view, request, config, path)
        if best is None or whole.rank < best.rank:
            best = whole
    return None if best is None else route_of(view, request, config, best)


def back(view: SwarmView, request: PlanRequest, config: RoutingConfig, path: Path) -> Path:
    """The path with the way of its tokens to the origin."""
    wire = view.wire(path.hops[-1].node, request.origin, config)
    back_s = wire_cost_s(wire, TOKEN_BYTES)
    expected = expected_tokens(request, config)
    return replace(path, total_s=path.total_s + expected * back_s, token_s=path.token_s + back_s)


def route_of(view: SwarmView, request: PlanRequest, config: RoutingConfig, path: Path) -> Route:
    dials = tuple(hop.node for hop in path.hops if hop.node in view.unlinked)
    slowest_s = slowest_step_s(view, request, config, path.hops)
    return Route(path.hops, path.token_s, slowest_s, dials)


def slowest_step_s(
    view: SwarmView, request: PlanRequest, config: RoutingConfig, hops: tuple[Hop, ...]
) -> float:
    """Of the chunks that a prompt is cut into for so many hops."""
    chunk = prefill_chunk(request.prompt_count, len(hops), config.prefill_chunk_tokens)
    by_node = {candidate.node: candidate for candidate in view.candidates}
    return max(step_cost_s(by_node[hop.node], hop.layers, chunk) for hop in hops)


def is_bad(view: SwarmView, request: PlanRequest, a: NodeId, b: NodeId) -> bool:
    pairs = ((a, b), (b, a))
    return any(pair in bad for bad in (request.bad_wires, view.bad_wires) if bad for pair in pairs)


def expected_tokens(request: PlanRequest, config: RoutingConfig) -> int:
    return min(max(1, request.remaining_count), config.expected_tokens_max)
