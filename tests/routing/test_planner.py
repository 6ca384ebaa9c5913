"""Routes: cover, parts of ranges, costs, recovery, and what is said when there is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from swarm.config import RoutingConfig
from swarm.errors import KvExhausted, NoRoute
from swarm.messages import KV_BLOCK_TOKENS
from swarm.routing.cost import Candidate, PlanRequest, SwarmView, Wire
from swarm.routing.placement import Capacity, Served, choose_layers, layers_that_fit
from swarm.routing.planner import missing_layers, plan, why_not
from swarm.terms import (
    LayerRange,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    Route,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

CONFIG = RoutingConfig()
MODEL = ModelSpec(ModelId("m"), "m", 12, 64, 100, 1000, (), False)
ME = NodeId("origin")
REQUEST = PlanRequest(MODEL, ME, prompt_count=10, generated_count=0, remaining_count=20)


def candidate(
    node: str, start: int, stop: int, *, layer_s: float = 0.001, kv_free: int = 1 << 30,
    numeric_class: str = "c",
) -> Candidate:  # fmt: skip
    shard = ShardInfo(
        MODEL.model_id, LayerRange(start, stop), start == 0, stop == 12,
        NumericClass(numeric_class), ShardState.SERVING, 100, 1 << 30, 256,
    )  # fmt: skip
    speed = ShardSpeed(MODEL.model_id, layer_s, layer_s, layer_s / 10, layer_s, 0.0, kv_free)
    return Candidate(NodeId(node), shard, speed)


def view(*candidates: Candidate, wires: dict[tuple[str, str], Wire] | None = None) -> SwarmView:
    known = {(NodeId(a), NodeId(b)): wire for (a, b), wire in (wires or {}).items()}
    return SwarmView(candidates, known)


def path(route: Route | None) -> list[tuple[str, int, int]]:
    assert route is not None
    return [(hop.node, hop.layers.start, hop.layers.stop) for hop in route.hops]


def test_one_node_wins_over_two_of_the_same_speed() -> None:
    found = plan(view(candidate("a", 0, 6), candidate("b", 6, 12), candidate("c", 0, 12)),
                 REQUEST, CONFIG)  # fmt: skip
    assert path(found) == [("c", 0, 12)]


def test_a_range_is_used_in_part() -> None:
    found = plan(view(candidate("a", 0, 8), candidate("b", 4, 12, layer_s=0.0001)), REQUEST, CONFIG)
    assert path(found) == [("a", 0, 4), ("b", 4, 12)]
    assert found is not None
    assert [(hop.embed, hop.head) for hop in found.hops] == [(True, False), (False, True)]


def test_a_slow_wire_is_avoided() -> None:
    slow = {("origin", "a"): Wire(0.2, 1e6)}
    both = view(candidate("a", 0, 12), candidate("b", 0, 12, layer_s=0.002), wires=slow)
    assert path(plan(both, REQUEST, CONFIG)) == [("b", 0, 12)]


def test_the_wire_between_hops_counts_not_only_the_origins() -> None:
    """Of two second halves the one near the first hop wins, not the one near the origin."""
    wires = {
        ("origin", "a"): Wire(0.001, 1e8), ("a", "x"): Wire(0.1, 1e8), ("a", "y"): Wire(0.001, 1e8),
        ("origin", "x"): Wire(0.001, 1e8), ("origin", "y"): Wire(0.02, 1e8),
    }  # fmt: skip
    everyone = view(candidate("a", 0, 6), candidate("x", 6, 12), candidate("y", 6, 12), wires=wires)
    assert path(plan(everyone, REQUEST, CONFIG))[1][0] == "y"


def test_a_full_hop_does_not_count() -> None:
    full = candidate("a", 0, 12, kv_free=10)
    assert path(plan(view(full, candidate("b", 0, 12)), REQUEST, CONFIG)) == [("b", 0, 12)]
    error = why_not(view(full), REQUEST, CONFIG)
    assert isinstance(error, KvExhausted)


def test_room_is_needed_for_what_is_there_and_some_growth_in_whole_blocks() -> None:
    long = replace(REQUEST, prompt_count=40, remaining_count=100_000)
    positions = 40 + CONFIG.kv_growth_tokens
    blocks = -(-positions // KV_BLOCK_TOKENS)
    needed = blocks * KV_BLOCK_TOKENS * 12 * candidate("a", 0, 12).shard.kv_bytes_per_token_layer
    assert plan(view(candidate("a", 0, 12, kv_free=needed)), long, CONFIG) is not None
    short = view(candidate("a", 0, 12, kv_free=needed - 1))
    assert plan(short, long, CONFIG) is None
    assert f"for {positions} tokens" in str(why_not(short, long, CONFIG))


def test_a_block_is_of_all_layers_that_are_served() -> None:
    per_layer = KV_BLOCK_TOKENS * candidate("a", 0, 8).shard.kv_bytes_per_token_layer
    request = replace(REQUEST, prompt_count=20, remaining_count=1)
    both = (candidate("a", 0, 4), candidate("b", 0, 12, kv_free=11 * per_layer))
    assert plan(view(*both), request, CONFIG) is None


def test_a_kept_prefix_is_worth_its_rows() -> None:
    request = replace(REQUEST, prompt_count=4000, remaining_count=4)
    both = view(candidate("a", 0, 12), candidate("b", 0, 12, layer_s=0.002))
    assert path(plan(both, request, CONFIG)) == [("a", 0, 12)]
    kept = replace(request, cached=((NodeId("b"), LayerRange(0, 12), 3968),))
    assert path(plan(both, kept, CONFIG)) == [("b", 0, 12)]
    of_a_part = replace(request, cached=((NodeId("b"), LayerRange(0, 6), 3968),))
    assert path(plan(both, of_a_part, CONFIG))[0] == ("b", 0, 6)


def test_the_slowest_step_is_of_chunks_that_suit_the_route() -> None:
    request = replace(REQUEST, prompt_count=2048)
    one = plan(view(candidate("a", 0, 12)), request, CONFIG)
    three = plan(
        view(candidate("a", 0, 4), candidate("b", 4, 8), candidate("c", 8, 12)), request, CONFIG
    )
    assert one is not None and three is not None
    assert one.slowest_step_s == pytest.approx(12 * 256 * 0.0001)
    assert three.slowest_step_s == pytest.approx(4 * 192 * 0.0001)


def test_survivors_keep_their_kv() -> None:
    """A faster stranger does not win over a node that need not rebuild a long context."""
    request = replace(
        REQUEST, prompt_count=4000, generated_count=100, remaining_count=4,
        held=((NodeId("slow"), LayerRange(0, 12)),),
    )  # fmt: skip
    both = view(candidate("slow", 0, 12, layer_s=0.002), candidate("fast", 0, 12))
    assert path(plan(both, request, CONFIG)) == [("slow", 0, 12)]
    long_way = replace(request, prompt_count=10, generated_count=0, remaining_count=5000)
    assert path(plan(both, long_way, CONFIG)) == [("fast", 0, 12)]


def test_a_survivor_is_used_for_its_held_range() -> None:
    request = replace(REQUEST, prompt_count=2000, held=((NodeId("b"), LayerRange(6, 12)),))
    everyone = view(candidate("a", 0, 6), candidate("b", 4, 12))
    assert path(plan(everyone, request, CONFIG)) == [("a", 0, 6), ("b", 6, 12)]


def test_classes_bind_layers() -> None:
    request = replace(REQUEST, classes=((LayerRange(0, 12), NumericClass("c")),))
    other = candidate("fast", 0, 12, layer_s=0.0001, numeric_class="other")
    assert path(plan(view(other, candidate("slow", 0, 12)), request, CONFIG)) == [("slow", 0, 12)]
    assert plan(view(other), request, CONFIG) is None


def test_avoided_nodes_and_wires_are_left_out() -> None:
    everyone = view(candidate("a", 0, 6), candidate("b", 6, 12), candidate("c", 6, 12))
    assert (
        path(plan(everyone, replace(REQUEST, avoid=frozenset({NodeId("b")})), CONFIG))[1][0] == "c"
    )
    bad = frozenset({(NodeId("c"), NodeId("a"))})
    assert path(plan(everyone, replace(REQUEST, bad_wires=bad), CONFIG))[1][0] == "b"


def test_missing_layers_are_named() -> None:
    some = view(candidate("a", 0, 3), candidate("b", 5, 9))
    assert [str(part) for part in missing_layers(some, 12, "m")] == ["3:5", "9:12"]
    error = why_not(some, REQUEST, CONFIG)
    assert isinstance(error, NoRoute)
    assert "3:5, 9:12" in str(error)


def test_a_route_is_chosen_by_the_cheapest_of_all_ways() -> None:
    """Against brute force over every choice of nodes and cuts, on small random swarms."""
    for seed in range(60):
        rng = Random(seed)
        shards = []
        for index in range(rng.randint(2, 4)):
            start, stop = sorted(rng.sample([0, 4, 8, 12], 2))
            shards.append(candidate(f"n{index}", start, stop, layer_s=rng.uniform(0.5, 3) / 1000))
        wires = {
            (a, b): Wire(rng.uniform(0.1, 5) / 1000, rng.uniform(1e7, 1e8))
            for a, b in product(["origin", *(c.node for c in shards)], repeat=2) if a < b
        }  # fmt: skip
        swarm = view(*shards, wires=wires)
        found = plan(swarm, REQUEST, CONFIG)
        best = _brute_force(swarm)
        assert (found is None) == (best is None)
        if found is not None and best is not None:
            assert found.predicted_token_s == pytest.approx(best, rel=1e-6)


def _brute_force(swarm: SwarmView) -> float | None:
    """Cheapest token time; prefill is made negligible by comparing totals with one prompt token."""
    best: tuple[float, float] | None = None

    def extend(at: int, last: NodeId, used: tuple[NodeId, ...], total: float, token: float) -> None:
        nonlocal best
        if at == 12:
            back = swarm.wire(last, ME, CONFIG)
            step = back.rtt_s / 2 + 64 / back.goodput_bytes_s
            result = (total + 20 * step, token + step)
            best = min(best, result) if best else result
            return
        for c in swarm.candidates:
            if c.node in used or at not in c.shard.layers:
                continue
            wire = swarm.wire(last, c.node, CONFIG)
            row = 64 if at == 0 else 256
            step = wire.rtt_s / 2 + row / wire.goodput_bytes_s + CONFIG.hop_overhead_s
            bulk = 10 * row / wire.goodput_bytes_s
            for stop in (4, 8, 12):
                if at < stop <= c.shard.layers.stop:
                    compute = (stop - at) * c.speed.decode_s_per_layer
                    compute += c.speed.head_s if stop == 12 else 0.0
                    rebuild = (stop - at) * 10 * c.speed.prefill_s_per_token_layer
                    extend(stop, c.node, (*used, c.node), total + bulk + rebuild
                           + 20 * (step + compute), token + step + compute)  # fmt: skip

    extend(0, ME, (), 0.0, 0.0)
    return best[1] if best else None


@pytest.mark.parametrize(
    ("fit", "others", "expected"),
    [
        (12, [], (0, 12)),
        (4, [], (0, 4)),
        (4, [(0, 4, 1.0)], (4, 8)),
        (4, [(0, 4, 1.0), (8, 12, 1.0)], (4, 8)),
        (6, [(0, 4, 1.0), (10, 12, 1.0)], (4, 10)),
        (4, [(0, 4, 1.0), (4, 8, 9.0), (8, 12, 1.0)], (4, 8)),
        (100, [(0, 12, 1.0)], (0, 12)),
    ],
)
def test_placement(
    fit: int, others: list[tuple[int, int, float]], expected: tuple[int, int]
) -> None:
    served = [Served(LayerRange(start, stop), speed) for start, stop, speed in others]
    assert choose_layers(12, Capacity(fit, 1.0), served) == LayerRange(*expected)


def test_nothing_fits() -> None:
    assert choose_layers(12, Capacity(0, 1.0), []) is None
    assert layers_that_fit(100, 30, 20) == 2
    assert layers_that_fit(10, 30, 20) == 0


def test_requests_that_come_together_spread_over_equal_nodes() -> None:
    both = view(candidate("a", 0, 12), candidate("b", 0, 12))
    busy = replace(both, loads={NodeId("a"): 1})
    assert path(plan(busy, REQUEST, CONFIG)) == [("b", 0, 12)]


def test_a_session_does_not_count_as_load_on_its_own_hops() -> None:
    both = view(candidate("a", 0, 12, layer_s=0.0015), candidate("b", 0, 12))
    mine = replace(both, loads={NodeId("b"): 1})
    request = replace(REQUEST, held=((NodeId("b"), LayerRange(0, 12)),))
    assert path(plan(mine, request, CONFIG)) == [("b", 0, 12)]


def test_a_shard_beyond_the_models_end_is_no_harm() -> None:
    """A node may know another layer count for the model than the session does."""
    beyond = candidate("a", 0, 14)
    assert missing_layers(view(beyond), 12, "m") == ()
    assert plan(view(beyond), REQUEST, CONFIG) is None


def unlinked(found: SwarmView, *nodes: str) -> SwarmView:
    return replace(found, unlinked=frozenset(map(NodeId, nodes)))


def test_linked_nodes_win_when_near_equal_and_only_then() -> None:
    both = unlinked(view(candidate("a", 0, 12), candidate("b", 0, 12)), "a")
    assert path(plan(both, REQUEST, CONFIG)) == [("b", 0, 12)]
    slower = unlinked(view(candidate("a", 0, 12), candidate("b", 0, 12, layer_s=0.002)), "a")
    found = plan(slower, REQUEST, CONFIG)
    assert path(found) == [("a", 0, 12)]
    assert found is not None
    assert found.dials == ("a",)
    assert found.predicted_token_s < 0.05


def test_pairs_that_could_not_be_joined_are_no_wires() -> None:
    halves = view(candidate("a", 0, 6), candidate("b", 6, 12), candidate("c", 6, 12, layer_s=0.002))
    assert path(plan(halves, REQUEST, CONFIG)) == [("a", 0, 6), ("b", 6, 12)]
    bad = replace(halves, bad_wires=frozenset({(NodeId("b"), NodeId("a"))}))
    assert path(plan(bad, REQUEST, CONFIG)) == [("a", 0, 6), ("c", 6, 12)]
