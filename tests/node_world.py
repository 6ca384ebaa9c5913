"""A small world for whole `NodeCore`s: virtual time, seeded delays, workers that hash.

A fake worker's "hidden row" is a hash over (layer, position, input, everything in that layer's
KV), so that any wrong, missing or doubled KV gives a wrong token.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from swarm.config import MIB, Config, sim
from swarm.effects import (
    CloseLink,
    Dial,
    Failed,
    Finished,
    Generated,
    Reply,
    Send,
    SessionEvent,
    StartWorker,
    StopWorker,
    Tell,
    ToWorker,
)
from swarm.errors import RemoteProtocolError
from swarm.gossip.sealing import Signer
from swarm.hosting import Budget, Hosting, Wish
from swarm.link.identity import node_id_of
from swarm.messages import (
    Begin,
    End,
    FailureCode,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    Ran,
    RowType,
    Run,
    RunFailed,
    StepKind,
)
from swarm.node import About, NodeCore
from swarm.notes import Note
from swarm.terms import (
    Address,
    Incarnation,
    LayerRange,
    LinkSpeed,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    Order,
    SampledToken,
    Sampling,
    SessionId,
    ShardSpeed,
    Way,
)

VOCAB = 997
ROW_BYTES = 8
LAYERS = 12
MODEL = ModelSpec(ModelId("m" * 32), "stub", LAYERS, 2, VOCAB, 4096, (0,), False)
LAYER_S = 0.001


def digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=ROW_BYTES).digest()


class Chain:
    """The stub model over some layers: one running digest per layer is its KV."""

    def __init__(self, layers: LayerRange) -> None:
        self.layers = layers
        self.kv: dict[int, bytes] = dict.fromkeys(range(layers.start, layers.stop), b"")
        self.length = 0

    def run(self, position: int, row: bytes) -> bytes:
        assert position == self.length
        for layer in range(self.layers.start, self.layers.stop):
            self.kv[layer] = digest(layer, position, row, self.kv[layer])
            row = self.kv[layer]
        self.length += 1
        return row


def embed(token_id: int) -> bytes:
    return digest("embed", token_id)


def sample(row: bytes, position: int, sampling: Sampling) -> SampledToken:
    number = int.from_bytes(digest("head", row, position, sampling.seed), "little")
    return SampledToken(position, 1 + number % (VOCAB - 1))


def oracle(order: Order) -> list[int]:
    """The tokens of an undisturbed run on one machine."""
    chain, ids = Chain(LayerRange(0, LAYERS)), list(order.prompt_ids)
    result: list[int] = []
    for position in itertools.count():
        row = chain.run(position, embed(ids[position]))
        if position >= len(order.prompt_ids) - 1:
            token = sample(row, position + 1, order.sampling).token_id
            ids.append(token)
            result.append(token)
            if len(result) == order.max_tokens:
                return result
    raise AssertionError


@dataclass
class Job:
    order: Begin
    chain: Chain


class StubWorker:
    def __init__(self, node: WorldNode, layers: LayerRange) -> None:
        self.node = node
        self.layers = layers
        self.jobs: dict[SessionId, Job] = {}
        self.free_at = 0.0
        self.wedged = False
        self.wedged_at_load = False
        self.numeric_class = NumericClass("stub")

    def handle(self, message: Message) -> None:
        world = self.node.world
        if isinstance(message, Inspect | Load):
            self._answer(LoadProgress(0.0, "checkpoint"), 0.0)
        match message:
            case Inspect():
                self._answer(Inspected(MODEL, 1000, 1000, 1000, 100, "", message.path), 0.01)
            case Load() if not self.wedged_at_load:
                speed = ShardSpeed(MODEL.model_id, LAYER_S, LAYER_S, LAYER_S / 10, LAYER_S, 0.0, 0)
                self._answer(
                    Loaded(
                        MODEL.model_id, message.layers, self.numeric_class, 100,
                        RowType.FLOAT32, ROW_BYTES, speed, "stub",
                    ), 0.05,
                )  # fmt: skip
            case Begin():
                self.jobs[message.session] = Job(message, Chain(message.layers))
            case End():
                self.jobs.pop(message.session, None)
            case Run() if not self.wedged:
                cost = len(self.layers) * LAYER_S * (0.1 if message.kind is StepKind.PREFILL else 1)
                self.free_at = max(self.free_at, world.now) + cost * message.count
                self._answer(message, self.free_at - world.now)
            case _:
                pass

    def _answer(self, message: Message, delay: float) -> None:
        node = self.node

        def act() -> None:
            if node.alive and node.worker is self and not self.wedged:
                reply = self._run(message) if isinstance(message, Run) else message
                if reply is not None:
                    node.put(lambda core, now: core.worker_message(reply, now))

        node.world.after(delay, act)

    def _run(self, run: Run) -> Message | None:
        job = self.jobs.get(run.session)
        if job is None or job.order.generation != run.generation:
            return None
        if run.position != job.chain.length:
            return RunFailed(run.session, run.generation, FailureCode.STEP_FAILED, "wrong position")
        rows, tokens = [], []
        for index in range(run.count):
            if run.row_type is RowType.IDS:
                raw = bytes(run.payload)[4 * index : 4 * index + 4]
                row = embed(int.from_bytes(raw, "little"))
            else:
                row = bytes(run.payload)[ROW_BYTES * index : ROW_BYTES * (index + 1)]
            position = run.position + index
            row = job.chain.run(position, row)
            rows.append(row)
            if job.order.head and position >= run.sample_from:
                tokens.append(sample(row, position + 1, job.order.sampling))
        payload = b"" if job.order.head else b"".join(rows)
        return Ran(
            run.session, run.generation, run.position, run.count, run.kind, RowType.FLOAT32,
            0.001, tuple(tokens), payload,
        )  # fmt: skip


@dataclass
class WorldNode:
    world: World
    key: SigningKey
    layers: LayerRange | None
    address: Address
    incarnation: int = 1
    alive: bool = True
    silent: bool = False
    links: set[NodeId] = field(default_factory=set)
    notes: list[Note] = field(default_factory=list)
    timer: int = 0
    armed_at: float | None = None
    worker_starts: int = 0
    core: NodeCore = field(init=False)
    worker: StubWorker = field(init=False)
    kv_bytes: int = 100 * MIB

    def __post_init__(self) -> None:
        self.id: NodeId = node_id_of(bytes(self.key.verify_key))
        self.build()

    def build(self) -> None:
        world = self.world
        wishes = [Wish("stub", "stub", self.layers)] if self.layers else []
        config = world.config
        hosting = Hosting(self.id, wishes, Budget(10 * MIB, self.kv_bytes), config.shard, "")
        about = About(self.id, "n", "0", "tag", False, 1 << 30, (self.address,))
        signer = Signer(
            b"tag", bytes(self.key.verify_key), lambda data: self.key.sign(data).signature,
            world.verify, node_id_of,
        )  # fmt: skip
        rng = Random(f"{world.seed} {self.id} {self.incarnation}")
        self.core = NodeCore(about, config, signer, Incarnation(self.incarnation), hosting, rng)
        self.worker = StubWorker(self, self.layers or LayerRange(0, 1))
        self.links = set()

    def put(self, act: Callable[[NodeCore, float], object]) -> None:
        """One input; then carry out the effects and re-arm the timer."""
        if not self.alive:
            return
        act(self.core, self.world.now)
        if not self.core.stirred:
            return
        self.core.stirred = False
        for effect in self.core.take_effects():
            self.world.do(self, effect)
        self._arm()

    def _arm(self) -> None:
        due = self.core.next_deadline()
        if due is None or due == self.armed_at:
            return
        self.armed_at = due
        self.timer += 1
        mine, core = self.timer, self.core

        def fire() -> None:
            if self.timer == mine and self.core is core and self.alive:
                self.armed_at = None
                self.put(lambda c, now: c.tick(now))

        self.world.after(max(0.0, due - self.world.now), fire)


class World:
    def __init__(self, seed: int, config: Config | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 100.0
        self.config = config or quick_config()
        self.nodes: list[WorldNode] = []
        self.replies: dict[SessionId, list[SessionEvent]] = {}
        self.cuts: set[frozenset[NodeId]] = set()
        self.deaf_doors: set[tuple[NodeId, NodeId]] = set()
        """(dialler, target): behind the target's router nobody answers this dialler."""
        self.trimmed: set[frozenset[NodeId]] = set()
        """Pairs that are linked only while a session needs it."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._lane_free: dict[tuple[NodeId, NodeId, str], float] = {}
        self._verified: dict[tuple[bytes, bytes, bytes], bool] = {}
        self.on_token: Callable[[SessionId, int], None] = lambda session, count: None

    # ------------------------------------------------------------ building

    def add(
        self, layers: tuple[int, int] | None, kind: type[WorldNode] | None = None, **more: int
    ) -> WorldNode:
        index = len(self.nodes)
        key = SigningKey(hashlib.sha256(f"{self.seed} {index}".encode()).digest())
        node = (kind or WorldNode)(
            self, key, LayerRange(*layers) if layers else None, Address(f"10.0.0.{index + 1}", 1),
            **more,
        )  # fmt: skip
        self.nodes.append(node)
        seeds = tuple(other.address for other in self.nodes[:-1])
        self.after(0.0, lambda: node.put(lambda core, now: core.start(seeds, (), now)))
        return node

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        """Real signatures, each checked once for all nodes."""
        entry = (key, data, signature)
        if entry not in self._verified:
            self._verified[entry] = _verify(*entry)
        return self._verified[entry]

    # ------------------------------------------------------------ running

    def after(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._count), act))

    def run_until(self, done: Callable[[], bool], limit_s: float = 60.0) -> None:
        end = self.now + limit_s
        while not done():
            if not self._heap or self._heap[0][0] > end:
                raise AssertionError(f"not done after {limit_s} virtual seconds")
            self.now, _, act = heapq.heappop(self._heap)
            act()

    def run_for(self, duration_s: float) -> None:
        end = self.now + duration_s
        self.after(duration_s, lambda: None)
        self.run_until(lambda: self.now >= end, duration_s + 1)

    def settle(self) -> None:
        """Until everybody is linked and the model is covered."""

        def ready() -> bool:
            living = [n for n in self.nodes if n.alive]
            return all(len(n.links) == len(living) - 1 for n in living) and all(
                any(model.covered for model in n.core.models(self.now)) for n in living
            )

        self.run_until(ready)
        self.run_for(2.5)

    # ------------------------------------------------------------ sessions

    def ask(self, node: WorldNode, order: Order) -> SessionId:
        session = SessionId(f"{len(self.replies):016x}")
        self.replies[session] = []
        node.put(lambda core, now: core.generate(session, order, now))
        return session

    def tokens(self, session: SessionId) -> list[int]:
        return [e.token.token_id for e in self.replies[session] if isinstance(e, Generated)]

    def end_of(self, session: SessionId) -> Finished | Failed | None:
        last = self.replies[session][-1] if self.replies[session] else None
        return last if isinstance(last, Finished | Failed) else None

    def finish(self, session: SessionId, limit_s: float = 120.0) -> Finished | Failed:
        self.run_until(lambda: self.end_of(session) is not None, limit_s)
        end = self.end_of(session)
        assert end is not None
        return end

    # ------------------------------------------------------------ faults

    def kill(self, node: WorldNode) -> None:
        """The process ends: everybody sees the end of file a millisecond later."""
        node.alive = False
        for other in self.nodes:
            if other.alive and node.id in other.links:
                self.after(0.001, lambda other=other: self._drop(other, node.id, "end of file"))

    def vanish(self, node: WorldNode) -> None:
        """The host is gone without a word."""
        node.alive = False
        node.silent = True

    def restart(self, node: WorldNode) -> None:
        node.incarnation += 1
        node.alive, node.silent = True, False
        node.armed_at = None
        node.timer += 1
        node.build()
        seeds = tuple(other.address for other in self.nodes if other is not node)
        node.put(lambda core, now: core.start(seeds, (), now))

    def trim(self, a: WorldNode, b: WorldNode) -> None:
        """As in a partial mesh: the two do without a link until a session wants one."""
        self.trimmed.add(frozenset((a.id, b.id)))
        for node, peer in ((a, b), (b, a)):
            if peer.id in node.links:
                node.links.discard(peer.id)
                node.put(lambda c, now, p=peer: c.link_down(p.id, "trimmed", orderly=True, now=now))

    def cut(self, a: WorldNode, b: WorldNode) -> None:
        self.cuts.add(frozenset((a.id, b.id)))

    def crash_worker(self, node: WorldNode) -> None:
        node.worker = StubWorker(node, node.worker.layers)
        node.put(lambda core, now: core.worker_lost("crashed", now))

    # ------------------------------------------------------------ effects

    def do(self, node: WorldNode, effect: object) -> None:
        match effect:
            case Send():
                self._carry(node, effect.peer, effect.message)
            case ToWorker():
                node.worker.handle(effect.message)
            case Dial():
                self._dial(node, effect)
            case CloseLink():
                self._close(node, effect.peer, effect.reason)
            case Reply():
                self.replies[effect.session].append(effect.event)
                if isinstance(effect.event, Generated):
                    count = len(self.tokens(effect.session))
                    self.after(0.0, lambda: self.on_token(effect.session, count))
            case Tell():
                node.notes.append(effect.note)
            case StartWorker():
                node.worker_starts += 1
            case StopWorker():
                node.worker = StubWorker(node, node.worker.layers)
            case _:
                pass

    def _of(self, node_id: NodeId) -> WorldNode:
        return next(node for node in self.nodes if node.id == node_id)

    def _carry(self, node: WorldNode, peer: NodeId, message: Message) -> None:
        if peer not in node.links:
            return
        target = self._of(peer)
        lane = (node.id, peer, message.LANE.value)
        arrival = max(self._lane_free.get(lane, 0.0), self.now + self.rng.uniform(2e-4, 8e-4))
        self._lane_free[lane] = arrival
        core = target.core

        def arrive() -> None:
            dead = not target.alive or node.silent or frozenset((node.id, peer)) in self.cuts
            if dead or target.core is not core or node.id not in target.links:
                return
            try:
                target.put(lambda c, now: c.receive(node.id, message, now))
            except RemoteProtocolError as error:
                self._close(target, node.id, str(error))
                raise

        self.after(arrival - self.now, arrive)

    def _dial(self, node: WorldNode, dial: Dial) -> None:
        def outcome() -> None:
            if not node.alive:
                return
            found = [n for n in self.nodes if n.address in dial.addresses and n is not node]
            for target in found:
                reachable = self._may_join(node, target)
                if reachable and target.id not in node.links:
                    self._join(node, target)
                    self._join(target, node)
                    return
            if any(self._is_trimmed(node, target) for target in found):
                node.core._book.dial_failed(dial, self.now)  # its owner would not have dialled
            elif not any(target.id in node.links for target in found):
                node.put(lambda c, now: c.dial_failed(dial.addresses, dial.expected, now))

        self.after(0.002, outcome)

    def _is_trimmed(self, node: WorldNode, target: WorldNode) -> bool:
        wanted = target.id in node.core._reach.wanted()
        return frozenset((node.id, target.id)) in self.trimmed and not wanted

    def _may_join(self, node: WorldNode, target: WorldNode) -> bool:
        is_cut = frozenset((node.id, target.id)) in self.cuts
        is_closed = is_cut or (node.id, target.id) in self.deaf_doors
        return target.alive and not is_closed and not self._is_trimmed(node, target)

    def _join(self, node: WorldNode, peer: WorldNode) -> None:
        if peer.id in node.links:
            self._drop(node, peer.id, "replaced")
        node.links.add(peer.id)
        node.put(
            lambda c, now: c.link_up(
                peer.id, Incarnation(peer.incarnation), peer.address, now, Way()
            )
        )
        node.put(lambda c, now: c.link_measured(LinkSpeed(peer.id, 0.001, 1e8), now))

    def _close(self, node: WorldNode, peer: NodeId, reason: str) -> None:
        other = self._of(peer)
        self._drop(node, peer, reason)
        if other.alive and frozenset((node.id, peer)) not in self.cuts:
            self.after(0.001, lambda: self._drop(other, node.id, reason))

    def _drop(self, node: WorldNode, peer: NodeId, cause: str) -> None:
        if node.alive and peer in node.links:
            node.links.discard(peer)
            node.put(lambda c, now: c.link_down(peer, cause, orderly=False, now=now))


def _verify(key: bytes, data: bytes, signature: bytes) -> bool:
    try:
        VerifyKey(key).verify(data, signature)
    except BadSignatureError:
        return False
    return True


def quick_config() -> Config:
    """Small chunks, so that short prompts have several."""
    base = sim()
    return replace(base, routing=replace(base.routing, prefill_chunk_tokens=8, cover_wait_s=5.0))


def order_of(prompt_count: int, max_tokens: int, seed: int = 7) -> Order:
    ids = tuple(1 + (seed * 31 + 7 * i) % (VOCAB - 1) for i in range(prompt_count))
    return Order(MODEL.model_id, ids, max_tokens, Sampling(seed=seed), frozenset())
