"""A node whose identity lives on elsewhere: its sessions move away, and nobody departs."""

from __future__ import annotations

import asyncio

from node_world import order_of
from test_losses import THREE, at_token, finish_right, hop_nodes, swarm_of
from test_node_io import Bench, run

from swarm.effects import Finished
from swarm.terms import Address, MemberState

THERE = Address("10.0.0.7", 7000)


def test_a_hop_that_gives_its_identity_up_hands_its_session_over() -> None:
    world, gateway = swarm_of(19, THREE * 2)
    order = order_of(20, 40)
    session = world.ask(gateway, order)
    at_token(world, session, 5)
    leaver = hop_nodes(world, session)[1]
    leaver.put(lambda core, now: core.hand_over(now))
    world.run_until(lambda: leaver.core.is_idle, 2.0)
    states = {n.node: n.state for n in gateway.core.snapshot(world.now).nodes}
    assert states[leaver.id] is MemberState.ALIVE
    world.kill(leaver)
    assert finish_right(world, session, order).stats.reroutes == 1
    assert leaver not in hop_nodes(world, session)


def test_running_answers_are_waited_for() -> None:
    async def body(bench: Bench) -> None:
        generation = bench.io.generate(order_of(20, 30))
        going = asyncio.ensure_future(bench.io.hand_over(20.0))
        events = [event async for event in generation]
        assert isinstance(events[-1], Finished)
        await going
        assert not bench.io.left.is_set()

    run(body)


def test_who_keeps_the_identity_goes_on_and_who_yields_is_told() -> None:
    async def body(bench: Bench) -> None:
        bench.io.copy_met(THERE, yields=False)
        assert not bench.io.identity_lost.is_set()
        assert bench.io.keeper is None
        bench.io.copy_met(THERE, yields=True)
        bench.io.copy_met(Address("10.0.0.8", 7000), yields=True)
        assert bench.io.identity_lost.is_set()
        assert bench.io.keeper == THERE

    run(body)


def test_copies_are_told_of_once_each_and_not_without_end() -> None:
    async def body(bench: Bench) -> None:
        for port in range(1, 1000):
            for _ in range(2):
                bench.io.copy_met(Address("10.0.0.7", port), yields=False)
        told = [entry.get("address") for entry in bench.notes if entry.event == "node.copied"]
        assert len(told) == len(set(told)) == 64

    run(body)
