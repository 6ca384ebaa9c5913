"""A whole node with two devices, in the small world: routes, losses and wedged workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_world import LAYERS, MODEL, StubWorker, World, WorldNode, oracle, order_of, quick_config

from swarm.config import MIB
from swarm.effects import Finished, Generated, Started, StartWorker, StopWorker, ToWorker
from swarm.gossip.sealing import Signer
from swarm.hosting import Budget, Hosting, Wish
from swarm.link.identity import node_id_of
from swarm.messages import Load, Message, Run
from swarm.node import About, NodeCore
from swarm.terms import Incarnation, LayerRange, SessionId


class DeviceWorker(StubWorker):
    """The hashing worker on one device of several."""

    def __init__(self, node: TwoDevices, device: int) -> None:
        super().__init__(node, LayerRange(0, LAYERS // 2))
        self.device = device
        self.given: list[Message] = []

    def handle(self, message: Message) -> None:
        self.given.append(message)
        super().handle(message)

    def _answer(self, message: Message, delay: float) -> None:
        node = self.node
        assert isinstance(node, TwoDevices)

        def act() -> None:
            if node.alive and node.workers[self.device] is self and not self.wedged:
                reply = self._run(message) if isinstance(message, Run) else message
                if reply is not None:
                    node.put(lambda core, now: core.worker_message(reply, now, self.device))

        node.world.after(delay, act)


class TwoDevices(WorldNode):
    """Each device has room for the weights of half the model, embedding and head."""

    def build(self) -> None:
        super().build()
        world = self.world
        shard = replace(world.config.shard, device="cpu,cpu")
        budget = Budget.join([Budget(7000, 10 * MIB)] * 2)
        hosting = Hosting(self.id, [Wish("stub", "stub", self.layers)], budget, shard, "")
        about = About(self.id, "two", "0", "tag", False, 1 << 30, (self.address,))
        signer = Signer(
            b"tag", bytes(self.key.verify_key), lambda data: self.key.sign(data).signature,
            world.verify, node_id_of,
        )  # fmt: skip
        config = replace(world.config, shard=shard)
        incarnation = Incarnation(self.incarnation)
        self.core = NodeCore(about, config, signer, incarnation, hosting, world.rng)
        self.workers = [DeviceWorker(self, device) for device in range(2)]
        self.starts = [0, 0]
        self.stops = [0, 0]

    def crash(self, device: int) -> None:
        self.workers[device] = DeviceWorker(self, device)
        self.put(lambda core, now: core.worker_lost("crashed", now, device))


class TwoWorld(World):
    def add_two(self, layers: tuple[int, int]) -> TwoDevices:
        node = self.add(layers, TwoDevices)
        assert isinstance(node, TwoDevices)
        return node

    def do(self, node: WorldNode, effect: object) -> None:
        if not isinstance(node, TwoDevices):
            super().do(node, effect)
            return
        match effect:
            case ToWorker(message, device):
                assert device is not None
                node.workers[device].handle(message)
            case StartWorker(device):
                node.starts[device] += 1
            case StopWorker(device):
                node.stops[device] += 1
                node.workers[device] = DeviceWorker(node, device)
            case _:
                super().do(node, effect)


def swarm_of(*others: tuple[int, int], patient: bool = False) -> tuple[TwoWorld, TwoDevices]:
    config = quick_config()
    if patient:
        config = replace(config, routing=replace(config.routing, cover_wait_s=60.0))
    world = TwoWorld(3, config)
    gateway = world.add(None)
    node = world.add_two((0, LAYERS))
    for layers in others:
        world.add(layers)
    world.settle()
    assert gateway.id != node.id
    return world, node


def ask(world: TwoWorld, count: int = 40) -> SessionId:
    return world.ask(world.nodes[0], order_of(30, count))


def loads(node: TwoDevices, device: int) -> list[Load]:
    return [m for m in node.workers[device].given if isinstance(m, Load)]


def check(world: TwoWorld, session: SessionId, count: int = 40) -> Finished:
    end = world.finish(session)
    assert isinstance(end, Finished), end
    assert world.tokens(session) == oracle(order_of(30, count))
    assert end.stats.exact
    return end


def test_two_devices_are_one_hop() -> None:
    world, node = swarm_of()
    assert [loads(node, device)[0].layers for device in (0, 1)] == [
        LayerRange(0, 6), LayerRange(6, 12),
    ]  # fmt: skip
    session = ask(world)
    end = check(world, session)
    assert end.stats.route is not None and end.stats.route.nodes == (node.id,)
    (shard,) = node.core.snapshot(world.now).nodes[0].shards + tuple(
        shard for n in node.core.snapshot(world.now).nodes[1:] for shard in n.shards
    )
    assert shard.info.cuts == (6,)
    world.run_for(5.0)
    assert all(not worker.jobs for worker in node.workers)


@pytest.mark.parametrize("device", [0, 1])
def test_a_lost_device_is_loaded_again_and_the_answer_goes_on(device: int) -> None:
    """Nobody else has the model: the answer waits. The device that lives keeps its weights."""
    world, node = swarm_of(patient=True)
    session = ask(world)
    world.on_token = lambda s, count: node.crash(device) if count == 7 else None
    end = check(world, session)
    assert end.stats.reroutes == 1
    assert len(loads(node, device)) == 1
    assert len(loads(node, 1 - device)) == 1
    assert node.starts[1 - device] == 1 and node.starts[device] == 2


@pytest.mark.parametrize("device", [0, 1])
def test_another_node_takes_over_at_once(device: int) -> None:
    world, node = swarm_of((0, LAYERS))
    other = world.nodes[2]
    session = ask(world)
    world.run_until(lambda: bool(world.replies[session]))
    (started,) = [e for e in world.replies[session] if isinstance(e, Started)]
    if started.route.nodes != (node.id,):
        world.crash_worker(other)
    world.run_until(lambda: len(world.tokens(session)) == 5)
    routes = [e.route for e in world.replies[session] if isinstance(e, Started)]
    assert routes[-1].nodes == (node.id,)
    node.crash(device)
    check(world, session)


@pytest.mark.parametrize("device", [0, 1])
def test_a_wedged_device_alone_is_ended(device: int) -> None:
    world, node = swarm_of(patient=True)
    session = ask(world)

    def wedge(s: SessionId, count: int) -> None:
        if count == 7:
            node.workers[device].wedged = True

    world.on_token = wedge
    check(world, session)
    assert node.stops[device] == 1 and node.stops[1 - device] == 0
    assert any(note.event == "worker.stuck" and note.get("device") == device for note in node.notes)
    assert len(loads(node, 1 - device)) == 1


def test_many_sessions_pass_both_devices_at_once() -> None:
    world, node = swarm_of()
    orders = [order_of(50, 20, seed=i) for i in range(6)]
    sessions = [world.ask(world.nodes[0], order) for order in orders]
    for session, order in zip(sessions, orders, strict=True):
        assert isinstance(world.finish(session), Finished)
        assert world.tokens(session) == oracle(order)
    assert MODEL.layer_count == sum(len(loads(node, d)[0].layers) for d in (0, 1))
    assert all(isinstance(e, Generated | Started | Finished) for e in world.replies[sessions[0]])
