"""A story of answers whose every token depends on all tokens before it."""

from __future__ import annotations

from dataclasses import replace

from sims.request import Request
from sims.scenarios import PAIRS, hop, scenario
from sims.world import World
from swarm.terms import Sampling


@scenario("penalties")
async def penalties(world: World) -> None:
    """Heads are lost again and again under answers with penalties, some of which count the prompt.

    A new head must be told all tokens so far and none twice, one that stays must not count again
    what it is told, and one that stood by has heard a part.
    """
    for layers in (*PAIRS, PAIRS[-1]):
        world.start(world.add(world.serving(layers)))
    await world.settled()
    client = await world.client()
    requests = []
    for number in range(3):
        order = world.order(world.rng.choice((5, 40)), world.rng.choice((60, 120)))
        sampling = Sampling(
            seed=order.sampling.seed,
            presence_penalty=1.0,
            repetition_penalty=1.2 if number % 2 else 1.0,
        )
        requests.append(world.ask(client, replace(order, sampling=sampling)))
        await world.sleep(world.rng.random() * 0.1)
    for request in requests:
        for _ in range(3):
            await _lose(world, request)
        await request.over()


async def _lose(world: World, request: Request) -> None:
    """The head, mostly, or its worker; or another hop, so that the head stays and is told again."""
    await request.reached(len(request.tokens) + world.rng.randint(1, 20))
    if request.is_over or request.route is None:
        return
    index = 2 if world.rng.random() < 0.7 else world.rng.randrange(2)
    victim = hop(world, request, index)
    pause_s = world.rng.choice((0.0, 0.2, 1.0))
    if not victim.is_running:
        return
    if world.rng.random() < 0.3:
        world.crash_worker(victim)
        return
    world.kill(victim)
    await world.sleep(pause_s)
    world.restart(victim)
