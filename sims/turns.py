"""Stories of prompts that begin alike, and of more answers than there is room for."""

from __future__ import annotations

from dataclasses import replace

from sims.request import Outcome, Request
from sims.scenarios import PAIRS, hop, scenario
from sims.stage import REFERENCE_CLASS, VOCABULARY
from sims.world import World
from swarm.messages import KV_BLOCK_TOKENS
from swarm.terms import NumericClass, Order, Sampling

THIRDS = ((0, 4), (4, 8), (8, 12))
TIGHT_BLOCKS = 24
TIGHT_GROWTH = 32
BLOCK_BYTES = KV_BLOCK_TOKENS * 4 * 100
"""Of four layers of the stub model."""


def next_turn(world: World, last: Request, new_count: int, max_tokens: int) -> Order:
    """The conversation so far, and what its client says now."""
    draw = world.rng.getrandbits(31)
    said = tuple(1 + (draw + 11 * i) % (VOCABULARY - 1) for i in range(new_count))
    ids = (*last.order.prompt_ids, *last.tokens, *said)
    return Order(last.order.model_id, ids, max_tokens, Sampling(seed=draw), frozenset())


@scenario("chat")
async def chat(world: World) -> None:
    """A conversation of seven turns; from the third on hops are lost in the middle and between.

    In half of the runs spares are of another numeric class than those they stand in for.
    """
    spares = REFERENCE_CLASS if world.rng.random() < 0.5 else NumericClass("other")
    for index, layers in enumerate(PAIRS):
        numeric_class = spares if index % 2 else REFERENCE_CLASS
        world.start(world.add(world.serving(layers, numeric_class=numeric_class)))
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(70, 40))
    await request.over()
    for turn in range(2, 8):
        if turn > 2 and world.rng.random() < 0.5:
            world.kill(hop(world, request, world.rng.randrange(3)))
            await world.sleep(world.rng.choice((0.0, 0.1, 3.0)))
        held = len(request.order.prompt_ids) + len(request.tokens) - 1
        request = world.ask(client, next_turn(world, request, world.rng.choice((5, 40)), 30))
        if turn > 2:
            await _disturb(world, request)
        await request.over()
        if request.outcome is not Outcome.FINISHED:
            return
        if turn == 2:
            assert request.finished is not None
            cached = request.finished.stats.cached_tokens
            assert cached == held - held % KV_BLOCK_TOKENS, f"{cached} of {held} were reused"
        for node in world.nodes:
            if not node.is_running:
                world.restart(node)


async def _disturb(world: World, request: Request) -> None:
    """A hop may be lost while it answers, its worker alone or all of it; or the client leaves."""
    await request.reached(world.rng.randint(0, 20))
    draw = world.rng.random()
    if draw < 0.6 and request.route is not None and not request.is_over:
        victim = hop(world, request, world.rng.randrange(3))
        if victim.is_running:
            (world.kill if draw < 0.4 else world.crash_worker)(victim)


@scenario("full house")
async def full_house(world: World) -> None:
    """Ten answers, half of them to one long prompt, grow into room for three: the youngest wait."""
    world.is_tight = True
    routing = replace(world.config.routing, kv_growth_tokens=TIGHT_GROWTH)
    world.config = replace(world.config, routing=routing)
    kv_bytes = TIGHT_BLOCKS * BLOCK_BYTES
    for layers in THIRDS:
        node = world.add(world.serving(layers, weight_bytes=6000, kv_bytes=kv_bytes))
        world.start(node)
    await world.settled()
    client = await world.client()
    prompt = world.order(66).prompt_ids
    requests = []
    for _ in range(10):
        order = world.order(world.rng.choice((5, 40, 60)), world.rng.choice((100, 180)))
        if world.rng.random() < 0.5:
            order = replace(order, prompt_ids=(*prompt, *order.prompt_ids[:5]))
        requests.append(world.ask(client, order))
        await world.sleep(world.rng.random() * 0.2)
    for request in requests:
        await request.over()
    assert any(request.outcome is Outcome.FINISHED for request in requests)
    moved = sum(n for (_, event), n in world.note_counts.items() if event == "session.preempted")
    assert moved, "nobody had to make room"
