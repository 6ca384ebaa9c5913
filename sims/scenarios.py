"""Bad days, told as stories. Each takes a fresh world; the invariants judge it afterwards.

A story sets the scene, asks for answers, breaks things and waits. Times, victims and kill points
are drawn from the world's own stream, so that every seed tells the story a little differently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sims import replay, wire
from sims.node import SimNode
from sims.request import Request
from sims.runner import Story
from sims.worker import Speed
from sims.world import World
from swarm.messages import Release, Step
from swarm.terms import NodeId, NumericClass

REGISTRY: dict[str, Scenario] = {}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`takes`: which of the world's wishes ("nodes", "minutes") the story heeds."""

    name: str
    says: str
    story: Story
    takes: tuple[str, ...] = ()


def scenario(name: str, *takes: str) -> Callable[[Callable[[World], Awaitable[None]]], Story]:
    """Enter a story under a name; the first paragraph of its docstring says what it tells."""

    def enter(story: Callable[[World], Awaitable[None]]) -> Story:
        says = " ".join((story.__doc__ or "").split("\n\n")[0].split())
        REGISTRY[name] = Scenario(name, says, story, takes)
        return story

    return enter


PAIRS = ((0, 4), (0, 4), (4, 8), (4, 8), (8, 12), (8, 12))
"""Every layer twice: any one node may be lost."""


OTHER_CLASS = NumericClass("another stub")
SLOWER = Speed(decode_s=0.002, prefill_s=0.0002)
HALL_NODES = 50
FOUR_LAYERS_BYTES = 6500
"""Room for embedding, head and four layers of the stub model."""


def hop(world: World, request: Request, index: int) -> SimNode:
    """The node at that place of the request's present route."""
    return world.node_of(request.hops[index])


def other_than(world: World, *nodes: SimNode) -> SimNode:
    """Some running node that is none of these."""
    return world.rng.choice([node for node in world.running() if node not in nodes])


@scenario("join storm", "nodes")
async def join_storm(world: World) -> None:
    """Twenty machines are switched on within a second, each choosing its layers by itself."""
    for _ in range(world.node_count or 20):
        node = world.add(world.serving(None, weight_bytes=world.rng.choice((4500, 7000, 14000))))
        world.start(node)
        await world.sleep(world.rng.random() * 0.05)
    await world.settled()
    requests = [world.ask(world.rng.choice(world.nodes)) for _ in range(4)]
    for request in requests:
        await request.over()


@scenario("another class")
async def another_class(world: World) -> None:
    """Machines that compute a little differently stand by: an answer that needs one says so."""
    for layers in PAIRS[::2]:
        world.start(world.add(world.serving(layers)))
        world.start(world.add(world.serving(layers, numeric_class=OTHER_CLASS, speed=SLOWER)))
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(20, 40))
    await request.reached(world.rng.randint(1, 15))
    victim = hop(world, request, world.rng.randrange(3))
    world.kill(victim)
    await request.over()
    assert request.finished is not None and not request.finished.stats.exact
    world.restart(victim)
    await world.settled()
    again = world.ask(client, world.order(20, 40))
    await again.over()
    assert again.finished is not None and again.finished.stats.exact


@scenario("three hops")
async def three_hops(world: World) -> None:
    """Three machines hold a third of the model each; nothing goes wrong."""
    nodes = world.swarm((0, 4), (4, 8), (8, 12))
    await world.settled()
    for node in nodes:
        await world.ask(node).over()


@scenario("peer death")
async def peer_death(world: World) -> None:
    """A hop is killed just before its n-th step leaves; another has the same layers."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(await world.client())
    await request.reached(1)
    victim = hop(world, request, world.rng.randrange(3))
    world.at_step(victim, world.rng.randint(1, 15), lambda: world.kill(victim))
    await request.over()
    assert victim in nodes


@scenario("silent death")
async def silent_death(world: World) -> None:
    """A hop's machine loses its power in mid-answer: nobody is told."""
    world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(await world.client())
    await request.reached(world.rng.randint(1, 15))
    world.vanish(hop(world, request, world.rng.randrange(3)))
    await request.over()


@scenario("double death")
async def double_death(world: World) -> None:
    """Two hops are lost at once, then the replacement of one while it rebuilds."""
    world.swarm(*PAIRS, (4, 8), (0, 4))
    await world.settled()
    request = world.ask(await world.client(), world.order(40, 30))
    await request.reached(world.rng.randint(1, 20))
    before = [hop(world, request, index) for index in range(3)]
    world.kill(before[0])
    (world.kill if world.rng.random() < 0.5 else world.vanish)(before[1])
    await world.until(lambda: before[1].id not in request.hops or request.is_over, 10.0, 0.001)
    await world.sleep(world.rng.random() * 0.05)
    replacement = hop(world, request, 1)
    if replacement.is_running and not request.is_over:
        world.kill(replacement)
    await request.over()


@scenario("partition and heal")
async def partition_and_heal(world: World) -> None:
    """The switch between two halves fails in mid-answer, and works again."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    requests = [world.ask(node) for node in nodes[:4]]
    await requests[0].reached(3)
    world.partition(nodes[::2], nodes[1::2])
    await world.sleep(world.rng.choice((0.3, 2.0, 12.0)))
    world.heal_all()
    for request in requests:
        await request.over()
    await world.until(lambda: world.is_settled() and world.is_one_view(), 20.0)
    await world.ask(nodes[0]).over()


@scenario("islands")
async def islands(world: World) -> None:
    """Two swarms that never met grow on both sides of a cut, until one cable joins them."""
    nodes = [world.add(world.serving(layers)) for layers in (*PAIRS, *PAIRS)]
    half = len(nodes) // 2
    world.partition(nodes[:half], nodes[half:])
    for node in nodes:
        world.start(node)
    await world.until(lambda: all(len(world.alive_in(n)) == half for n in nodes), 20.0)
    await world.sleep(5.0)
    requests = [world.ask(nodes[0]), world.ask(nodes[-1])]
    world.heal_all()
    await world.settled(60.0)
    for request in requests:
        await request.over()


@scenario("flapping wi-fi")
async def flapping_wifi(world: World) -> None:
    """Two of the machines are on Wi-Fi; one of them drops out for seconds, again and again."""
    nodes = world.swarm(*PAIRS)
    for node in nodes[1:3]:
        world.access(node, wire.WIFI)
    await world.settled()
    requests = [world.ask(node, world.order(20, 60)) for node in nodes[:3]]
    for _ in range(6):
        await world.sleep(world.rng.uniform(0.2, 2.0))
        world.partition([nodes[1]], [n for n in nodes if n is not nodes[1]])
        await world.sleep(world.rng.uniform(0.1, 2.5))
        world.heal_all()
    for request in requests:
        await request.over()


@scenario("cafe closing time")
async def cafe_closing_time(world: World) -> None:
    """Machines are switched off one after the other, some by the plug, until one is left."""
    nodes = world.swarm((0, 12), *PAIRS, None, None)
    await world.settled()
    last = nodes[0]
    requests = [world.ask(last, world.order(20, 60)) for _ in range(2)]
    closing = nodes[1:]
    world.rng.shuffle(closing)
    for node in closing:
        await world.sleep(world.rng.uniform(0.1, 1.0))
        world.rng.choice((world.leave, world.leave, world.kill, world.vanish))(node)
    for request in requests:
        await request.over()
    await world.ask(last).over()


@scenario("one slow node")
async def one_slow_node(world: World) -> None:
    """A hop's worker becomes five times slower for a while: somebody plays a game on it."""
    world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(await world.client(), world.order(20, 120))
    await request.reached(10)
    world.slow_worker(hop(world, request, world.rng.randrange(3)), 5.0, world.rng.uniform(1, 6))
    await request.over()


@scenario("wedged node")
async def wedged_node(world: World) -> None:
    """A hop's worker takes work and never answers again."""
    world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(20, 40))
    await request.reached(world.rng.randint(1, 20))
    victim = hop(world, request, world.rng.randrange(3))
    world.wedge(victim)
    await request.over()
    for _ in range(3):
        await world.ask(client).over()
    await world.sleep(20.0)
    await world.ask(client).over()


@scenario("worker crash")
async def worker_crash(world: World) -> None:
    """A hop's worker process dies in a step; its daemon lives on and starts it anew."""
    world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(await world.client(), world.order(30, 40))
    await request.reached(1)
    victim = hop(world, request, world.rng.randrange(3))
    world.at_step(victim, world.rng.randint(1, 30), lambda: world.crash_worker(victim))
    await request.over()


@scenario("cloned identity")
async def cloned_identity(world: World) -> None:
    """A machine is set up from the disk image of another one, key and all."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(nodes[0], world.order(20, 60))
    twins = [world.clone(nodes[1]) for _ in range(world.rng.randint(1, 3))]
    for twin in twins:
        await world.sleep(world.rng.uniform(0.0, 1.0))
        world.start(twin)
    await request.over()
    if not await world.until(lambda: len(_ids(world)) == len(world.nodes), 20.0):
        return
    await world.settled()
    await world.ask(nodes[0]).over()


def _ids(world: World) -> set[NodeId]:
    return {node.id for node in world.running()}


@scenario("rolling restart")
async def rolling_restart(world: World) -> None:
    """Every machine is restarted in turn, some cleanly, some by kill -9, one with a new key."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    for node in nodes:
        request = world.ask(client, world.order(20, 60))
        await request.reached(world.rng.randint(1, 30))
        world.rng.choice((world.leave, world.kill))(node)
        await world.until(lambda node=node: not node.is_running, 15.0)  # type: ignore[misc]
        await world.sleep(world.rng.choice((0.0, 0.5, 3.0)))
        world.restart(node, new_key=node is nodes[3])
        await request.over()
        await world.settled(40.0)


@scenario("cold start")
async def cold_start(world: World) -> None:
    """The power fails for all at once, and comes back for all at once; one disk is damaged."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    lost = world.ask(nodes[0], world.order(20, 60))
    await lost.reached(3)
    for node in nodes:
        world.vanish(node)
    world.lose_incarnation(nodes[2])
    await world.sleep(world.rng.uniform(1.0, 60.0))
    for node in nodes:
        await world.sleep(world.rng.random() * 0.3)
        world.restart(node)
    await world.settled(40.0)
    await world.ask(nodes[0]).over()


@scenario("gateway lost")
async def gateway_lost(world: World) -> None:
    """The node that took the request is lost; every hop must free what it held for it."""
    world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(40, 60))
    await request.reached(world.rng.randint(0, 30))
    world.rng.choice((world.kill, world.vanish))(client)
    await world.sleep(10.0)


@scenario("lid closed")
async def lid_closed(world: World) -> None:
    """A laptop sleeps in mid-answer and wakes: what it serves is routed around, then used again."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(20, 80))
    await request.reached(5)
    sleeper = hop(world, request, world.rng.randrange(3))
    world.suspend(sleeper, world.rng.choice((0.2, 1.5, 20.0, 600.0)))
    await request.over()
    await world.until(lambda: not sleeper.machine.is_asleep, 700.0)
    await world.settled(30.0)
    for node in nodes[:2]:
        await world.ask(node).over()


@scenario("stalled loops")
async def stalled_loops(world: World) -> None:
    """Daemons stand still for up to 300 ms, one of them for seconds; nobody else is to blame."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    starved = world.rng.choice(nodes)
    requests = [world.ask(starved, world.order(20, 120))]
    for _ in range(20):
        await world.sleep(world.rng.uniform(0.0, 0.5))
        node = world.rng.choice((starved, *nodes))
        longest_s = 4.0 if node is starved else 0.3
        world.stall(node, world.rng.uniform(0.02, longest_s))
        if requests[-1].is_over:
            requests.append(world.ask(starved, world.order(20, 120)))
    for request in requests:
        await request.over()


@scenario("moved boundary")
async def moved_boundary(world: World) -> None:
    """A hop is lost in mid-prompt, and those that stay divide the layers anew: rows that are still
    under way between them are of the old division."""
    world.lossy(0.1)
    first = world.add(world.serving((0, 2), speed=Speed(decode_s=0.0001, prefill_s=0.00001)))
    middle = world.add(world.serving((0, 8), speed=Speed(decode_s=0.0005)))
    last = world.add(world.serving((4, 12)))
    for node in (first, middle, last):
        world.start(node)
    await world.settled()
    client = await world.client()
    for _ in range(3):
        request = world.ask(client, world.order(200, 5))
        world.slow_worker(middle, 40.0, 6.0)
        await world.sleep(world.rng.uniform(2.2, 4.0))
        world.kill(first)
        await request.over()
        await world.sleep(3.0)
        world.restart(first)
        await world.settled()


@scenario("small outboxes")
async def small_outboxes(world: World) -> None:
    """Hops keep few rows; two are lost one after the other, so rows come from further upstream."""
    world.keep_small_outboxes()
    world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    requests = [world.ask(client, world.order(60, 40)) for _ in range(3)]
    for index in world.rng.sample(range(3), 2):
        await requests[0].reached(world.rng.randint(1, 30))
        if not requests[0].is_over:
            world.kill(hop(world, requests[0], index))
    for request in requests:
        await request.over()


@scenario("just enough memory")
async def just_enough_memory(world: World) -> None:
    """Four machines that together just hold the model are switched on at the same instant."""
    for _ in range(4):
        world.start(world.add(world.serving(None, weight_bytes=FOUR_LAYERS_BYTES)))
    await world.settled()
    await world.ask(world.nodes[0]).over()


@scenario("half-deaf accuser")
async def half_deaf_accuser(world: World) -> None:
    """One machine hears nobody any more, and tells everybody that all the others are dead."""
    nodes = world.swarm(*PAIRS)
    await world.settled()
    for other in nodes[1:]:
        world.cut(other, nodes[0], one_way=True)
    request = world.ask(nodes[4], world.order(20, 60))
    await world.sleep(world.rng.uniform(2.0, 12.0))
    world.heal_all()
    await request.over()


@scenario("lost step")
async def lost_step(world: World) -> None:
    """One message with rows never leaves a hop, though its links hold."""
    world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    route = world.ask(client, world.order(1, 1))
    await route.over()
    request = world.ask(client, world.order(60, 20))
    if world.rng.random() < 0.5:
        await request.reached(1)
    loser = world.rng.choice((client, *(hop(world, route, index) for index in range(2))))
    world.lose(loser, Step, world.rng.randint(1, 7))
    await request.over()


@scenario("replayed hello")
async def replayed_hello(world: World) -> None:
    """Somebody on the LAN sends the first message of an old handshake once more."""
    nodes = world.swarm((0, 12), (0, 12))
    await world.settled()
    stranger = world.machine("stranger")
    assert await replay.first_messages(world, stranger, nodes[0], times=3) == 1


@scenario("lost release")
async def lost_release(world: World) -> None:
    """A client hangs up and the word to one hop is lost: the hop must find out by itself."""
    world.swarm(*PAIRS)
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(30, 200))
    await request.reached(world.rng.randint(1, 30))
    world.lose(client, Release, world.rng.randint(1, 3))
    world.hang_up(request)
    await world.sleep(1.0)


@scenario("big hall", "nodes")
async def big_hall(world: World) -> None:
    """Fifty machines, too many for a full mesh: routes go to nodes that must be dialled first, and
    hops are lost on the way."""
    count = world.node_count or HALL_NODES
    nodes = world.swarm(*(PAIRS[2 * (index % 3)] for index in range(count)))
    await world.settled(60.0)
    client = await world.client()
    for _ in range(3):
        requests = [world.ask(client, world.order(20, 40)), world.ask(world.rng.choice(nodes))]
        await requests[0].reached(world.rng.randint(1, 20))
        if not requests[0].is_over:
            world.rng.choice((world.kill, world.vanish))(hop(world, requests[0], 1))
        for request in requests:
            await request.over()
