"""A simulated LAN with its swarm: machines, requests, and everything bad that can befall them.

A world is told what to do by a scenario (`scenarios`) and watched by invariants (`invariants`).
Every fault is one method, and is entered into `truth`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from sims.cover import CoverLog
from sims.faults import Faults
from sims.inside import alive_members, state_hash
from sims.loop import SimLoop
from sims.machine import Machine
from sims.mdns import Segment
from sims.net import SimNet
from sims.node import Disk, Lent, NodeSpec, SimNode, fresh_disk
from sims.request import Outcome, Request
from sims.stage import VOCABULARY, stub_model
from sims.trails import Trails
from sims.truth import Truth
from sims.worker import Checkpoint
from swarm.asks import Ask
from swarm.config import Config, sim
from swarm.effects import Failed, SessionEvent
from swarm.errors import RequestError, SwarmError
from swarm.notes import FieldValue, Level, Note, note
from swarm.terms import ModelSpec, NodeId, Order, Sampling, short

LAYERS = 12
LOG_MAX = 4000
SMALL_OUTBOX_BYTES = 200
"""25 rows of the stub model."""
MODEL_PATH = "/models/stub"


class Watcher:
    """What an invariant may look at. Each method is told of one kind of happening."""

    def on_note(self, node: SimNode, entry: Note) -> None: ...

    def on_event(self, request: Request, event: SessionEvent) -> None: ...

    def on_step(self, node: SimNode) -> None:
        """Its worker has finished a step."""

    def on_end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LogLine:
    at_s: float
    who: str
    entry: Note

    def __str__(self) -> str:
        fields = " ".join(f"{key}={value}" for key, value in self.entry.fields)
        return f"{self.at_s:12.6f}  {self.who:<10} {self.entry.event} {fields}".rstrip()


def quick_config() -> Config:
    """As on a LAN; small chunks, so that short prompts have several, and a shorter patience."""
    base = sim()
    return replace(base, routing=replace(base.routing, prefill_chunk_tokens=8, cover_wait_s=8.0))


class World(Faults):
    def __init__(
        self,
        seed: int,
        *,
        config: Config | None = None,
        fifo: bool = False,
        layer_count: int = LAYERS,
        loop: SimLoop | None = None,
    ) -> None:
        self.seed = seed
        self.node_count: int | None = None
        """How many machines whoever runs the story wishes for; None: as many as it thinks right."""
        self.minutes: float | None = None
        """The same for how long it goes on."""
        self.config = config or quick_config()
        self.loop = loop or SimLoop(seed, fifo=fifo)
        self.net = SimNet(self.loop)
        self.segment = Segment(self.loop, self.net)
        self._lent = Lent(self.loop, self.net, self.segment, self._noted, self._left)
        self.rng = self.loop.random("story")
        self.model: ModelSpec = stub_model(layer_count)
        self.checkpoint = Checkpoint(self.model)
        self.truth = Truth()
        self.nodes: list[SimNode] = []
        self.requests: list[Request] = []
        self.watchers: list[Watcher] = []
        self.trails = Trails(self)
        self.log: deque[LogLine] = deque(maxlen=LOG_MAX)
        self.listeners: list[Callable[[LogLine], None]] = []
        """Told of each line of the log as it is written."""
        self.note_counts: Counter[tuple[int, str]] = Counter()
        self.began_s = self.loop.now_s
        self.unsteady: set[int] = set()
        """Machines whose paths have gaps of their own, long enough to look like trouble."""
        self.is_lossy = False
        """Whether all paths have such gaps."""
        self.is_tight = False
        """Whether answers have to wait for each other's room."""
        self.has_clones = False
        self.copies_ran_together = False
        self.woke_s: dict[int, float] = {}
        """When each machine was last awakened from sleep."""
        self.became_clean = False
        """Whether everything was freed and all views were one at some moment after the story."""
        self.cover = CoverLog(self)
        self._by_id: dict[NodeId, SimNode] = {}
        self._by_short: dict[str, SimNode] = {}

    @property
    def now_s(self) -> float:
        return self.loop.now_s

    # ------------------------------------------------------------ building

    def machine(self, name: str = "") -> Machine:
        number = len(self.nodes) + 1
        host = f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}"
        machine = Machine(number, name or f"n{number}", (host,))
        self.net.add(machine)
        return machine

    def add(
        self, spec: NodeSpec | None = None, *, name: str = "", disk: Disk | None = None
    ) -> SimNode:
        """Another machine; it is switched on with `start`."""
        node = SimNode(
            self._lent,
            self.machine(name),
            disk or fresh_disk(self.loop.random(f"disk {len(self.nodes)}")),
            spec or NodeSpec(),
            self.config,
        )
        for worker in node.workers:
            worker.told_step = lambda: self._stepped(node)
            worker.told_start = lambda: self._worker_started(node)
        self.nodes.append(node)
        return node

    def _worker_started(self, node: SimNode) -> None:
        if not any(worker.is_wedged for worker in node.workers):
            self.truth.end("wedged", self.now_s, node.number)

    def keep_small_outboxes(self) -> None:
        """From now on nodes keep few rows for resending: rebuilding has to go further upstream."""
        routing = replace(self.config.routing, outbox_bytes_max=SMALL_OUTBOX_BYTES)
        self.config = replace(self.config, routing=routing)

    def want_copies(self, count: int) -> None:
        """Owners of machines that are added from now on wish for so many copies of each layer."""
        self.config = replace(self.config, shard=replace(self.config.shard, copies=count))

    def serving(self, layers: tuple[int, int] | None, **more: object) -> NodeSpec:
        """A machine that has the model, and serves these layers (None: chooses them)."""
        checkpoints = ((MODEL_PATH, self.checkpoint),)
        return replace(NodeSpec(checkpoints, layers), **more)  # type: ignore[arg-type]

    def swarm(self, *ranges: tuple[int, int] | None) -> list[SimNode]:
        """One serving machine per range, all switched on."""
        nodes = [self.add(self.serving(layers)) for layers in ranges]
        for node in nodes:
            self.start(node)
        return nodes

    async def client(self) -> SimNode:
        """A machine that serves nothing, a gateway alone; it has joined when this returns."""
        node = self.add(NodeSpec(), name=f"client{len(self.nodes) + 1}")
        self.start(node)
        await self.settled()
        return node

    def node_of(self, node_id: NodeId) -> SimNode:
        """The machine that last ran under this id. Raises LookupError where that has another."""
        found = self.holder_of(node_id)
        if found is None:
            raise LookupError(f"no machine runs under {node_id} now")
        return found

    def holder_of(self, node_id: NodeId) -> SimNode | None:
        """The same; None for an id that a machine had before it lost its disk."""
        found = self._by_id.get(node_id)
        if found is None or found.id != node_id:
            found = next((node for node in self.nodes if node.id == node_id), None)
            if found is not None:
                self._by_id[node_id] = found
        return found

    def node_called(self, short_id: str) -> SimNode | None:
        """By the short id that notes carry; of clones the one that was added first."""
        found = self._by_short.get(short_id)
        if found is None or short(found.id) != short_id:
            found = next((node for node in self.nodes if short(node.id) == short_id), None)
            if found is not None:
                self._by_short[short_id] = found
        return found

    def running(self) -> list[SimNode]:
        return [node for node in self.nodes if node.is_running]

    def has_gaps(self, *numbers: int) -> bool:
        """Whether paths of one of these machines may go silent though nothing befell them."""
        return self.is_lossy or not self.unsteady.isdisjoint(numbers)

    # ------------------------------------------------------------ waiting

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    async def until(
        self, condition: Callable[[], bool], limit_s: float, step_s: float = 0.05
    ) -> bool:
        """Look every `step_s`; whether it came true in time."""
        end_s = self.now_s + limit_s
        while not condition():
            if self.now_s >= end_s:
                return False
            await asyncio.sleep(step_s)
        return True

    def is_settled(self) -> bool:
        """Every running node sees the model covered, and every other running one alive."""
        running = [node for node in self.running() if node.is_up]
        ids = {node.id for node in running}
        return len(running) == len(self.running()) and all(
            ids <= self.alive_in(node) and all(m.covered for m in node.io.models())
            for node in running
        )

    def alive_in(self, node: SimNode) -> set[NodeId]:
        """Whom this node holds for alive, itself included; nobody while it is starting."""
        if not node.is_up:
            return set()
        return alive_members(node)

    async def settled(self, limit_s: float = 30.0) -> None:
        """Until all know each other and the model is covered, and then until links are measured."""
        if not await self.until(self.is_settled, limit_s):
            raise AssertionError(f"the swarm has not settled after {limit_s} s")
        await self.sleep(2.5)

    def calm_down(self) -> None:
        """The bad day is over: the network is whole, machines run at full speed."""
        self._tell_world("world.calm")
        self.heal_all()
        for node in self.nodes:
            for worker in node.workers:
                worker.slowness = 1.0
                worker.on_step = lambda steps: None

    def is_answered(self) -> bool:
        return all(request.is_over for request in self.requests)

    def is_one_view(self) -> bool:
        """Whether all running nodes hold the same records."""
        return len({state_hash(node) for node in self.running()}) <= 1

    # ------------------------------------------------------------ requests

    def order(
        self, prompt_count: int = 20, max_tokens: int = 20, *, seed: int | None = None
    ) -> Order:
        draw = self.rng.getrandbits(31) if seed is None else seed
        ids = tuple(1 + (draw * 31 + 7 * i) % (VOCABULARY - 1) for i in range(prompt_count))
        return Order(self.model.model_id, ids, max_tokens, Sampling(seed=draw), frozenset())

    def ask(self, origin: SimNode, order: Order | None = None) -> Request:
        """A client of that node asks; what it is told stands in the request."""
        request = Request(len(self.requests) + 1, origin, order or self.order(), self.loop)
        self.requests.append(request)
        process = origin.process
        if process is None or not process.is_alive or not origin.is_up:
            self.tell("client.refused", origin, detail="nobody listens there")
            request.end(Outcome.REFUSED)
            return request
        self.tell("client.asks", origin, prompt=len(request.order.prompt_ids),
                  tokens=request.order.max_tokens)  # fmt: skip
        self.cover.look(origin)
        self.loop.spawn(process, self._follow(request))
        return request

    def hang_up(self, request: Request) -> None:
        """The client closes its connection."""
        process = request.origin.process
        if process is not None and process.is_alive:
            self.loop.post(self.loop.now_ns, process, request.cancel)

    async def _follow(self, request: Request) -> None:
        try:
            generation = request.origin.io.generate(request.order)
        except SwarmError as error:
            request.error = error
            self.tell("client.refused", request.origin, detail=str(error))
            self.cover.look(request.origin)
            request.end(Outcome.REFUSED)
            return
        request.begun(generation)
        async for event in generation:
            request.hear(event)
            if isinstance(event, Failed):
                self.cover.look(request.origin)
            self.loop.mark(type(event).__name__.encode())
            for watcher in self.watchers:
                watcher.on_event(request, event)

    def owner_asks(self, node: SimNode, ask: Ask) -> None:
        """What the owner of a running node wants of it, which it may refuse."""
        process = node.process
        if process is None or not process.is_alive or not node.is_up:
            return
        self.truth.touch("owner", self.now_s, node.number)
        self.tell("host.owner", node, asks=type(ask).__name__)

        def act() -> None:
            try:
                node.io.asked(ask)
            except RequestError as error:
                self.tell("host.owner_refused", node, detail=str(error))

        self.loop.post(self.loop.now_ns, process, act)

    # ------------------------------------------------------------ life and death

    def start(self, node: SimNode) -> None:
        node.machine.is_powered = True
        self.truth.clear(self.now_s, node.number)
        self.truth.touch("start", self.now_s, node.number)
        for other in self.running():
            if other.disk.node_seed == node.disk.node_seed:
                self.truth.touch("copied", self.now_s, other.number)
                self.copies_ran_together = True
        node.start()
        self.tell("host.start", node, run=node.starts)

    def kill(self, node: SimNode, *, teardown_s: float = 0.0) -> None:
        """kill -9: the process is gone, its kernel closes the sockets. `teardown_s`: once it has
        taken the address space apart."""
        if not node.is_running:
            return
        self._end(node, "killed")
        assert node.process is not None
        if teardown_s > 0.0:
            self.loop.post(
                self._in(teardown_s), self.loop.world, self.net.process_ended, node.process
            )
        else:
            self.net.process_ended(node.process)

    def vanish(self, node: SimNode) -> None:
        """The power goes: not a word more."""
        if node.is_running:
            self._end(node, "vanished")
            node.machine.is_powered = False
            self.net.machine_vanished(node.machine)

    def leave(self, node: SimNode) -> None:
        """Ctrl-C."""
        if node.is_running:
            self.truth.begin("leaving", self.now_s, node.number)
            self.tell("host.leave", node)
            node.leave()

    def restart(self, node: SimNode, *, new_key: bool = False) -> None:
        """Switch it on again with the disk it has, or as a stranger."""
        if node.is_running:
            return
        if new_key:
            node.disk = fresh_disk(self.loop.random(f"disk {node.number} {node.starts}"))
        self.start(node)

    def lose_incarnation(self, node: SimNode) -> None:
        """The file with the restart counter is gone."""
        node.disk.incarnation = 0
        node.disk.has_forgotten = True
        self.tell("host.disk_loss", node)

    def clone(self, node: SimNode, name: str = "") -> SimNode:
        """Another machine with a copy of this one's disk."""
        twin = self.add(node.spec, name=name or f"{node.machine.name}'", disk=node.disk.copy())
        self.has_clones = True
        self.tell("host.cloned", twin, of=node.machine.name)
        return twin

    def _end(self, node: SimNode, how: str) -> None:
        self.tell(f"host.{how}", node)
        self.truth.begin("gone", self.now_s, node.number)
        node.end()
        self._cut_clients(node)

    def _left(self, node: SimNode) -> None:
        self.tell("host.left", node)
        self.truth.begin("gone", self.now_s, node.number)
        self._cut_clients(node)

    def _cut_clients(self, node: SimNode) -> None:
        for request in self.requests:
            if request.origin is node:
                request.end(Outcome.ORIGIN_LOST)

    # ------------------------------------------------------------ telling

    def tell(self, event: str, node: SimNode, **fields: FieldValue) -> None:
        """A happening of the world itself, for the log."""
        self._record(node.machine.name, note(event, Level.INFO, **fields))

    def _tell_world(self, event: str, **fields: FieldValue) -> None:
        self._record("world", note(event, Level.INFO, **fields))

    def _noted(self, node: SimNode, entry: Note) -> None:
        if self.loop.is_collecting:
            return
        self.note_counts[node.number, entry.event] += 1
        self._record(node.machine.name, entry)
        self.trails.noted(node, entry)
        for watcher in self.watchers:
            watcher.on_note(node, entry)

    def _stepped(self, node: SimNode) -> None:
        for watcher in self.watchers:
            watcher.on_step(node)

    def _record(self, who: str, entry: Note) -> None:
        self.loop.mark(entry.event.encode())
        line = LogLine(self.now_s, who, entry)
        self.log.append(line)
        for listener in self.listeners:
            listener(line)

    def close(self) -> None:
        self.loop.close()
