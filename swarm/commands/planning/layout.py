"""Which layers would go where, by the rules that running nodes use, and what that gives. Pure.

Every machine is a real `Hosting`, which is told what a worker would tell it; they join one after
the other. Routes come from the real planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.commands.planning.machines import MEMORY_SHARE, PlannedNode
from swarm.commands.planning.outline import MODEL_ID, Form, Outline, inspected, loaded
from swarm.config import RoutingConfig, ShardConfig
from swarm.effects import Tell, ToWorker
from swarm.hosted import node_budget
from swarm.hosting import Hosting, Rival, Wish
from swarm.messages import Load
from swarm.moves_config import MovesConfig
from swarm.routing.alternatives import alternatives
from swarm.routing.cost import Candidate, PlanRequest, SwarmView, Wire
from swarm.routing.moves import Holder, Move, improvement, repairs
from swarm.routing.planner import missing_layers
from swarm.snapshot import RouteCost
from swarm.terms import LayerRange, NodeId, Parts

TURNS_MAX = 8
"""A lone joining node decides within two; more means that it never will."""


ROUNDED_BYTES = 16
"""More than what the sums of a budget lose when each is rounded down."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What the plan is for. `wire`: between any two machines."""

    prompt_tokens: int
    max_tokens: int
    wire: Wire
    config: ShardConfig
    routing: RoutingConfig


@dataclass(frozen=True, slots=True)
class Placed:
    """One machine and what it takes. `layers` None: nothing, for `reason`."""

    machine: PlannedNode
    layers: LayerRange | None
    candidate: Candidate | None
    weight_bytes: int
    kv_tokens: int
    """Positions that its KV holds, of all sessions together."""
    reason: str = ""
    parts: Parts = ()
    """Of its layers, those on each of its devices."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is left when one machine is gone and nobody else moves."""

    machine: PlannedNode
    missing: tuple[LayerRange, ...]
    best: RouteCost | None
    would_fit_anew: bool
    """The others would hold the whole model if they started without it."""
    moves: tuple[tuple[PlannedNode, LayerRange], ...] = ()
    """Who would load what instead of what it has, by itself, so that nothing is missing."""
    repaired: RouteCost | None = None
    """The best route then."""


@dataclass(frozen=True, slots=True)
class Layout:
    outline: Outline
    form: Form
    placed: tuple[Placed, ...]
    missing: tuple[LayerRange, ...]
    routes: tuple[RouteCost, ...]
    losses: tuple[Loss, ...]
    needed_bytes: int
    """Memory of one more machine that would hold all that is missing."""

    @property
    def fits(self) -> bool:
        return bool(self.routes)


def lay_out(outline: Outline, form: Form, machines: Sequence[PlannedNode], aim: Aim) -> Layout:
    placed = place(outline, form, machines, aim.config)
    missing = _missing(outline, placed)
    return Layout(
        outline=outline,
        form=form,
        placed=placed,
        missing=missing,
        routes=_routes(outline, placed, aim, count=3),
        losses=tuple(_loss(outline, form, placed, gone, aim) for gone in placed if gone.layers),
        needed_bytes=_needed_bytes(outline, form, missing, aim.config),
    )


def place(
    outline: Outline, form: Form, machines: Sequence[PlannedNode], config: ShardConfig
) -> tuple[Placed, ...]:
    """The machines join in this order, each when those before it serve; then those move for whom
    it pays."""
    rivals: list[Rival] = []
    placed: list[Placed] = []
    for machine in machines:
        one = _join(outline, form, machine, rivals, config)
        placed.append(one)
        if one.candidate is not None:
            shard, speed = one.candidate.shard, one.candidate.speed
            rivals.append(Rival(machine.node, shard.layers, shard.state, speed.decode_s_per_layer))
    copies, gain = max(1, config.copies), MovesConfig().gain
    while (move := improvement(outline.layer_count, _holders(placed), copies, gain)) is not None:
        placed = _moved(outline, form, placed, move, config)
    return tuple(placed)


def _holders(placed: Sequence[Placed]) -> list[Holder]:
    found = [one.candidate for one in placed if one.candidate is not None]
    return [
        Holder(c.node, c.shard.layers, c.speed.decode_s_per_layer, True,
               c.shard.room_layers, c.shard.load_s)
        for c in sorted(found, key=lambda candidate: candidate.node)
    ]  # fmt: skip


def _moved(
    outline: Outline, form: Form, placed: Sequence[Placed], move: Move, config: ShardConfig
) -> list[Placed]:
    return [
        _join(outline, form, one.machine, [], config, move.layers)
        if one.machine.node == move.node
        else one
        for one in placed
    ]


def _join(
    outline: Outline,
    form: Form,
    machine: PlannedNode,
    rivals: list[Rival],
    config: ShardConfig,
    layers: LayerRange | None = None,
) -> Placed:
    workers = [replace(config, device=device.name) for device in machine.devices]
    budget = node_budget(workers, [device.taken_bytes for device in machine.devices])
    wish = Wish(outline.name, outline.name, layers)
    hosting = Hosting(machine.node, [wish], budget, config, "")
    hosting.start()
    now = 0.0
    hosting.inspected((inspected(outline, form),) * len(machine.devices), now)
    reason = "it did not come to a decision"
    for _ in range(TURNS_MAX):
        now = hosting.next_deadline() or now
        hosting.tick({MODEL_ID: rivals}, now)
        for effect in hosting.take_effects():
            match effect:
                case ToWorker(message=Load() as order):
                    parts = hosting.parts_of(MODEL_ID)
                    hosting.worker_message(loaded(outline, form, machine, parts, order), now)
                    return _placed(hosting, machine)
                case Tell(note=told) if told.event == "shard.failed":
                    return Placed(machine, None, None, 0, 0, str(told.get("reason")))
                case _:
                    pass
    return Placed(machine, None, None, 0, 0, reason)


def _placed(hosting: Hosting, machine: PlannedNode) -> Placed:
    (shard,) = hosting.shards()
    (pool,) = hosting.pools()
    room = pool.capacity * pool.block_bytes
    (speed,) = hosting.speeds(lambda _: room)
    per_token = len(shard.layers) * shard.kv_bytes_per_token_layer
    return Placed(
        machine=machine,
        layers=shard.layers,
        candidate=Candidate(machine.node, shard, speed),
        weight_bytes=hosting.weight_bytes_of(MODEL_ID),
        kv_tokens=room // max(1, per_token),
        parts=hosting.parts_of(MODEL_ID),
    )


# -------------------------------------------------------------------- what it gives


def _view(placed: Sequence[Placed], origin: NodeId, wire: Wire) -> SwarmView:
    nodes = dict.fromkeys([origin, *(one.machine.node for one in placed)])
    wires = {(a, b): wire for a in nodes for b in nodes if a < b}
    found = [one.candidate for one in placed if one.candidate is not None]
    return SwarmView(tuple(sorted(found, key=lambda c: c.node)), wires)


def _routes(
    outline: Outline, placed: Sequence[Placed], aim: Aim, *, count: int
) -> tuple[RouteCost, ...]:
    """Asked of the first machine's gateway."""
    if not placed:
        return ()
    origin = placed[0].machine.node
    request = PlanRequest(outline.spec, origin, aim.prompt_tokens, 0, aim.max_tokens)
    return alternatives(_view(placed, origin, aim.wire), request, aim.routing, count)


def _missing(outline: Outline, placed: Sequence[Placed]) -> tuple[LayerRange, ...]:
    found = tuple(one.candidate for one in placed if one.candidate is not None)
    return missing_layers(SwarmView(found, {}), outline.layer_count, MODEL_ID)


def _loss(outline: Outline, form: Form, placed: Sequence[Placed], gone: Placed, aim: Aim) -> Loss:
    rest = [one for one in placed if one is not gone]
    routes = _routes(outline, rest, aim, count=1)
    anew = place(outline, form, [one.machine for one in rest], aim.config)
    moves = repairs(outline.layer_count, _holders(rest))
    after: Sequence[Placed] = rest
    for move in moves:
        after = _moved(outline, form, after, move, aim.config)
    repaired = _routes(outline, after, aim, count=1) if moves else ()
    by_node = {one.machine.node: one.machine for one in rest}
    return Loss(
        machine=gone.machine,
        missing=_missing(outline, rest),
        best=routes[0] if routes else None,
        would_fit_anew=bool(rest) and not _missing(outline, anew),
        moves=tuple((by_node[m.node], m.layers) for m in moves) if repaired else (),
        repaired=repaired[0] if repaired else None,
    )


def _needed_bytes(
    outline: Outline, form: Form, missing: Sequence[LayerRange], config: ShardConfig
) -> int:
    """By the sums of `Budget` and `weight_bytes`, the other way round. A node takes one range."""
    if not missing:
        return 0
    span = LayerRange(missing[0].start, missing[-1].stop)
    seen = inspected(outline, form)
    weights = len(span) * seen.layer_weight_bytes
    weights += seen.embed_weight_bytes + seen.head_weight_bytes
    usable = weights / (1 - config.kv_fraction) + config.activation_bytes
    return int(usable / MEMORY_SHARE) + ROUNDED_BYTES
