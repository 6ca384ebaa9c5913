"""A swarm that falls apart and comes together: nothing is held for anybody who is not there."""

from __future__ import annotations

import pytest
from node_world import World, WorldNode, oracle, order_of

from swarm.effects import Finished, Started
from swarm.terms import SessionId

THREE = [(0, 4), (4, 8), (8, 12)]


def swarm_of(seed: int) -> tuple[World, list[WorldNode]]:
    """Two halves of a gateway and a whole model each, as one swarm."""
    world = World(seed)
    for _ in range(2):
        world.add(None)
        for layers in THREE:
            world.add(layers)
    world.settle()
    return world, world.nodes


def part(world: World, left: list[WorldNode], right: list[WorldNode]) -> None:
    for a in left:
        for b in right:
            world.cut(a, b)


def route_of(world: World, session: SessionId) -> list[WorldNode]:
    route = [e.route for e in world.replies[session] if isinstance(e, Started)][-1]
    return [next(n for n in world.nodes if n.id == hop.node) for hop in route.hops]


def held(node: WorldNode, world: World) -> tuple[int, int, int]:
    snapshot = node.core.snapshot(world.now)
    return len(snapshot.hops), snapshot.kv_used_bytes, len(node.worker.jobs)


@pytest.mark.parametrize("seed", range(4))
def test_both_sides_go_on_free_what_is_orphaned_and_reconcile(seed: int) -> None:
    world, nodes = swarm_of(seed)
    left, right = nodes[:4], nodes[4:]
    orders = [order_of(20, 60, seed=i) for i in range(8)]
    sessions = [world.ask(nodes[4 * (i % 2)], order) for i, order in enumerate(orders)]
    world.run_until(lambda: all(len(world.tokens(s)) > 3 for s in sessions))
    sides = [{node.id for node in side} for side in (left, right)]
    torn = [s for i, s in enumerate(sessions)
            if not {n.id for n in route_of(world, s)} <= sides[i % 2]]  # fmt: skip
    assert torn
    part(world, left, right)
    cut_at = world.now
    for session, order in zip(sessions, orders, strict=True):
        assert isinstance(world.finish(session), Finished)
        assert world.tokens(session) == oracle(order)
    world.run_for(max(0.0, cut_at + world.config.routing.origin_silence_max_s + 0.5 - world.now))
    assert all(held(node, world) == (0, 0, 0) for node in nodes)
    world.run_for(20.0)
    world.cuts.clear()
    healed_at = world.now
    world.run_until(lambda: all(len(node.links) == len(nodes) - 1 for node in nodes), 60.0)
    world.run_for(3.0)
    assert world.now - healed_at < 60.0
    for node in nodes:
        views = node.core.snapshot(world.now).nodes
        assert all(view.state.value == "alive" for view in views)
        assert sum(bool(view.shards) for view in views) == 6
        assert held(node, world) == (0, 0, 0)
    order = order_of(20, 20, seed=99)
    session = world.ask(nodes[0], order)
    assert isinstance(world.finish(session), Finished)
    assert world.tokens(session) == oracle(order)


def test_an_origin_that_nobody_hears_is_given_up_within_the_bound() -> None:
    """It hears its hops, and they do not hear it: no word of it ever comes."""
    world, nodes = swarm_of(9)
    origin = nodes[0]
    session = world.ask(origin, order_of(20, 2000))
    world.run_until(lambda: len(world.tokens(session)) > 3)
    hops = route_of(world, session)
    origin.silent = True
    world.run_for(world.config.routing.origin_silence_max_s + 0.1)
    for node in hops:
        assert held(node, world) == (0, 0, 0)
