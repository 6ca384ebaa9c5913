"""Many sessions at once: a busy hop is not blamed, spares are used, alarms stay cheap."""

from __future__ import annotations

from node_world import World, WorldNode, oracle, order_of

from swarm.effects import Finished, Started

THREE = [(0, 4), (4, 8), (8, 12)]


def swarm_of(ranges: list[tuple[int, int]]) -> tuple[World, WorldNode]:
    world = World(1)
    gateway = world.add(None)
    for layers in ranges:
        world.add(layers)
    world.settle()
    return world, gateway


def test_a_hop_that_serves_many_is_busy_and_not_stuck() -> None:
    """Each session waits far longer than a stuck hop may take; nobody is punished or left."""
    world, gateway = swarm_of(THREE)
    orders = [order_of(600, 3, seed=i) for i in range(30)]
    sessions = [world.ask(gateway, order) for order in orders]
    for session, order in zip(sessions, orders, strict=True):
        end = world.finish(session)
        assert isinstance(end, Finished), end
        assert end.stats.reroutes == 0
        assert world.tokens(session) == oracle(order)
    longest = world.now - 102.5
    assert longest > world.config.routing.stuck_min_s
    assert not any(note.event == "peer.penalty" for node in world.nodes for note in node.notes)


def test_requests_that_come_together_use_the_spares() -> None:
    world, gateway = swarm_of(THREE * 2)
    sessions = [world.ask(gateway, order_of(10, 30, seed=i)) for i in range(12)]
    world.run_for(0.1)
    used: dict[str, int] = {}
    for session in sessions:
        (started,) = [e for e in world.replies[session] if isinstance(e, Started)]
        for node in started.route.nodes:
            used[node] = used.get(node, 0) + 1
    assert len(used) == 6
    assert max(used.values()) <= 8


def test_soft_alarms_plan_once_for_each_session() -> None:
    """A wedged hop without a replacement is planned around once, not in every interval."""
    world, gateway = swarm_of(THREE)
    sessions = [world.ask(gateway, order_of(10, 60, seed=i)) for i in range(8)]
    world.run_until(lambda: all(len(world.tokens(s)) > 3 for s in sessions))
    planned = 0
    planner = gateway.core._origins._planner
    plan = planner.plan

    def counted(request):  # type: ignore[no-untyped-def]
        nonlocal planned
        planned += 1
        return plan(request)

    planner.plan = counted  # type: ignore[method-assign]
    world.nodes[2].worker.wedged = True
    world.run_for(2.0)
    assert 0 < planned <= 2 * len(sessions)
