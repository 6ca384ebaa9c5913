"""Owners do what they like with their nodes, while anything else happens too."""

from __future__ import annotations

from collections.abc import Callable

from sims.inside import served_layers
from sims.mixed import Trouble
from sims.node import LEAVE_GRACE_S, SimNode
from sims.scenarios import scenario
from sims.stage import SIDE_MODEL
from sims.worker import Checkpoint
from sims.world import MODEL_PATH, World
from swarm.asks import Announce, Ask, ComeBack, GiveWay, LoadModel, UnloadModel
from swarm.terms import LayerRange

SIDE_PATH = "/models/side"
SPELL_S = 30.0
"""For how long owners have their way."""
SERVERS = 7
ROOMY_BYTES = 20_000
"""For the weights of both models."""
QUIET_S = 15.0
ROUNDS = 4
"""Times that the owners say what they want in the end: what is being unloaded is not loaded yet."""


class Owners:
    """Draws what an owner asks of a node. What makes no sense is refused, which is no fault."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.whims: tuple[tuple[Callable[[], Ask], int], ...] = (
            (lambda: UnloadModel("stub"), 3),
            (lambda: UnloadModel("side"), 2),
            (lambda: LoadModel(MODEL_PATH, "stub", self._layers(12)), 5),
            (lambda: LoadModel(SIDE_PATH, "side", self._layers(3)), 3),
            (lambda: GiveWay("a game"), 2),
            (lambda: ComeBack(), 4),
            (lambda: Announce(self._rng.choice((0.5, 5.0, 20.0, 3600.0))), 2),
            (lambda: Announce(None), 2),
        )

    def strike(self) -> None:
        nodes = [node for node in self._world.running() if node.is_up and node.spec.checkpoints]
        if not nodes:
            return
        draws = [whim for whim, weight in self.whims for _ in range(weight)]
        self._world.owner_asks(self._rng.choice(nodes), self._rng.choice(draws)())

    def be_content(self) -> None:
        """Every owner wants the model served, and takes back whatever stands against it."""
        for node in self._world.running():
            if node.is_up and node.spec.checkpoints:
                for ask in (Announce(None), ComeBack(), LoadModel(MODEL_PATH, "stub", None)):
                    self._world.owner_asks(node, ask)

    def _layers(self, count: int) -> LayerRange | None:
        if self._rng.random() < 0.5:
            return None
        start = self._rng.randrange(count)
        return LayerRange(start, self._rng.randint(start + 1, count))


@scenario("whims", "minutes")
async def whims(world: World) -> None:
    """Owners load and unload models, play games, announce departures and stay after all; workers
    crash and nodes are killed meanwhile. In the end all want the model, and it must be served by
    every one of them."""
    rng = world.rng
    for _ in range(SERVERS):
        spec = world.serving(None, weight_bytes=ROOMY_BYTES)
        node = world.add(spec)
        node.worker.offer(SIDE_PATH, Checkpoint(SIDE_MODEL))
        world.start(node)
    client = await world.client()
    owners, trouble = Owners(world), Trouble(world)
    end_s = world.now_s + (SPELL_S if world.minutes is None else 60.0 * world.minutes)
    while world.now_s < end_s:
        await world.sleep(rng.expovariate(1 / rng.choice((0.1, 1.0, 2.0))))
        owners.strike()
        if rng.random() < 0.3:
            trouble.strike()
        if rng.random() < 0.3 and sum(not request.is_over for request in world.requests) < 3:
            world.ask(rng.choice((client, *world.running())), world.order(9, rng.choice((5, 60))))
    await world.sleep(LEAVE_GRACE_S)
    idle: list[SimNode] = []
    for _ in range(ROUNDS):
        trouble.repair()
        await world.until(lambda: all(node.is_up for node in world.nodes), 10.0)
        owners.be_content()
        await world.sleep(QUIET_S)
        idle = [node for node in world.nodes if node.spec.checkpoints and not served_layers(node)]
        if not idle:
            break
    names = ", ".join(node.machine.name for node in idle)
    assert not idle, f"{names} should serve the model, and do not"
    await world.ask(client).over()
