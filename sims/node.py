"""A simulated machine with the production node on it: `daemon.py`'s composition for `sims`.

`NodeIo`, `NodeCore`, `TcpLinks` and all they are made of run as they are; the loop, the network,
the worker's stage and the disk are simulated, and the cryptography does without secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import cast

from sims.loop import SimLoop
from sims.machine import SECOND_NS, Machine, Process
from sims.mdns import Segment, SimMdns
from sims.net import SimNet
from sims.once import SharedReader, SharedWire
from sims.plain_suite import PLAIN, PlainIdentity, plain_signature
from sims.stage import REFERENCE_CLASS
from sims.worker import Checkpoint, SimWorker, Speed
from swarm.config import MIB, Config
from swarm.discovery.announcement import Announcement
from swarm.gossip.sealing import Signer
from swarm.hosting import Budget, Hosting, Wish
from swarm.link.handshake import Credentials
from swarm.link.identity import SEED_BYTES, SwarmKey, node_id_of
from swarm.link.instances import draw_instance
from swarm.link.link_io import LinkEvents
from swarm.link.tcp_io import Surroundings, TcpLinks
from swarm.messages import PROTOCOL_MAX, PROTOCOL_MIN
from swarm.node import About, NodeCore
from swarm.node_io import NodeIo, Parts
from swarm.notes import Note
from swarm.shard.worker_client_io import WorkerEvents
from swarm.terms import Address, Incarnation, LayerRange, ModelId, NodeId, NumericClass
from swarm.worker_desk_io import DeviceEvents, OneOfMany

RECORD_DOMAIN = b"gossip record"
SWARM_KEY = SwarmKey(b"simulated swarm!" * 2)
LISTEN_ANY = "0.0.0.0"  # noqa: S104
LEAVE_GRACE_S = 10.0
START_LETTERS = 8
EVENTS = tuple(
    name for kind in (LinkEvents, WorkerEvents) for name in vars(kind) if not name.startswith("_")
)
"""What links and worker may tell."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a machine's owner chose. `layers` None: the node chooses its layers itself.

    `checkpoints`: path to what lies there; empty for a node that serves nothing.
    """

    checkpoints: tuple[tuple[str, Checkpoint], ...] = ()
    layers: tuple[int, int] | None = None
    speed: Speed = Speed()
    numeric_class: NumericClass = REFERENCE_CLASS
    weight_bytes: int = 10 * MIB
    kv_bytes: int = 100 * MIB
    seeds: tuple[Address, ...] = ()
    mdns: bool = True
    devices: int = 1
    """Each with so much memory, and a worker of its own."""


@dataclass(slots=True)
class Disk:
    """What outlives a process. Implements `node_io.Store`."""

    node_seed: bytes
    incarnation: int = 0
    peers: tuple[Address, ...] = ()
    has_forgotten: bool = False
    """Whether the restart counter was ever lost."""
    stays: bytes | None = None
    """How long others used to stay; None: this machine does not heed that."""

    def copy(self) -> Disk:
        return Disk(self.node_seed, self.incarnation, self.peers)


@dataclass(slots=True)
class _Store:
    disk: Disk
    told: Callable[[Incarnation], None]

    def save_incarnation(self, incarnation: int) -> None:
        self.told(Incarnation(incarnation))
        self.disk.incarnation = incarnation

    def save_peers(self, addresses: tuple[Address, ...]) -> None:
        self.disk.peers = addresses

    def save_stays(self, data: bytes) -> None:
        self.disk.stays = data


class _NoFiles:
    """Stub models carry no text."""

    async def read(self, model_id: ModelId, name: str) -> bytes | None:
        return None

    async def read_piece(
        self, model_id: ModelId, name: str, offset: int, count: int
    ) -> tuple[int, bytes] | None:
        return None


class SimNode:
    """One machine of the swarm. `core`, `io` and `links` belong to the present (or last) run."""

    core: NodeCore
    io: NodeIo
    links: TcpLinks

    def __init__(
        self,
        surroundings: Lent,
        machine: Machine,
        disk: Disk,
        spec: NodeSpec,
        config: Config,
    ) -> None:
        self.machine = machine
        self.disk = disk
        self.spec = spec
        self.process: Process | None = None
        self.starts = 0
        self.is_up = False
        """Whether the node runs under its identity; not so while it starts and while it ends."""
        self._entropy: Callable[[int], bytes]
        self.id = node_id_of(PlainIdentity(disk.node_seed).public_key)
        self._lent = surroundings
        self._loop = surroundings.loop
        self._config = config
        self.workers = [
            SimWorker(self._loop, machine, dict(spec.checkpoints), spec.speed, spec.numeric_class)
            for _ in range(spec.devices)
        ]
        self._life: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        return self.machine.number

    @property
    def worker(self) -> SimWorker:
        """The only one, of most machines."""
        return self.workers[0]

    @property
    def clock_s(self) -> float:
        """What its machine's clock shows."""
        return self.machine.local_ns(self._loop.now_ns) / SECOND_NS

    @property
    def is_running(self) -> bool:
        """Its process exists, whether or not it gets to run."""
        return self.process is not None and self.process.is_alive

    @property
    def is_well(self) -> bool:
        """Its process runs and the network reaches the machine's card."""
        return self.is_running and self.process is not None and (
            self.process.can_run and self.machine.is_on_air
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<node {self.machine.name}>"

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin a run from what is on the disk."""
        assert not self.is_running
        self.starts += 1
        self.is_up = False
        self._entropy = self._loop.random(f"entropy {self.number} {self.starts}").randbytes
        self.process = self._loop.process(self.machine)
        self._life = self._loop.spawn(self.process, self._live())

    def leave(self) -> None:
        """As Ctrl-C does."""
        if self.is_running and self.is_up and self.process is not None:
            self._loop.post(self._loop.now_ns, self.process, self._begin_leave)

    def end(self) -> None:
        """The process is gone at once. Its machine's kernel is the network's business."""
        if self.process is not None:
            self._loop.kill(self.process)
        for worker in self.workers:
            worker.crash()

    def _begin_leave(self) -> None:
        self._leaving = self._loop.create_task(self.io.leave(LEAVE_GRACE_S))

    async def _live(self) -> None:
        """From start to an orderly end, under a new identity where a copy keeps the old one."""
        while await self._run_once():
            self.disk.node_seed = self._entropy(SEED_BYTES)
        self._loop.post(self._loop.now_ns, self._loop.world, self._ended, self.process)

    async def _run_once(self) -> bool:
        """Whether the identity was lost to a copy of this machine."""
        identity = PlainIdentity(self.disk.node_seed)
        instance = draw_instance(self._entropy, self._loop.time())
        self.disk.incarnation += 1
        self.id = identity.node_id
        bound = await self._build(identity, instance)
        if self.disk.stays is not None:
            self.core.stays.begin(self.disk.stays, self._loop.now_s, self._loop.time())
        self.io.start(self.spec.seeds, self.disk.peers)
        mdns = self._mdns(bound, instance)
        if mdns is not None:
            await mdns.start()
        self.is_up = True
        await first_of(self.io.left, self.io.identity_lost)
        if not self.io.left.is_set():
            await self.io.hand_over(LEAVE_GRACE_S)
        self.is_up = False
        if mdns is not None:
            await mdns.stop()
        await self.io.stop()
        await self.links.close_all("the node stops")
        return not self.io.left.is_set()

    async def _build(self, identity: PlainIdentity, instance: bytes) -> Address:
        """Links, core and shell; returns where the node listens."""
        incarnation = Incarnation(self.disk.incarnation)
        credentials = Credentials(
            identity, SWARM_KEY, incarnation, instance=instance, suite=PLAIN
        )  # fmt: skip
        events = _Late()
        wire = self._lent.wire
        around = Surroundings(
            self._loop.time, self._entropy, self._note, wire.encode, wire.decode
        )  # fmt: skip
        self.links = TcpLinks(credentials, self._config.link, cast(LinkEvents, events), around)
        bound = await self.links.listen(LISTEN_ANY, 0)
        self.core = self._core(identity, bound)
        assert self.process is not None
        for device, worker in enumerate(self.workers):
            worker.attach(self.process, OneOfMany(cast(DeviceEvents, events), device))
        parts = Parts(
            loop=self._loop,
            clock=self._loop.time,
            entropy=self._entropy,
            worker=self.worker,
            store=_Store(self.disk, self.links.set_incarnation),
            files=_NoFiles(),
            sink=self._note,
            beside=tuple(self.workers[1:]),
        )
        self.io = NodeIo(self.core, parts)
        events.become(self.io)
        self.io.attach(self.links)
        return bound

    def _ended(self, process: Process) -> None:
        """It left in good order."""
        self._loop.kill(process)
        self._lent.net.process_ended(process)
        self._lent.left(self)

    # ------------------------------------------------------------ building

    def _core(self, identity: PlainIdentity, bound: Address) -> NodeCore:
        spec, config = self.spec, self._config
        layers = LayerRange(*spec.layers) if spec.layers is not None else None
        wishes = [Wish(path, found.model.name, layers) for path, found in spec.checkpoints]
        shard = replace(config.shard, device=",".join(["cpu"] * spec.devices))
        config = replace(config, shard=shard)
        budget = Budget.join([Budget(spec.weight_bytes, spec.kv_bytes)] * spec.devices)
        hosting = Hosting(identity.node_id, wishes, budget, config.shard, "")
        about = About(
            node=identity.node_id,
            name=self.machine.name,
            version="0",
            swarm_tag=SWARM_KEY.tag,
            is_open=False,
            memory_bytes=(spec.weight_bytes + spec.kv_bytes) * spec.devices,
            addresses=tuple(Address(host, bound.port) for host in self.machine.hosts),
        )
        rng = self._loop.random(f"core {self.number} {self.starts}")
        incarnation = Incarnation(self.disk.incarnation)
        return NodeCore(about, config, self._signer(identity), incarnation, hosting, rng)

    def _signer(self, identity: PlainIdentity) -> Signer:
        return Signer(
            swarm_tag=SWARM_KEY.tag.encode(),
            public_key=identity.public_key,
            sign=lambda data: identity.sign(RECORD_DOMAIN, data),
            verify=lambda public_key, data, signature: (
                plain_signature(public_key, RECORD_DOMAIN, data) == signature
            ),
            node_id_of=node_id_of,
            read=self._lent.read,
        )

    def _mdns(self, bound: Address, instance: bytes) -> SimMdns | None:
        if not self.spec.mdns:
            return None
        announcement = Announcement(
            node=self.id,
            tag=SWARM_KEY.tag,
            name=self.machine.name,
            listen=bound,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            start=instance.hex()[-START_LETTERS:],
        )
        return SimMdns(self._lent.segment, announcement, self.io)

    def _note(self, entry: Note) -> None:
        self._lent.note(self, entry)


@dataclass(frozen=True, slots=True)
class Lent:
    """What a world lends its nodes. `note`: told of each note; `left`: of each orderly end."""

    loop: SimLoop
    net: SimNet
    segment: Segment
    note: Callable[[SimNode, Note], None]
    left: Callable[[SimNode], None]
    wire: SharedWire = field(default_factory=SharedWire)
    read: SharedReader = field(default_factory=SharedReader)


class _Late:
    """Stands for the node while its own parts are built."""

    def become(self, node: NodeIo) -> None:
        for name in EVENTS:
            setattr(self, name, getattr(node, name))


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]

    def end_all(_: object) -> None:
        for task in tasks:
            task.cancel()

    for task in tasks:
        task.add_done_callback(end_all)
    await asyncio.gather(*tasks, return_exceptions=True)


def fresh_disk(rng: Random) -> Disk:
    return Disk(rng.randbytes(32))


def id_of(disk: Disk) -> NodeId:
    return node_id_of(PlainIdentity(disk.node_seed).public_key)
