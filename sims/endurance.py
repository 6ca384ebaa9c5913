"""Long or special days that only figures are taken from; each factory gives a story.

They are no entries of the registry: what they do is measured, not judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from sims import wire
from sims.node import SimNode
from sims.scenarios import PAIRS
from sims.worker import Speed
from sims.world import World
from swarm.terms import LayerRange

THIRDS = ((0, 4), (4, 8), (8, 12))
PARTED_S = 15.0
"""Long enough for each half to hold the other for dead."""
HEAL_LIMIT_S = 60.0
STALL_S = (0.02, 0.3)
STALL_PAUSE_S = 2.0
"""Between two stalls, over all machines, on average."""
STARVED_S = 0.3
"""The starved machine stands still so long, then runs as long."""
STEADY_SPEED = Speed(decode_s=0.02, head_s=0.02)
"""About four tokens a second: an answer that goes on for hours and is cheap to simulate."""
STEADY_TOKENS = 2000

Story = Callable[[World], Coroutine[Any, Any, None]]


def healing(count: int, seconds: list[float]) -> Story:
    """Halves that hold each other for dead meet again. `seconds`: until all views are identical."""

    async def story(world: World) -> None:
        nodes = world.swarm(*(THIRDS[index % 3] for index in range(count)))
        await world.settled(60.0)
        await world.until(world.is_one_view, 60.0)
        world.rng.shuffle(nodes)
        world.partition(nodes[: count // 2], nodes[count // 2 :])
        await world.sleep(PARTED_S + world.rng.random())
        assert not any(_sees_across(world, nodes, node) for node in nodes), "the halves still meet"
        world.heal_all()
        began_s = world.now_s
        is_well = await world.until(lambda: _is_whole(world), HEAL_LIMIT_S, 0.02)
        seconds.append(world.now_s - began_s if is_well else float("inf"))

    return story


def _sees_across(world: World, nodes: list[SimNode], node: SimNode) -> bool:
    """Whether it holds anybody of the other half for alive. `nodes`: one half, then the other."""
    half = len(nodes) // 2
    others = nodes[half:] if node in nodes[:half] else nodes[:half]
    return any(other.id in world.alive_in(node) for other in others)


def _is_whole(world: World) -> bool:
    ids = {node.id for node in world.running()}
    return world.is_one_view() and all(world.alive_in(n) == ids for n in world.running())


def rough_weather(count: int, loss: float, minutes: float) -> Story:
    """Loss on every path, stalls all over, and one machine whose loop stands still half the time.
    Nobody dies."""

    async def story(world: World) -> None:
        nodes = world.swarm(*(THIRDS[index % 3] for index in range(count)))
        await world.settled(60.0)
        world.lossy(loss)
        end_s = world.now_s + 60.0 * minutes
        starving = world.loop.spawn(world.loop.world, _starve(world, nodes[0], end_s))
        while world.now_s < end_s:
            await world.sleep(world.rng.expovariate(1 / STALL_PAUSE_S))
            world.stall(world.rng.choice(nodes[1:]), world.rng.uniform(*STALL_S))
        await starving

    return story


async def _starve(world: World, node: SimNode, end_s: float) -> None:
    while world.now_s < end_s:
        world.stall(node, STARVED_S)
        await world.sleep(2 * STARVED_S)


def steady_answers(minutes: float, *, wifi: bool) -> Story:
    """One answer after the other over three hops; nothing goes wrong. Wi-Fi: the middle hop."""

    async def story(world: World) -> None:
        for layers in PAIRS:
            node = world.add(world.serving(layers, speed=STEADY_SPEED))
            world.start(node)
            if wifi and layers == THIRDS[1]:
                world.access(node, wire.WIFI)
        client = await world.client()
        end_s = world.now_s + 60.0 * minutes
        while world.now_s < end_s:
            await world.ask(client, world.order(8, STEADY_TOKENS)).over()

    return story


def layers_of(index: int) -> LayerRange:
    return LayerRange(*THIRDS[index % 3])
