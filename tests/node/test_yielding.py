"""A node gives way to its owner, comes back, and keeps to what the owner says meanwhile."""

from __future__ import annotations

import pytest
from node_world import World, WorldNode

from swarm.asks import Ask, ComeBack, GiveWay, LoadModel, UnloadModel
from swarm.errors import RequestError
from swarm.terms import LayerRange


def serves(node: WorldNode) -> bool:
    return bool(node.core._hosting.served())


def ask(node: WorldNode, order: Ask) -> None:
    node.put(lambda core, now: core.asked(order, now))


def gone() -> tuple[World, WorldNode]:
    """It has given way."""
    world = World(1)
    world.add((0, 12))
    node = world.add((0, 12))
    world.settle()
    ask(node, GiveWay("a game"))
    world.run_until(lambda: not serves(node), 15.0)
    world.run_for(2.0)
    return world, node


def test_it_comes_back_with_what_it_served() -> None:
    world, node = gone()
    ask(node, GiveWay("another game"))
    world.run_for(5.0)
    assert not serves(node) and node.worker_starts == 1
    ask(node, ComeBack())
    world.run_until(lambda: serves(node), 10.0)
    assert node.worker_starts == 2
    ask(node, ComeBack())
    world.run_for(5.0)
    assert serves(node) and node.worker_starts == 2


def test_what_its_owner_loads_meanwhile_is_served_and_unloaded_like_any_other() -> None:
    world, node = gone()
    ask(node, LoadModel("stub", "stub", LayerRange(0, 12)))
    world.run_until(lambda: serves(node), 10.0)
    ask(node, UnloadModel("stub"))
    world.run_until(lambda: not serves(node), 15.0)
    world.run_for(10.0)
    assert not node.core._hosting._running, "its worker has ended again"
    ask(node, ComeBack())
    world.run_for(10.0)
    assert not serves(node)


def test_who_gives_way_again_at_once_comes_back_all_the_same() -> None:
    world = World(1)
    world.add((0, 12))
    node = world.add((0, 12))
    world.settle()
    for order in (GiveWay("a game"), ComeBack(), GiveWay("another"), ComeBack()):
        ask(node, order)
    world.run_until(lambda: serves(node), 15.0)
    assert serves(node)


def test_what_its_owner_unloads_meanwhile_does_not_come_back() -> None:
    world, node = gone()
    ask(node, UnloadModel("stub"))
    assert [note.get("model") for note in node.notes if note.event == "shard.unloaded"] == [
        "stub", "stub"
    ]  # fmt: skip
    with pytest.raises(RequestError, match="not served here"):
        node.core.asked(UnloadModel("stub"), world.now)
    ask(node, ComeBack())
    world.run_for(10.0)
    assert not serves(node) and node.worker_starts == 1
