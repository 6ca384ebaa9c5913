"""The best few routes: the first is the planner's, they come in order, and their parts add up."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from test_planner import CONFIG, ME, MODEL, REQUEST, candidate, view

from swarm.routing.alternatives import COUNT_MAX, alternatives
from swarm.routing.cost import SwarmView, Wire
from swarm.routing.planner import plan
from swarm.snapshot import RouteCost
from swarm.terms import LayerRange, NodeId


def parts_s(found: RouteCost) -> float:
    """The sum that a route is compared by, from what is told of it."""
    each = sum(hop.queue_s + hop.compute_s + hop.link_s for hop in found.hops) + found.back_s
    once = sum(hop.prefill_s + hop.bulk_s + hop.dial_s for hop in found.hops)
    return found.expected_tokens * each + once


def crowd(seed: int) -> SwarmView:
    """Shards of all sizes, with uneven speeds, loads and wires."""
    rng = Random(seed)
    edges = [0, 3, 5, 6, 9, 12]
    made = []
    for number in range(8):
        start, stop = sorted(rng.sample(edges, 2))
        made.append(candidate(f"n{number}", start, stop, layer_s=rng.uniform(0.0005, 0.004)))
    made += [candidate("whole", 0, 12, layer_s=0.003), candidate("left", 0, 6)]
    nodes = [c.node for c in made] + [ME]
    wires = {
        (a, b): Wire(rng.uniform(0.0002, 0.02), rng.uniform(1e6, 1e8))
        for a in nodes for b in nodes if a < b and rng.random() < 0.5
    }  # fmt: skip
    return SwarmView(
        tuple(sorted(made, key=lambda c: c.node)), wires,
        loads={node: rng.randrange(3) for node in nodes}, unlinked=frozenset(nodes[:2]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_the_first_is_the_planners_and_the_rest_follow_in_order(seed: int) -> None:
    swarm = crowd(seed)
    request = replace(REQUEST, held=((NodeId("left"), LayerRange(0, 6)),) if seed % 2 else ())
    found = alternatives(swarm, request, CONFIG, 4)
    assert found[0].route == plan(swarm, request, CONFIG)
    totals = [one.total_s for one in found]
    assert totals == sorted(totals) and len({one.route.hops for one in found}) == len(found)
    for one in found:
        assert parts_s(one) == pytest.approx(one.total_s)
        assert one.route.predicted_token_s == pytest.approx(
            sum(hop.queue_s + hop.compute_s + hop.link_s for hop in one.hops) + one.back_s
        )


def test_all_routes_of_a_small_swarm_are_found() -> None:
    swarm = view(candidate("a", 0, 6), candidate("b", 6, 12), candidate("c", 0, 12))
    found = alternatives(swarm, REQUEST, CONFIG, COUNT_MAX)
    ways = [[(hop.node, str(hop.layers)) for hop in one.route.hops] for one in found]
    assert ways == [
        [("c", "0:12")],
        [("a", "0:6"), ("b", "6:12")],
        [("a", "0:6"), ("c", "6:12")],
        [("c", "0:6"), ("b", "6:12")],
    ]


def test_without_a_route_there_is_none() -> None:
    assert alternatives(view(candidate("a", 0, 6)), REQUEST, CONFIG, 3) == ()


def test_the_first_token_of_a_long_prompt_flows_in_chunks() -> None:
    """Two hops of equal speed need little more than half of what one needs."""
    long = replace(REQUEST, prompt_count=800, remaining_count=1)
    fast = {("origin", n): Wire(0.0001, 1e9) for n in "abc"} | {("a", "b"): Wire(0.0001, 1e9)}
    swarm = view(candidate("a", 0, 6), candidate("b", 6, 12), candidate("c", 0, 12), wires=fast)
    by_hops = {len(one.hops): one for one in alternatives(swarm, long, CONFIG, 4)}
    assert 0.5 < by_hops[2].first_token_s / by_hops[1].first_token_s < 0.75
    assert MODEL.layer_count == 12
