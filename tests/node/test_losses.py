"""Whole nodes in virtual time: whatever is lost in mid-answer, the ids stay those of the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_world import World, WorldNode, oracle, order_of, quick_config

from swarm.effects import Failed, Finished, Started
from swarm.errors import KvExhausted, NoRoute
from swarm.routing.avoidance import Offence
from swarm.terms import NumericClass, SessionId

THREE = [(0, 4), (4, 8), (8, 12)]


def swarm_of(seed: int, ranges: list[tuple[int, int]], **more: int) -> tuple[World, WorldNode]:
    """A pure gateway and one node per range, settled."""
    world = World(seed)
    gateway = world.add(None)
    for layers in ranges:
        world.add(layers, **more)
    world.settle()
    return world, gateway


def hop_nodes(world: World, session: SessionId) -> list[WorldNode]:
    """The nodes of the newest route, in order."""
    route = [e.route for e in world.replies[session] if isinstance(e, Started)][-1]
    return [next(n for n in world.nodes if n.id == hop.node) for hop in route.hops]


def at_token(world: World, session: SessionId, count: int) -> None:
    if count:
        world.run_until(lambda: len(world.tokens(session)) >= count)
    else:
        world.run_until(lambda: any(isinstance(e, Started) for e in world.replies[session]))


def assert_nothing_left(world: World) -> None:
    world.run_for(3.0)
    for node in world.nodes:
        if node.alive:
            snapshot = node.core.snapshot(world.now)
            assert not snapshot.sessions
            assert not snapshot.hops
            assert snapshot.kv_used_bytes == 0
            assert not node.worker.jobs


def finish_right(world: World, session: SessionId, order) -> Finished:  # type: ignore[no-untyped-def]
    end = world.finish(session)
    assert isinstance(end, Finished), end
    assert world.tokens(session) == oracle(order)
    assert end.stats.exact
    return end


def test_who_was_silent_for_a_moment_is_asked_where_nobody_else_serves() -> None:
    world, gateway = swarm_of(1, THREE)
    only = world.nodes[2]
    incarnation = gateway.core._picture.incarnation_of(only.id)
    assert incarnation is not None
    box = gateway.core._sentinel.penalties
    for _ in range(3):
        box.punish(only.id, incarnation, Offence.SILENT, world.now)
    with pytest.raises(NoRoute):
        gateway.core.generate(SessionId("early"), order_of(5, 5), world.now)
    gateway.core.heard(only.id, world.now)
    assert box.remaining_s(only.id, incarnation, world.now) > 0
    assert gateway.core.models(world.now)[0].covered
    order = order_of(5, 5)
    finish_right(world, world.ask(gateway, order), order)


@pytest.mark.parametrize("prompt_count", [1, 7, 8, 9, 24])
@pytest.mark.parametrize("ranges", [[(0, 12)], THREE, [(0, 1), (1, 11), (11, 12)]])
def test_undisturbed(ranges: list[tuple[int, int]], prompt_count: int) -> None:
    world, gateway = swarm_of(1, ranges)
    order = order_of(prompt_count, 12)
    session = world.ask(gateway, order)
    assert finish_right(world, session, order).stats.reroutes == 0
    assert_nothing_left(world)


@pytest.mark.parametrize("how", ["kill", "vanish"])
@pytest.mark.parametrize("token", [0, 1, 2, 17, 19])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_hop_lost(place: int, token: int, how: str) -> None:
    world, gateway = swarm_of(2, THREE + THREE)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, token)
    lost = hop_nodes(world, session)[place]
    (world.kill if how == "kill" else world.vanish)(lost)
    end = finish_right(world, session, order)
    assert end.stats.reroutes >= 1
    healthy = [n.id for n in world.nodes if n.alive]
    for node in gateway.core.snapshot(world.now).nodes:
        assert node.penalty_s == 0 or node.node not in healthy
    assert_nothing_left(world)


@pytest.mark.parametrize("seed", range(12))
def test_two_neighbours_lost_at_once(seed: int) -> None:
    world, gateway = swarm_of(seed, THREE + THREE)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    first, second, third = hop_nodes(world, session)
    for node in [(first, second), (second, third), (first, third)][seed % 3]:
        world.kill(node)
    finish_right(world, session, order)
    assert_nothing_left(world)


@pytest.mark.parametrize("seed", range(12))
def test_replacement_lost_during_rebuild(seed: int) -> None:
    world, gateway = swarm_of(seed, THREE * 3)
    order = order_of(40, 30)
    session = world.ask(gateway, order)
    at_token(world, session, 20)
    world.kill(hop_nodes(world, session)[1])
    world.run_until(lambda: len([e for e in world.replies[session] if isinstance(e, Started)]) > 1)
    world.run_for(0.002 * seed)
    world.kill(hop_nodes(world, session)[1])
    end = finish_right(world, session, order)
    assert end.stats.reroutes >= 2
    assert_nothing_left(world)


@pytest.mark.parametrize("seed", range(6))
def test_upstream_with_the_outbox_lost_too(seed: int) -> None:
    """First the middle is replaced, then the hop that resent to it."""
    world, gateway = swarm_of(seed, THREE * 2)
    order = order_of(30, 30)
    session = world.ask(gateway, order)
    at_token(world, session, 10)
    first, second, _ = hop_nodes(world, session)
    world.kill(second)
    world.run_until(lambda: len([e for e in world.replies[session] if isinstance(e, Started)]) > 1)
    world.run_for(0.003 * seed)
    world.kill(first)
    finish_right(world, session, order)
    assert_nothing_left(world)


def test_outbox_budget_exhausted() -> None:
    """Rows that were evicted are computed again, from further upstream."""
    config = quick_config()
    world = World(3, replace(config, routing=replace(config.routing, outbox_bytes_max=64)))
    gateway = world.add(None)
    for layers in THREE * 2:
        world.add(layers)
    world.settle()
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 10)
    assert any(note.event == "outbox.evicted" for n in world.nodes for note in n.notes)
    world.kill(hop_nodes(world, session)[2])
    finish_right(world, session, order)
    assert_nothing_left(world)


def test_worker_crash_and_return() -> None:
    world, gateway = swarm_of(4, THREE)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    world.crash_worker(hop_nodes(world, session)[1])
    finish_right(world, session, order)
    assert_nothing_left(world)


def test_wedged_worker_is_left_behind() -> None:
    world, gateway = swarm_of(5, THREE * 2)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    wedged = hop_nodes(world, session)[1]
    wedged.worker.wedged = True
    finish_right(world, session, order)
    assert wedged not in hop_nodes(world, session)


def test_cut_between_two_hops_only() -> None:
    world, gateway = swarm_of(6, THREE * 2)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    first, second, _ = hop_nodes(world, session)
    world.cut(first, second)
    finish_right(world, session, order)


def test_restart_with_the_same_key_covers_again() -> None:
    world, gateway = swarm_of(7, THREE)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    lost = hop_nodes(world, session)[1]
    world.kill(lost)
    world.run_for(0.5)
    world.restart(lost)
    finish_right(world, session, order)
    ids = [node.node for node in gateway.core.snapshot(world.now).nodes]
    assert len(ids) == len(set(ids)) == 4
    assert_nothing_left(world)


def test_cover_never_returns() -> None:
    world, gateway = swarm_of(8, THREE)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    world.kill(hop_nodes(world, session)[1])
    end = world.finish(session)
    assert isinstance(end, Failed)
    assert isinstance(end.error, NoRoute)
    assert "4:8" in str(end.error)
    assert world.tokens(session) == oracle(order)[: len(world.tokens(session))]
    with pytest.raises(NoRoute, match="4:8"):
        world.ask(gateway, order)
    assert_nothing_left(world)


def test_origin_lost_frees_every_hop_at_once() -> None:
    world, gateway = swarm_of(9, THREE)
    session = world.ask(gateway, order_of(20, 200))
    at_token(world, session, 5)
    world.kill(gateway)
    world.run_for(0.1)
    for node in world.nodes[1:]:
        assert not node.core.snapshot(world.now).hops
        assert not node.worker.jobs


def test_client_gone_frees_every_hop() -> None:
    world, gateway = swarm_of(10, THREE)
    session = world.ask(gateway, order_of(20, 200))
    at_token(world, session, 5)
    gateway.put(lambda core, now: core.cancel(session, now))
    world.run_for(0.1)
    for node in world.nodes:
        assert not node.core.snapshot(world.now).hops
        assert not node.core.snapshot(world.now).sessions


def test_full_swarm_refuses_before_any_token() -> None:
    world, gateway = swarm_of(11, THREE, kv_bytes=20_000)
    with pytest.raises(KvExhausted):
        world.ask(gateway, order_of(50_000, 20))


def test_replacement_of_another_class_is_said() -> None:
    world = World(12)
    gateway = world.add(None)
    for layers in THREE:
        world.add(layers)
    spare = world.add((4, 8))
    spare.worker.numeric_class = NumericClass("other")
    world.settle()
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    second = hop_nodes(world, session)[1]
    world.kill(second)
    end = world.finish(session)
    assert isinstance(end, Finished)
    assert not end.stats.exact


def test_same_class_is_preferred() -> None:
    world = World(13)
    gateway = world.add(None)
    for layers in [*THREE, (4, 8), (4, 8)]:
        world.add(layers)
    world.nodes[4].worker.numeric_class = NumericClass("other")
    world.settle()
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    world.kill(hop_nodes(world, session)[1])
    end = world.finish(session)
    assert isinstance(end, Finished)
    assert end.stats.exact or hop_nodes(world, session)[1] is not world.nodes[4]


@pytest.mark.parametrize("seed", range(8))
def test_many_sessions_and_a_storm(seed: int) -> None:
    """Started = finished + failed, and every finished answer is right."""
    world, gateway = swarm_of(seed, THREE * 3)
    orders = [order_of(1 + world.rng.randrange(40), 30, seed=i) for i in range(12)]
    sessions = [world.ask(gateway, order) for order in orders]
    for _ in range(4):
        world.run_for(world.rng.uniform(0.05, 0.3))
        victim = world.rng.choice([n for n in world.nodes[1:] if n.alive])
        world.kill(victim)
        world.after(0.4, lambda victim=victim: world.restart(victim))
    for session, order in zip(sessions, orders, strict=True):
        end = world.finish(session)
        assert isinstance(end, Finished), end
        assert world.tokens(session) == oracle(order)
    assert_nothing_left(world)


def test_joining_node_changes_no_live_route() -> None:
    world, gateway = swarm_of(14, THREE)
    order = order_of(20, 60)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    world.add((0, 12))
    end = finish_right(world, session, order)
    assert end.stats.reroutes == 0


def test_budget_counts_tokens_over_attempts() -> None:
    world, gateway = swarm_of(15, THREE * 2)
    order = order_of(10, 10)
    session = world.ask(gateway, order)
    at_token(world, session, 9)
    world.kill(hop_nodes(world, session)[0])
    finish_right(world, session, order)
    assert len(world.tokens(session)) == 10


def test_vanished_origin_is_noticed_and_freed() -> None:
    world, gateway = swarm_of(16, THREE)
    session = world.ask(gateway, order_of(20, 2000))
    at_token(world, session, 5)
    world.vanish(gateway)
    world.run_for(15.0)
    for node in world.nodes[1:]:
        assert not node.core.snapshot(world.now).hops
        assert not node.worker.jobs


def test_wedged_worker_behind_the_origins_own_hop() -> None:
    """The origin is the first hop itself; the blame falls on the hop that really stands still."""
    world = World(17)
    first = world.add((0, 4))
    for layers in [(4, 8), (8, 12), (4, 8)]:
        world.add(layers)
    world.settle()
    order = order_of(20, 20)
    session = world.ask(first, order)
    at_token(world, session, 5)
    wedged = hop_nodes(world, session)[1]
    wedged.worker.wedged = True
    end = finish_right(world, session, order)
    assert end.stats.reroutes == 1
    assert wedged not in hop_nodes(world, session)


def test_a_node_alone_notices_that_its_own_worker_is_wedged() -> None:
    world = World(18)
    alone = world.add((0, 12))
    world.settle()
    order = order_of(20, 20)
    session = world.ask(alone, order)
    at_token(world, session, 5)
    alone.worker.wedged = True
    finish_right(world, session, order)
    assert alone.worker_starts == 2


def test_leaving_hop_hands_its_session_over() -> None:
    world, gateway = swarm_of(19, THREE * 2)
    order = order_of(20, 40)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    leaver = hop_nodes(world, session)[1]
    leaver.put(lambda core, now: core.leave(now))
    world.run_until(lambda: leaver.core.is_idle, 2.0)
    leaver.put(lambda core, now: core.depart(now))
    world.kill(leaver)
    end = finish_right(world, session, order)
    assert end.stats.reroutes == 1
    assert leaver not in hop_nodes(world, session)
    states = {n.node: n.state.value for n in gateway.core.snapshot(world.now).nodes}
    assert states[leaver.id] == "left"


@pytest.mark.parametrize("seed", range(4))
def test_soft_alarms_cost_nothing_and_leave_nothing(seed: int) -> None:
    """A hop is quiet for 150 ms now and then: no reroute, and no reservation stays behind."""
    world, gateway = swarm_of(seed, THREE * 2)
    order = order_of(20, 60)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    hop = hop_nodes(world, session)[1]
    hop.silent = True
    world.run_for(0.15)
    hop.silent = False
    world.run_for(0.3)
    assert any(n.event == "peer.quiet" for n in gateway.notes)
    world.kill(hop)
    finish_right(world, session, order)
    assert_nothing_left(world)


def test_a_release_that_was_lost_is_made_good() -> None:
    world, gateway = swarm_of(20, THREE)
    session = world.ask(gateway, order_of(20, 200))
    at_token(world, session, 5)
    gateway.silent = True
    gateway.put(lambda core, now: core.cancel(session, now))
    gateway.silent = False
    world.run_for(0.2)
    assert_nothing_left(world)


def test_leaving_hop_that_nobody_can_replace_serves_to_the_end() -> None:
    world, gateway = swarm_of(21, THREE)
    order = order_of(20, 40)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    leaver = hop_nodes(world, session)[1]
    leaver.put(lambda core, now: core.leave(now))
    assert finish_right(world, session, order).stats.reroutes == 0
    world.run_until(lambda: leaver.core.is_idle, 2.0)
    with pytest.raises(NoRoute, match="4:8"):
        world.ask(gateway, order)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03])
def test_two_hosts_vanish_one_after_the_other(delay_s: float) -> None:
    """The second is noticed by its own silence, not by the time limit for opening."""
    world, gateway = swarm_of(22, THREE * 2)
    order = order_of(20, 20)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    first, second, _ = hop_nodes(world, session)
    world.vanish(second)
    world.run_for(delay_s)
    world.vanish(first)
    end = finish_right(world, session, order)
    assert max(end.stats.stall_s) < 1.5
