"""A node that answers as scripted, and a gateway in front of it on loopback."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import tiny_text

from swarm.access.keys_io import KeyStore
from swarm.access.usage_io import UsageStore
from swarm.asks import Announce, Ask, LoadModel, TakePart
from swarm.config import GatewayConfig
from swarm.effects import (
    Failed,
    Finished,
    Generated,
    SessionEvent,
    SessionStats,
    Stalled,
    Started,
)
from swarm.errors import RequestError, SwarmError
from swarm.gateway import token_table
from swarm.gateway.http_io import Gateway
from swarm.gateway.sources import Sources
from swarm.gateway.text import ModelText
from swarm.gateway.text_work import Parcel, TextWork
from swarm.notes import Note, note
from swarm.snapshot import (
    HopCost,
    LinkView,
    ModelView,
    NodeView,
    RouteCost,
    SessionView,
    ShardView,
    Snapshot,
)
from swarm.terms import (
    Address,
    Epoch,
    Hop,
    Incarnation,
    LayerRange,
    MemberState,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    Order,
    Route,
    SampledToken,
    SessionId,
    ShardInfo,
    ShardState,
    TokenLogprob,
)

TEXT = ModelText(tiny_text.files(tiny_text.byte_level()))
TABLE = token_table.unpack(*TEXT.packed_table())
END = TEXT.encode("<|end|>", special=False)[0]
CLASS = NumericClass("cpu-f32")
TOKEN = "control-token"
WALL_S = 1_700_000_000.0
"""The gateway's wall clock: 2023-11-14 22:13:20 UTC."""

Step = SessionEvent | asyncio.Event
"""A script is a list of these: events to give out, and events to wait for before going on."""


def spec(name: str = "tiny", *, has_text: bool = True, context: int = 64) -> ModelSpec:
    number = sum(name.encode()) + 256 * has_text
    return ModelSpec(
        model_id=ModelId(f"{number:08x}" * 4),
        name=name,
        layer_count=4,
        hidden_size=8,
        vocab_size=400,
        context_length=context,
        eos_ids=(END,),
        has_text=has_text,
    )


def model(
    name: str = "tiny",
    *,
    missing: tuple[LayerRange, ...] = (),
    has_text: bool = True,
    probe_age_s: float | None = None,
    context: int = 64,
) -> ModelView:
    return ModelView(
        spec(name, has_text=has_text, context=context), not missing, missing, probe_age_s
    )


def route(*nodes: str, numeric_class: NumericClass = CLASS) -> Route:
    """Two layers on each node, in order."""
    hops = [
        Hop(NodeId(node), LayerRange(2 * i, 2 * i + 2), i == 0, i == len(nodes) - 1, numeric_class)
        for i, node in enumerate(nodes)
    ]
    return Route(tuple(hops), predicted_token_s=0.01, slowest_step_s=0.01)


def started(*nodes: str, epoch: int = 1) -> Started:
    return Started(route(*nodes), epoch)


def generated(token_ids: Iterable[int]) -> list[Generated]:
    top = (TokenLogprob(5, -0.5), TokenLogprob(6, float("-inf")))
    return [Generated(SampledToken(i, token, -0.25, top)) for i, token in enumerate(token_ids)]


def spoken(text: str) -> list[Generated]:
    return generated(TEXT.encode(text, special=False))


def costed(*nodes: str) -> RouteCost:
    """A route whose later hops are slower."""
    hops = [
        HopCost(hop.node, hop.layers, 0.0, 0.002 * (1 + i), 0.001, 0.1, 0.01, 0.0)
        for i, hop in enumerate(route(*(node * 32 for node in nodes)).hops)
    ]
    return RouteCost(route(*nodes), tuple(hops), 0.0005, 64, 0.7 + len(nodes), 0.3)


def stats(*nodes: str, stalls: tuple[float, ...] = (), exact: bool = True) -> SessionStats:
    return SessionStats(route(*nodes) if nodes else None, len(stalls), stalls, exact)


def finished(reason: str = "length") -> Finished:
    return Finished(reason, stats("a", "b"))


def failed(error: SwarmError) -> Failed:
    return Failed(error, stats("a", "b"))


def saying(text: str, reason: str = "length") -> list[Step]:
    return [started("a", "b"), *spoken(text), finished(reason)]


def rerouted(before: Sequence[Step], after: Sequence[Step]) -> list[Step]:
    """A loss between the two: stall, new route, the rest."""
    done = Finished("length", stats("a", "c", stalls=(0.125,)))
    lost = [Stalled("b vanished"), started("a", "c", epoch=2)]
    return [started("a", "b"), *before, *lost, *after, done]


class FakeGeneration:
    """Plays a script. Once cancelled it gives nothing more, and does not end by itself either."""

    def __init__(self, session: SessionId, script: Sequence[Step]) -> None:
        self._session = session
        self.cancelled = asyncio.Event()
        self.given = 0
        self._queue: asyncio.Queue[SessionEvent | None] = asyncio.Queue()
        self._player = asyncio.create_task(self._play(script))

    @property
    def session(self) -> SessionId:
        return self._session

    async def _play(self, script: Sequence[Step]) -> None:
        for step in script:
            if isinstance(step, asyncio.Event):
                await step.wait()
            else:
                self._queue.put_nowait(step)
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[SessionEvent]:
        while (event := await self._queue.get()) is not None:
            self.given += 1
            yield event

    def cancel(self) -> None:
        self._player.cancel()
        self.cancelled.set()


class NoteHub:
    """Every reader gets every note, also those from before it came."""

    def __init__(self) -> None:
        self._told: list[Note] = []
        self._readers: list[asyncio.Queue[Note]] = []

    def put_nowait(self, entry: Note) -> None:
        self._told.append(entry)
        for queue in self._readers:
            queue.put_nowait(entry)

    def reader(self) -> asyncio.Queue[Note]:
        queue: asyncio.Queue[Note] = asyncio.Queue()
        for entry in self._told:
            queue.put_nowait(entry)
        self._readers.append(queue)
        return queue


@dataclass
class FakeNode:
    """`scripts` are used up one per request; an error among them is raised by `generate`."""

    views: tuple[ModelView, ...] = field(default_factory=lambda: (model(),))
    scripts: list[Sequence[Step] | SwarmError] = field(default_factory=list)
    always: Callable[[], Sequence[Step]] | None = None
    """Makes the script of every request, instead of `scripts`."""
    files: dict[str, bytes] = field(default_factory=lambda: tiny_text.files(tiny_text.byte_level()))
    orders: list[Order] = field(default_factory=list)
    notices: list[float | None] = field(default_factory=list)
    """Of departures, as they were announced and taken back."""
    generations: list[FakeGeneration] = field(default_factory=list)
    files_read: list[str] = field(default_factory=list)
    notes: NoteHub = field(default_factory=lambda: NoteHub())
    left: asyncio.Event = field(default_factory=asyncio.Event)
    file_error: SwarmError | None = None

    def generate(self, order: Order) -> FakeGeneration:
        self.orders.append(order)
        script = self.always() if self.always is not None else self.scripts.pop(0)
        if isinstance(script, SwarmError):
            raise script
        made = FakeGeneration(SessionId(f"{len(self.generations):016x}"), script)
        self.generations.append(made)
        return made

    def models(self) -> tuple[ModelView, ...]:
        return self.views

    def snapshot(self) -> Snapshot:
        number = max(0, len(self.generations) - 1)
        return snapshot(self.views, SessionId(f"{number:016x}"))

    def explain(
        self, model_id: ModelId, prompt_count: int, max_tokens: int, count: int
    ) -> tuple[RouteCost, ...]:
        return (costed("a", "b"), costed("a", "c"))[:count]

    async def model_file(self, model_id: ModelId, name: str) -> bytes:
        self.files_read.append(name)
        if self.file_error is not None:
            raise self.file_error
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    async def subscribe(self, limit: int) -> AsyncIterator[Note]:
        queue = self.notes.reader()
        while True:
            yield await queue.get()

    def asked(self, ask: Ask) -> None:
        assert not isinstance(ask, TakePart)
        if isinstance(ask, Announce):
            self.notices.append(ask.in_s)
            return
        if isinstance(ask, LoadModel) and ask.name == "tiny":
            raise RequestError("tiny is served already", status=409)
        if isinstance(ask, LoadModel):
            layers = str(ask.layers)
            self.notes.put_nowait(note("shard.load", model="another", layers="0:1"))
            self.notes.put_nowait(note("shard.load", model=ask.name, layers=layers))
            outcomes = {"bad": "shard.failed", "gone": "shard.unloaded"}
            outcome = outcomes.get(ask.name, "shard.serving")
            self.notes.put_nowait(note(outcome, model=ask.name, layers=layers, reason="no room"))
            return
        if ask.name != "tiny":
            raise RequestError(f"{ask.name} is not served here", status=404)
        self.notes.put_nowait(note("shard.unloaded", model=ask.name))

    async def leave(self, grace_s: float) -> None:
        self.left.set()


def snapshot(views: tuple[ModelView, ...], session_id: SessionId) -> Snapshot:
    """Two nodes; a session that this one started."""
    name = views[0].spec.name if views else "none"
    info = ShardInfo(
        views[0].spec.model_id if views else ModelId("0" * 32),
        LayerRange(0, 2),
        True,
        False,
        CLASS,
        ShardState.SERVING,
        64,
        4096,
        32,
    )
    one = NodeView(
        node=NodeId("a" * 32),
        name="anna",
        state=MemberState.ALIVE,
        incarnation=Incarnation(3),
        is_self=True,
        linked=False,
        addresses=(Address("192.168.1.5", 7000), Address("fe80::1", 7000)),
        device="cpu",
        memory_bytes=1 << 30,
        shards=(ShardView(info, None),),
        rtt_s=None,
        goodput_bytes_s=None,
        penalty_s=0.0,
    )
    two = replace(
        one, node=NodeId("b" * 32), name="bert", is_self=False, linked=True, rtt_s=0.0012, shards=()
    )
    session = SessionView(session_id, name, route("a" * 32, "b" * 32), 17, Epoch(2), 1, "running")
    return Snapshot(
        node=one.node,
        name=one.name,
        version="0.1.0",
        swarm="tag",
        is_open=False,
        nodes=(one, two),
        models=views,
        links=(LinkView(one.node, two.node, 0.0012, 1e8),),
        sessions=(session,),
        recent=(),
        hops=(),
        kv_used_bytes=10,
        kv_capacity_bytes=4096,
        foreign_swarms=("other",),
    )


class InlineHelper:
    """Does the helper process's work at once, where no test is about the process."""

    def __init__(self, config: GatewayConfig) -> None:
        self._work = TextWork(config)

    async def ask(self, parcel: Parcel) -> Parcel:
        return self._work.answer(*parcel)

    async def close(self) -> None:
        """Nothing runs."""


@dataclass
class Served:
    """A running gateway: where it is and what it told."""

    url: str
    address: Address
    gateway: Gateway
    notes: list[Note]


@asynccontextmanager
async def serving(
    node: FakeNode,
    config: GatewayConfig | None = None,
    host: str = "127.0.0.1",
    *,
    real_helper: bool = False,
    home: Path | None = None,
) -> AsyncIterator[Served]:
    """A gateway on a free port. Time stands still but for a tick with every look at the clock.

    `home`: where keys of the API and usage are kept; without, there are none.
    """
    ticks = itertools.count()
    notes: list[Note] = []
    sources = Sources(lambda: next(ticks) / 1000, lambda: WALL_S, lambda: 4242)
    if home is not None:
        sources = replace(sources, keys=KeyStore(home), usage=UsageStore(home))
    config = config or GatewayConfig()
    helper = None if real_helper else InlineHelper(config)
    gateway = Gateway(node, config, sources, notes.append, TOKEN, helper)
    address = await gateway.start(host, 0)
    reached = Address("127.0.0.1", address.port)
    try:
        yield Served(f"http://{reached}", reached, gateway, notes)
    finally:
        await gateway.stop()
