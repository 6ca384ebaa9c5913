"""Stories of machines that cannot reach each other, and of those between them."""

from __future__ import annotations

from sims.node import NodeSpec, SimNode
from sims.scenarios import scenario
from sims.world import World

OPENED_LIMIT_S = 400.0
"""A direct link is tried ever more seldom: up to eight times half a minute, and half as much."""


def is_relayed(node: SimNode, other: SimNode) -> bool:
    return any(peer.node == other.id and peer.via is not None for peer in node.links.peers())


def set_wall(world: World, one: SimNode, other: SimNode, *, stands: bool) -> None:
    change = world.net.forbid_dial if stands else world.net.allow_dial
    change(one.machine, other.machine)
    change(other.machine, one.machine)


@scenario("a third between")
async def a_third_between(world: World) -> None:
    """Two machines with half of the model each can meet only by a third, which dies in mid-answer
    and has its place taken by a fourth; at last the wall between the two comes down."""
    first, last = world.add(world.serving((0, 6))), world.add(world.serving((6, 12)))
    middle, spare = world.add(NodeSpec()), world.add(NodeSpec())
    set_wall(world, first, last, stands=True)
    for node in (middle, first, last):
        world.start(node)
    await world.settled()
    assert await world.until(lambda: is_relayed(first, last), 20.0)
    await world.ask(first).over()
    world.start(spare)
    await world.settled()
    request = world.ask(first)
    await request.reached(world.rng.randint(1, 15))
    world.kill(middle)
    await request.over()
    assert request.finished is not None
    assert is_relayed(first, last)
    set_wall(world, first, last, stands=False)
    assert await world.until(lambda: not is_relayed(first, last), OPENED_LIMIT_S, 0.5)
    again = world.ask(last)
    await again.over()
    assert again.finished is not None and not again.finished.stats.reroutes
