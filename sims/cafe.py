"""A cafe's day: machines whose people stay for very different times, and what knowing that saves.

Stays and absences are exponential, with means by kind of guest (minutes): the house's own machines
stay 180 and are away 5, regulars 60 and 10, guests 12 and 4, passers-by 2.5 and 1.5. Each third of
the model is held by one of each kind, with speeds drawn from 0.8 to 1.25 of the usual, whatever the
kind. Who holds layers alone is asked to stay. Whoever asks has watched a week of the same comings
and goings before, drawn anew.
"""

from __future__ import annotations

from sims.cafe_hours import KINDS, THIRDS, Kind, watched
from sims.inside import served_layers
from sims.node import SimNode, fresh_disk, id_of
from sims.scenarios import scenario
from sims.worker import Speed
from sims.world import LAYERS, World

HURRY = 10.0
"""In the story, which lasts a minute, everybody stays and is away so many times shorter."""
MINUTES = 1.0
LAYER_S = 0.004
STORY_TOKENS = (60, 150)


@scenario("cafe day", "minutes")
async def cafe_day(world: World) -> None:
    """Seats whose people stay for very different times log out in mid-answer and come back; who
    asks knows how long each used to stay."""
    draw = world.loop.random("cafe")
    seats: list[tuple[SimNode, Kind]] = []
    for layers in THIRDS:
        for kind in draw.sample(KINDS, len(KINDS)):
            speed = Speed(decode_s=LAYER_S * draw.uniform(0.8, 1.25))
            node = world.add(world.serving(layers, speed=speed))
            world.start(node)
            seats.append((node, Kind(kind.stay_s / HURRY, kind.away_s / HURRY)))
    disk = fresh_disk(draw)
    disk.stays = watched([(id_of(n.disk), kind) for n, kind in seats], draw, world.now_s)
    client = world.add(name="counter", disk=disk)
    world.start(client)
    await world.settled()
    end_s = world.now_s + 60.0 * (MINUTES if world.minutes is None else world.minutes)
    for node, kind in seats:
        world.loop.spawn(world.loop.world, _seat(world, node, kind, end_s))
    while world.now_s < end_s:
        request = world.ask(client, world.order(20, world.rng.choice(STORY_TOKENS)))
        await request.over()
        assert request.finished is not None, f"{request} was lost though there was cover"
    for node, _ in seats:
        world.restart(node)


async def _seat(world: World, node: SimNode, kind: Kind, end_s: float) -> None:
    """Somebody logs out, somebody logs in."""
    draw = world.loop.random(f"seat {node.number}")
    while True:
        await world.sleep(draw.expovariate(1 / kind.stay_s))
        while world.now_s < end_s and not _is_spared(world, node):
            await world.sleep(1.0)
        if world.now_s >= end_s:
            return
        world.kill(node)
        await world.sleep(draw.expovariate(1 / kind.away_s))
        if world.now_s >= end_s:
            return
        world.restart(node)
        await world.until(lambda: bool(node.is_up and served_layers(node)), 10.0)


def _is_spared(world: World, node: SimNode) -> bool:
    others = [n for n in world.running() if n is not node and n.is_up]
    return len({layer for n in others for layers in served_layers(n)
                for layer in range(layers.start, layers.stop)}) == LAYERS  # fmt: skip
