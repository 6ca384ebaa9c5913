"""Which layers of a model a node takes, beside what others hold, load or intend. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.hosted import Rival
from swarm.routing.placement import Capacity, Served, choose_layers, plan_layers
from swarm.terms import LayerRange, NodeId, ShardState

PLANNED_TOGETHER_MAX = 6
"""Nodes whose layers are chosen in one plan; it takes some milliseconds of each one's loop."""


def best_layers(
    me: NodeId,
    count: int,
    own: Capacity,
    others: Sequence[Rival],
    obtainable: frozenset[int] | None,
    copies: int,
) -> LayerRange | None:
    """The choice beside what is settled: this node's part of one plan for all that have yet to
    load, or, where those are many, beside the intentions of smaller ids. Who is about to depart is
    as good as gone.

    count  layers of the model
    obtainable  those whose weights are to be had; None: all
    copies  of every layer, as this node wishes
    """
    others = [rival for rival in others if not rival.is_departing]
    copies = max(1, copies, *(rival.copies for rival in others))
    intending = [rival for rival in others if rival.state is ShardState.INTENDED]
    settled = [_served(rival) for rival in others if rival.state is not ShardState.INTENDED]
    has_all = obtainable is None or len(obtainable) == count
    if len(intending) >= PLANNED_TOGETHER_MAX or not has_all:
        settled += [_served(rival) for rival in intending if rival.node < me]
        return choose_layers(count, own, settled, obtainable, copies)
    nodes = {r.node: Capacity(len(r.layers), r.decode_s_per_layer) for r in intending}
    nodes[me] = own
    joining = [nodes[node] for node in sorted(nodes)]
    plan = plan_layers(count, joining, settled, copies=copies)
    return plan[sorted(nodes).index(me)]


def _served(rival: Rival) -> Served:
    return Served(rival.next or rival.layers, rival.decode_s_per_layer)
