"""A worker that takes orders and never answers: left by sessions, noticed and restarted at home."""

from __future__ import annotations

import pytest
from node_world import World, WorldNode, oracle, order_of

from swarm.effects import Finished, Started
from swarm.notes import Level, Note
from swarm.routing.avoidance import Offence
from swarm.terms import SessionId

THREE = [(0, 4), (4, 8), (8, 12)]


def swarm_of(seed: int, ranges: list[tuple[int, int]]) -> tuple[World, WorldNode]:
    world = World(seed)
    gateway = world.add(None)
    for layers in ranges:
        world.add(layers)
    world.settle()
    return world, gateway


def hop_nodes(world: World, session: SessionId) -> list[WorldNode]:
    route = [e.route for e in world.replies[session] if isinstance(e, Started)][-1]
    return [next(n for n in world.nodes if n.id == hop.node) for hop in route.hops]


def notes(node: WorldNode, event: str) -> list[Note]:
    return [note for note in node.notes if note.event == event]


def wedge_a_hop(world: World, gateway: WorldNode) -> tuple[SessionId, WorldNode]:
    session = world.ask(gateway, order_of(20, 20))
    world.run_until(lambda: len(world.tokens(session)) >= 5)
    wedged = hop_nodes(world, session)[1]
    wedged.worker.wedged = True
    return session, wedged


def test_it_is_left_within_three_seconds_and_started_anew() -> None:
    world, gateway = swarm_of(1, THREE * 2)
    session, wedged = wedge_a_hop(world, gateway)
    end = world.finish(session)
    assert isinstance(end, Finished)
    assert max(end.stats.stall_s) < 3.0
    assert world.tokens(session) == oracle(order_of(20, 20))
    assert [n.get("cause") for n in notes(gateway, "peer.penalty")] == ["stuck"]
    world.run_until(lambda: bool(notes(wedged, "worker.stuck")), 3.0)
    (note,) = notes(wedged, "worker.stuck")
    assert note.level is Level.ERROR
    assert "finished no step" in str(note.get("reason"))
    assert not wedged.core.snapshot(world.now).models[0].missing
    world.run_for(2.0)
    assert wedged.worker_starts == 2
    assert len(notes(wedged, "shard.serving")) == 2


def test_its_shard_is_withdrawn_until_it_serves_again() -> None:
    world, gateway = swarm_of(2, THREE)
    _, wedged = wedge_a_hop(world, gateway)
    world.run_until(lambda: bool(notes(wedged, "worker.stuck")), 10.0)
    world.run_for(0.1)
    (model,) = gateway.core.models(world.now)
    assert [str(layers) for layers in model.missing] == ["4:8"]
    world.run_for(2.0)
    (model,) = gateway.core.models(world.now)
    assert model.covered


def test_the_only_hop_that_wedges_comes_back_within_the_answer() -> None:
    world, gateway = swarm_of(3, THREE)
    session, _ = wedge_a_hop(world, gateway)
    end = world.finish(session)
    assert isinstance(end, Finished)
    assert world.tokens(session) == oracle(order_of(20, 20))


def test_a_shard_that_is_announced_anew_leaves_the_penalty_box() -> None:
    world, gateway = swarm_of(4, THREE)
    box = gateway.core._sentinel.penalties
    _, wedged = wedge_a_hop(world, gateway)
    world.run_until(lambda: bool(notes(gateway, "peer.penalty")), 10.0)
    for _ in range(4):  # it has done so before
        incarnation = gateway.core._picture.incarnation_of(wedged.id)
        assert incarnation is not None
        box.punish(wedged.id, incarnation, Offence.STUCK, world.now)
    world.run_for(4.0)
    assert notes(wedged, "shard.serving")[1:]
    (view,) = [n for n in gateway.core.snapshot(world.now).nodes if n.node == wedged.id]
    assert view.penalty_s == 0


def test_an_idle_worker_may_be_silent_for_ever() -> None:
    world, gateway = swarm_of(5, THREE)
    session = world.ask(gateway, order_of(20, 20))
    world.finish(session)
    world.run_for(60.0)
    assert all(node.worker_starts == (node is not gateway) for node in world.nodes)


@pytest.mark.parametrize("gone_after_s", [0.05, 1.0, 3.0])
def test_it_is_noticed_although_the_client_went_away(gone_after_s: float) -> None:
    """Unless it went so soon that no answer was due."""
    world, gateway = swarm_of(6, THREE)
    session, wedged = wedge_a_hop(world, gateway)
    world.run_for(gone_after_s)
    gateway.put(lambda core, now: core.cancel(session, now))
    world.run_for(6.0)
    assert bool(notes(wedged, "worker.stuck")) == (gone_after_s > 0.4)


def test_a_slow_worker_that_lost_its_sessions_proves_itself() -> None:
    world, gateway = swarm_of(7, THREE)
    session = world.ask(gateway, order_of(20, 20))
    world.run_until(lambda: len(world.tokens(session)) >= 5)
    slow = hop_nodes(world, session)[1]
    slow.worker.free_at = world.now + 2.0
    world.run_for(1.0)
    gateway.put(lambda core, now: core.cancel(session, now))
    world.run_for(8.0)
    assert slow.worker_starts == 1
    assert not slow.worker.jobs


def test_a_worker_wedged_at_load_is_ended_after_the_load_deadline() -> None:
    world = World(8)
    node = world.add((0, 12))
    node.worker.wedged_at_load = True
    config = world.config.shard
    world.run_for(config.load_quiet_s - 1.0)
    assert not notes(node, "worker.stuck")
    world.run_for(5.0)
    (note,) = notes(node, "worker.stuck")
    assert "loading stub" in str(note.get("reason"))
    world.run_until(lambda: bool(notes(node, "shard.serving")), 5.0)
