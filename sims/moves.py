"""Stories of machines that chose their layers by themselves, and choose others when it pays."""

from __future__ import annotations

from sims.inside import served_layers
from sims.node import SimNode
from sims.scenarios import FOUR_LAYERS_BYTES, scenario
from sims.worker import Speed
from sims.world import LAYERS, LogLine, World
from swarm.asks import Announce, ComeBack, GiveWay

LOADING = Speed(load_s=1.0)
"""A second from an order to load until the layers are there."""
RESTORED_S = 2.0
"""From a loss to the load that mends it."""
TWO_LAYERS_BYTES = 4500
SIX_LAYERS_BYTES = 8500
JOINERS = 10
STEADY_MINUTES = 60.0
SPLIT_MINUTES = 12.0
SLOWNESS = 6.0
NOTICE_S = 12.0
"""From the announcement of a departure to the departure."""


def moves_of(world: World) -> int:
    return sum(n for (_, event), n in world.note_counts.items() if event == "shard.moves")


def lacking(world: World) -> set[int]:
    """Layers that no running machine serves."""
    held = {n for node in world.running() if node.is_up for layers in served_layers(node)
            for n in range(layers.start, layers.stop)}  # fmt: skip
    return set(range(LAYERS)) - held


def sole_holders(world: World) -> list[SimNode]:
    """Whose loss costs the model a layer."""
    found = []
    for node in world.running():
        others = [n for n in world.running() if n is not node and n.is_up]
        held = {n for other in others for layers in served_layers(other)
                for n in range(layers.start, layers.stop)}  # fmt: skip
        if node.is_up and len(held) < LAYERS:
            found.append(node)
    return found


def choosing(world: World, count: int, weight_bytes: int) -> list[SimNode]:
    nodes = []
    for _ in range(count):
        node = world.add(world.serving(None, weight_bytes=weight_bytes, speed=LOADING))
        world.start(node)
        nodes.append(node)
    return nodes


@scenario("lost cover")
async def lost_cover(world: World) -> None:
    """The only holder of some layers is lost; one of those that others can spare loads them."""
    choosing(world, 5, FOUR_LAYERS_BYTES)
    await world.settled()
    client = await world.client()
    request = world.ask(client, world.order(20, 400))
    await request.reached(world.rng.randint(1, 20))
    victim = world.rng.choice(sole_holders(world))
    how = world.rng.choice((world.kill, world.kill, world.leave))
    before = moves_of(world)
    how(victim)
    await world.until(lambda: not victim.is_running, 15.0, 0.005)
    began_s = world.now_s
    await world.until(lambda: not lacking(world), 10.0, 0.005)
    took_s = world.now_s - began_s
    assert took_s <= RESTORED_S + LOADING.load_s, f"cover came back after {took_s:.2f} s"
    assert moves_of(world) == before + 1, "more than one machine moved for it"
    await request.over()
    assert request.finished is not None, request
    world.restart(victim)
    await world.settled()


@scenario("silent loss of cover")
async def silent_loss_of_cover(world: World) -> None:
    """The same by a pulled plug: nobody is told."""
    choosing(world, 5, FOUR_LAYERS_BYTES)
    await world.settled()
    await world.sleep(world.rng.uniform(0.0, 1.0))
    world.vanish(world.rng.choice(sole_holders(world)))
    began_s = world.now_s
    await world.until(lambda: not lacking(world), 15.0, 0.005)
    took_s = world.now_s - began_s
    limit_s = RESTORED_S + LOADING.load_s
    assert took_s <= limit_s, f"cover came back after {took_s:.2f} s"
    await world.settled()


@scenario("announced departure")
async def announced_departure(world: World) -> None:
    """The only holder of some layers says that it will leave: by then another has them, no layer
    ever lacks, and the answer that runs goes on."""
    choosing(world, 5, FOUR_LAYERS_BYTES)
    await world.settled()
    client = await world.client()
    leaver = world.rng.choice(sole_holders(world))
    request = world.ask(client, world.order(20, 700))
    await request.reached(world.rng.randint(1, 20))
    before = moves_of(world)
    world.owner_asks(leaver, Announce(NOTICE_S))
    went_at = world.now_s + NOTICE_S
    while world.now_s < went_at:
        assert not lacking(world), (
            f"layers {lacking(world)} lack {went_at - world.now_s:.1f} s early"
        )
        await world.sleep(0.05)
    assert leaver not in sole_holders(world), "nobody has taken over"
    assert moves_of(world) == before + 1, "more than one machine moved for it"
    world.leave(leaver)
    await world.until(lambda: not leaver.is_running, 15.0, 0.005)
    assert not lacking(world)
    await request.over()
    assert request.finished is not None, request
    world.restart(leaver)
    await world.settled()


@scenario("owner at home")
async def owner_at_home(world: World) -> None:
    """A machine's owner starts a game: its node gives all layers up and its worker ends, others
    take over what only it held, the answer that runs goes on; when the game is over it serves
    again."""
    choosing(world, 5, FOUR_LAYERS_BYTES)
    await world.settled()
    client = await world.client()
    victim = world.rng.choice(sole_holders(world))
    request = world.ask(client, world.order(20, 400))
    await request.reached(world.rng.randint(1, 20))
    world.owner_asks(victim, GiveWay("a game"))
    hand_over_s = world.config.routing.hand_over_max_s
    await world.until(lambda: victim.worker.process is None, hand_over_s + 2.0, 0.05)
    assert victim.worker.process is None, "its worker has not ended"
    assert not served_layers(victim)
    await world.until(lambda: not lacking(world), 10.0, 0.05)
    await request.over()
    assert request.finished is not None, request
    world.owner_asks(victim, ComeBack())
    await world.until(lambda: bool(served_layers(victim)), 15.0, 0.05)
    assert served_layers(victim), "it serves nothing again"
    await world.settled()
    await world.ask(victim).over()


@scenario("ten joins")
async def ten_joins(world: World) -> None:
    """Ten machines are switched on at once, each with room for two layers of twelve: none takes
    layers that others have while some are open."""
    taken: dict[str, range] = {}

    def look(line: LogLine) -> None:
        if line.entry.event == "shard.load":
            start, stop = map(int, str(line.entry.get("layers")).split(":"))
            held = {layer for layers in taken.values() for layer in layers}
            fresh = set(range(start, stop)) - held
            is_whole = len(held) == LAYERS
            assert fresh or is_whole, f"{line.who} takes {start}:{stop}, and others are open"
            taken[line.who] = range(start, stop)

    world.listeners.append(look)
    choosing(world, JOINERS, TWO_LAYERS_BYTES)
    await world.settled()
    await world.ask(world.nodes[0]).over()


@scenario("steady hour", "nodes", "minutes")
async def steady_hour(world: World) -> None:
    """Nobody comes or goes for an hour, answers run now and then, speeds wander: nothing moves."""
    for number in range(world.node_count or 6):
        speed = Speed(decode_s=0.001 * world.rng.uniform(0.5, 2.0), load_s=1.0)
        size = (FOUR_LAYERS_BYTES, SIX_LAYERS_BYTES)[number % 2]
        world.start(world.add(world.serving(None, weight_bytes=size, speed=speed)))
    await world.settled()
    loads = sum(n for (_, event), n in world.note_counts.items() if event == "shard.load")
    end_s = world.now_s + 60.0 * (STEADY_MINUTES if world.minutes is None else world.minutes)
    while world.now_s < end_s:
        node = world.rng.choice(world.nodes)
        node.worker.slowness = world.rng.uniform(0.95, 1.05)
        await world.ask(world.rng.choice(world.nodes), world.order(8, 8)).over()
        await world.sleep(world.rng.uniform(2.0, 20.0))
    again = sum(n for (_, event), n in world.note_counts.items() if event == "shard.load")
    assert (moves_of(world), again) == (0, loads), f"{again - loads} loads in a steady hour"


@scenario("better split", "minutes")
async def better_split(world: World) -> None:
    """One of three machines becomes slow for good; the one that can be spared takes its layers
    too, once, and that is all that moves."""
    choosing(world, 3, SIX_LAYERS_BYTES)
    await world.settled()
    slow = world.rng.choice(sole_holders(world))
    slow.worker.slowness = SLOWNESS
    world.truth.begin("slow", world.now_s, slow.number)
    client = await world.client()
    end_s = world.now_s + 60.0 * (SPLIT_MINUTES if world.minutes is None else world.minutes)
    while world.now_s < end_s:
        await world.ask(client, world.order(8, 20)).over()
        await world.sleep(8.0)
    assert moves_of(world) == 1, f"{moves_of(world)} moves"
    assert slow not in sole_holders(world)


@scenario("wanted copies")
async def wanted_copies(world: World) -> None:
    """Two copies of every layer are wanted: machines that were lost leave others with one, and
    whoever holds a third copy goes there."""
    world.want_copies(2)
    choosing(world, 8, FOUR_LAYERS_BYTES)
    await world.settled()
    await world.until(lambda: fewest_copies(world) >= 2, 200.0, 1.0)
    assert fewest_copies(world) == 2
    spare = [node for node in world.nodes if copies_of(world, node) == 2]
    world.kill(world.rng.choice(spare))
    assert fewest_copies(world) == 1
    await world.until(lambda: fewest_copies(world) >= 2, 200.0, 1.0)
    assert fewest_copies(world) == 2, "a wanted copy lacks"


def fewest_copies(world: World) -> int:
    return min(_copies(world, layer) for layer in range(LAYERS))


def copies_of(world: World, node: SimNode) -> int:
    """Of its rarest layer."""
    layers = served_layers(node)[0]
    return min(_copies(world, layer) for layer in range(layers.start, layers.stop))


def _copies(world: World, layer: int) -> int:
    served = [layers for node in world.running() if node.is_up for layers in served_layers(node)]
    return sum(layer in layers for layers in served)
