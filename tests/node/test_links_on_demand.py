"""Whole nodes in a partial mesh: whom a route needs is dialled, who cannot be joined avoided."""

from __future__ import annotations

import pytest
from node_world import MODEL, World, WorldNode, oracle, order_of

from swarm.effects import Failed, Finished, Started
from swarm.errors import RouteError
from swarm.node_picture import HOLDERS_DIALLED
from swarm.notes import Note
from swarm.terms import ModelId, SessionId

THREE = [(0, 4), (4, 8), (8, 12)]


def swarm_of(seed: int, ranges: list[tuple[int, int]]) -> tuple[World, WorldNode]:
    """A pure gateway and one node per range, settled and fully linked."""
    world = World(seed)
    gateway = world.add(None)
    for layers in ranges:
        world.add(layers)
    world.settle()
    return world, gateway


def trim_all(world: World) -> None:
    """Nobody has a link to anybody; what was gossiped is still known."""
    for index, node in enumerate(world.nodes):
        for other in world.nodes[:index]:
            world.trim(node, other)
    world.run_for(0.01)


def route_of(world: World, session: SessionId) -> list[WorldNode]:
    route = [e.route for e in world.replies[session] if isinstance(e, Started)][-1]
    return [next(n for n in world.nodes if n.id == hop.node) for hop in route.hops]


def notes(node: WorldNode, event: str) -> list[Note]:
    return [note for note in node.notes if note.event == event]


def finish_right(world: World, session: SessionId, order) -> Finished:  # type: ignore[no-untyped-def]
    end = world.finish(session)
    assert isinstance(end, Finished), end
    assert world.tokens(session) == oracle(order)
    return end


@pytest.mark.parametrize("seed", range(4))
def test_a_route_of_strangers_is_dialled_and_used(seed: int) -> None:
    world, gateway = swarm_of(seed, THREE)
    trim_all(world)
    asked_at = world.now
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    world.run_until(lambda: bool(world.tokens(session)))
    assert world.now - asked_at < 0.2
    assert finish_right(world, session, order).stats.reroutes == 0


def test_links_of_a_session_are_in_use_as_long_as_it_runs() -> None:
    world, gateway = swarm_of(5, THREE)
    trim_all(world)
    session = world.ask(gateway, order_of(20, 40))
    world.run_until(lambda: len(world.tokens(session)) > 5)
    first, second, third = route_of(world, session)
    assert gateway.core._in_use == {first.id, second.id, third.id}
    assert first.core._in_use == {gateway.id, second.id}
    assert second.core._in_use == {gateway.id, first.id, third.id}
    world.finish(session)
    world.run_for(0.1)
    assert all(not node.core._in_use for node in world.nodes)


def test_linked_nodes_win_where_all_else_is_equal() -> None:
    world, gateway = swarm_of(6, THREE * 2)
    for node in world.nodes[1:4]:
        world.trim(gateway, node)
    world.run_for(0.01)
    session = world.ask(gateway, order_of(20, 20))
    world.finish(session)
    assert route_of(world, session) == world.nodes[4:7]


def test_a_lost_hop_is_replaced_by_a_stranger() -> None:
    world, gateway = swarm_of(7, [*THREE, (4, 8)])
    spare = world.nodes[4]
    for node in world.nodes[:4]:
        world.trim(spare, node)
    order = order_of(20, 40)
    session = world.ask(gateway, order)
    world.run_until(lambda: len(world.tokens(session)) > 5)
    lost = route_of(world, session)[1]
    assert lost is not spare
    world.kill(lost)
    end = finish_right(world, session, order)
    assert spare in route_of(world, session)
    assert max(end.stats.stall_s) < 0.5


def test_who_cannot_be_dialled_is_left_out_for_a_while() -> None:
    world, gateway = swarm_of(8, THREE * 2)
    trim_all(world)
    closed = world.nodes[1]
    world.deaf_doors = {(gateway.id, closed.id)}
    for number in range(3):
        order = order_of(20, 10, seed=number)
        session = world.ask(gateway, order)
        assert finish_right(world, session, order).stats.reroutes == 0
        assert closed not in route_of(world, session)
    assert len(notes(gateway, "session.out_of_reach")) <= 1


def test_the_only_holder_out_of_reach_is_a_clear_error_and_no_loop() -> None:
    world, gateway = swarm_of(9, THREE)
    trim_all(world)
    closed = world.nodes[2]
    world.deaf_doors = {(gateway.id, closed.id)}
    asked_at = world.now
    session = world.ask(gateway, order_of(20, 10))
    end = world.finish(session)
    assert isinstance(end, Failed)
    assert isinstance(end.error, RouteError)
    assert "cannot be reached" in str(end.error)
    assert world.now - asked_at < 3.0
    with pytest.raises(RouteError, match="4:8"):
        world.ask(gateway, order_of(20, 10))


def test_a_dial_that_failed_by_chance_does_not_keep_the_only_holder_out() -> None:
    """As right after a partition: a dial has failed, and the next one would not."""
    world, gateway = swarm_of(15, THREE)
    trim_all(world)
    addresses = (world.nodes[2].address,)
    gateway.put(lambda core, now: core.dial_failed(addresses, world.nodes[2].id, now))
    (model,) = gateway.core.models(world.now)
    assert [str(layers) for layers in model.missing] == ["4:8"]
    order = order_of(20, 10)
    session = world.ask(gateway, order)
    assert finish_right(world, session, order).stats.reroutes == 0


def test_a_pair_that_can_be_joined_from_one_side_only_is_joined_from_there() -> None:
    """The feeder's dials end nowhere; the hop that waits for it dials back."""
    world, gateway = swarm_of(10, THREE)
    first, second = world.nodes[1], world.nodes[2]
    world.trim(first, second)
    world.run_for(0.01)
    world.deaf_doors = {(first.id, second.id)}
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    assert finish_right(world, session, order).stats.reroutes == 0


def test_a_pair_that_cannot_be_joined_at_all_is_routed_around() -> None:
    world, gateway = swarm_of(11, [*THREE, (4, 8)])
    first, second, _, spare = world.nodes[1:]
    world.trim(first, second)
    world.trim(first, spare)
    world.run_for(0.01)
    world.deaf_doors = {(first.id, second.id), (second.id, first.id)}
    for number in range(3):
        order = order_of(20, 10, seed=number)
        session = world.ask(gateway, order)
        finish_right(world, session, order)
        assert spare in route_of(world, session)
    refused = [n for n in notes(gateway, "session.refused") if n.get("code") == "no_link"]
    assert len(refused) <= 1


def test_nobody_else_can_join_the_pair_and_the_answer_says_so() -> None:
    world, gateway = swarm_of(12, THREE)
    first, second = world.nodes[1], world.nodes[2]
    world.trim(first, second)
    world.run_for(0.01)
    world.deaf_doors = {(first.id, second.id), (second.id, first.id)}
    session = world.ask(gateway, order_of(20, 10))
    end = world.finish(session)
    assert isinstance(end, Failed)
    assert isinstance(end.error, RouteError)
    world.run_for(1.0)
    for node in world.nodes:
        assert not node.core.snapshot(world.now).hops
        assert not node.core._reach.wanted()


def test_a_pair_that_could_not_be_joined_is_tried_again_in_a_new_life_of_one() -> None:
    world, gateway = swarm_of(15, THREE)
    first, second = world.nodes[1], world.nodes[2]
    world.trim(first, second)
    world.run_for(0.01)
    world.deaf_doors = {(first.id, second.id), (second.id, first.id)}
    session = world.ask(gateway, order_of(20, 10))
    world.run_until(lambda: bool(gateway.core._origins.bad_wires.at(world.now)))
    world.deaf_doors = set()
    world.kill(second)
    world.run_for(1.0)
    world.restart(second)
    begun_at = world.now
    assert isinstance(world.finish(session), Finished)
    assert world.now - begun_at < 5.0, "it was left out for some 10 s"


def test_a_full_mesh_dials_nobody_for_a_session() -> None:
    world, gateway = swarm_of(13, THREE)
    dialled: list[object] = []
    for node in world.nodes:
        node.core._book.dial_now = lambda *call: dialled.append(call) or []  # type: ignore[method-assign,assignment,func-returns-value]
    session = world.ask(gateway, order_of(20, 20))
    world.finish(session)
    assert not dialled


def test_who_has_a_models_texts_is_dialled_where_nobody_linked_has_them() -> None:
    world, gateway = swarm_of(14, THREE)
    trim_all(world)
    core = gateway.core
    assert core.holders(MODEL.model_id) == ()
    gateway.put(lambda core, now: core.seek_holder(MODEL.model_id, now))
    world.run_for(0.05)
    assert len(core.holders(MODEL.model_id)) == HOLDERS_DIALLED
    assert not core.seek_holder(ModelId("x" * 32), world.now)
