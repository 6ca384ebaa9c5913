"""Long days: many machines, many losses, hour after hour."""

from __future__ import annotations

from sims.machine import SECOND_NS
from sims.node import SimNode
from sims.request import Outcome, Request
from sims.scenarios import scenario
from sims.world import LAYERS, World
from swarm.terms import Order

STORM_NODES = 20
STORM_MINUTES = 60.0
STRIKE_S = 10.0
"""Between two strikes of the storm."""
STRUCK_SHARE = 0.1
BACK_S = (2.0, 8.0)
"""A machine that was killed is switched on again after so long."""
QUIET_NODES = 10
QUIET_MINUTES = 1.0
THIRDS = ((0, 4), (4, 8), (8, 12))


@scenario("kill storm", "nodes", "minutes")
async def kill_storm(world: World) -> None:
    """Every ten seconds one machine in ten is killed, and comes back; clients ask all the time."""
    count = world.node_count or STORM_NODES
    nodes = world.swarm(*(THIRDS[index % 3] for index in range(count)))
    client = await world.client()
    end_s = world.now_s + 60.0 * (STORM_MINUTES if world.minutes is None else world.minutes)
    talk = world.loop.spawn(world.loop.world, _talk(world, client, end_s))
    while world.now_s + STRIKE_S < end_s:
        await world.sleep(STRIKE_S)
        if talk.done():
            break
        for victim in _victims(world, nodes):
            world.kill(victim)
            back_s = world.rng.uniform(*BACK_S)
            at_ns = world.loop.now_ns + int(back_s * SECOND_NS)
            world.loop.post(at_ns, world.loop.world, world.restart, victim)
    await talk


def _victims(world: World, nodes: list[SimNode]) -> list[SimNode]:
    """One in ten, chosen so that every layer stays served by somebody who is up and settled."""
    count = max(1, round(len(nodes) * STRUCK_SHARE))
    victims: list[SimNode] = []
    candidates = [node for node in nodes if node.is_running]
    world.rng.shuffle(candidates)
    for node in candidates:
        if len(victims) < count and _is_spared(world, nodes, [*victims, node]):
            victims.append(node)
    return victims


def _is_spared(world: World, nodes: list[SimNode], victims: list[SimNode]) -> bool:
    left = [n for n in nodes if n not in victims and world.truth.quiet_s(world.now_s, n.number) > 3]
    served = {layer for n in left if n.spec.layers for layer in range(*n.spec.layers)}
    return len(served) == LAYERS


async def _talk(world: World, client: SimNode, end_s: float) -> None:
    """Two clients, each asking again as soon as it has its answer."""
    open_ones = [world.ask(client, _order(world)) for _ in range(2)]
    while world.now_s < end_s:
        await open_ones[0].over()
        first = open_ones.pop(0)
        assert is_well(first), f"{first} was lost though there was cover: {first.error}"
        open_ones.append(world.ask(client, _order(world)))
    for request in open_ones:
        await request.over()


def _order(world: World) -> Order:
    return world.order(world.rng.choice((8, 20, 40)), world.rng.choice((20, 60, 200)))


def is_well(request: Request) -> bool:
    return request.outcome is Outcome.FINISHED


@scenario("quiet hours", "nodes", "minutes")
async def quiet_hours(world: World) -> None:
    """Nobody asks anything and nothing happens: what a swarm costs while it idles."""
    count = world.node_count or QUIET_NODES
    world.swarm(*(THIRDS[index % 3] for index in range(count)))
    await world.sleep(60.0 * (QUIET_MINUTES if world.minutes is None else world.minutes))
