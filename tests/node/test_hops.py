"""Whole nodes as hops: what they take on while they load, serve and leave."""

from __future__ import annotations

import pytest
from node_world import MODEL, World, WorldNode

from swarm.effects import Send
from swarm.messages import Open, Opened, RefusalCode, Refused
from swarm.terms import Epoch, LayerRange, Sampling, SessionId


def swarm_of_one(seed: int) -> tuple[World, WorldNode, WorldNode]:
    """A pure gateway, and one node with all layers that has just come up."""
    world = World(seed)
    gateway, hop = world.add(None), world.add((0, 12))
    world.run_until(lambda: gateway.id in hop.links)
    return world, gateway, hop


def answer(world: World, gateway: WorldNode, hop: WorldNode, number: int = 0, epoch: int = 1):  # type: ignore[no-untyped-def]
    """What the hop answers to an open from the gateway."""
    order = Open(
        SessionId(f"{number:016x}"), Epoch(epoch), MODEL.model_id, LayerRange(0, 12), True, True,
        gateway.id, gateway.id, 4, 8, Sampling(),
    )  # fmt: skip
    hop.core.receive(gateway.id, order, world.now)
    sent = [e.message for e in hop.core.take_effects() if isinstance(e, Send)]
    (found,) = (message for message in sent if isinstance(message, Opened | Refused))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_layers_that_are_still_loading_cannot_be_opened(seed: int) -> None:
    world, gateway, hop = swarm_of_one(seed)
    world.run_until(lambda: any(n.event == "shard.load" for n in hop.notes))
    assert not any(n.event == "shard.serving" for n in hop.notes)
    assert answer(world, gateway, hop).code is RefusalCode.NO_SHARD
    world.run_until(lambda: any(n.event == "shard.serving" for n in hop.notes))
    assert isinstance(answer(world, gateway, hop), Opened)


def test_a_lost_worker_takes_its_layers_along() -> None:
    world, gateway, hop = swarm_of_one(1)
    world.settle()
    world.crash_worker(hop)
    assert answer(world, gateway, hop).code is RefusalCode.NO_SHARD


def test_a_leaving_node_keeps_what_it_has_and_takes_nothing_new() -> None:
    world, gateway, hop = swarm_of_one(2)
    world.settle()
    assert isinstance(answer(world, gateway, hop, 1), Opened)
    hop.core.leave(world.now)
    assert answer(world, gateway, hop, 2).code is RefusalCode.LEAVING
    assert isinstance(answer(world, gateway, hop, 1, epoch=2), Opened)


def test_what_is_never_resumed_is_freed() -> None:
    world, gateway, hop = swarm_of_one(3)
    world.settle()
    assert isinstance(answer(world, gateway, hop), Opened)
    gateway.silent = True  # else it would tell the hop that it knows no such session
    due = world.now + world.config.routing.opened_max_s
    assert hop.core.next_deadline() is not None
    hop.core.heard(gateway.id, due - 1)
    hop.core.tick(due - 1)
    assert hop.core.snapshot(world.now).kv_used_bytes > 0
    hop.core.heard(gateway.id, due)
    hop.core.tick(due)
    assert hop.core.snapshot(world.now).kv_used_bytes == 0


def test_a_session_whose_origin_is_not_heard_is_freed_within_its_bound() -> None:
    world, gateway, hop = swarm_of_one(4)
    world.settle()
    assert isinstance(answer(world, gateway, hop), Opened)
    due = world.now + world.config.routing.origin_silence_max_s
    hop.core.tick(due - 1)
    assert hop.core.snapshot(world.now).kv_used_bytes > 0
    hop.core.tick(due)
    assert hop.core.snapshot(world.now).kv_used_bytes == 0
