"""The node on an event loop: carries facts to `NodeCore` and its orders to links and worker.

Everything it touches is handed in, so the simulator runs the same class. One input at a time:
take `now` once, call the core, carry out its effects, re-arm the one timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, assert_never

from swarm.asks import Ask
from swarm.effects import (
    CloseLink,
    Dial,
    DialVia,
    DropModel,
    Effect,
    Failed,
    FetchHub,
    FetchLayers,
    FetchModel,
    Finished,
    OpenChannel,
    Reply,
    SaveIncarnation,
    SavePeers,
    SaveStays,
    Send,
    StartWorker,
    StopHub,
    StopWorker,
    Tell,
    ToWorker,
)
from swarm.errors import ConfigError
from swarm.fetch_facts import Fact
from swarm.link.link_io import SELF_DIALLED, Links, Peer
from swarm.messages import (
    FileChunk,
    FileRequest,
    Holding,
    HoldingRequest,
    Message,
    PieceRefused,
    PieceRequest,
    PieceSlice,
)
from swarm.model_files_io import LocalFiles, ModelFiles
from swarm.node import NodeCore
from swarm.node_links_io import link_speeds, order, vitals
from swarm.node_streams_io import GenerationIo as GenerationIo
from swarm.node_streams_io import NoteStream as NoteStream
from swarm.node_weights_io import weight_ports
from swarm.notes import Level, Note, NoteSink, note
from swarm.routing.alternatives import alternatives
from swarm.routing.cost import PlanRequest
from swarm.shard.worker_client_io import WorkerPort
from swarm.snapshot import ModelView, RouteCost, Snapshot
from swarm.terms import Address, LinkKind, ModelId, NodeId, Order, SessionId, Way, short
from swarm.weights.hub_fetch_io import HubFetches
from swarm.weights.store_io import ModelStore
from swarm.weights.weights_io import Weights
from swarm.worker_desk_io import WorkerDesk

LAG_WORTH_TELLING_S = 0.005
"""A timer later than this counts as a stall of our own loop."""
LINK_STATS_INTERVAL_S = 1.0
COPIES_TOLD_MAX = 64
"""Copies of this node that are told of, each once."""
TIMER_SLACK_S = 0.025
"""A timer this close is left as it is: with links in use there always is one, and asking all parts
for their deadlines at every message costs more than being this late."""
TIMER_MIN_S = 0.0001
"""Nearer timers are not set: a part that is just not due at its own deadline, by a rounding of its
clock, would keep the loop from everything else."""


class Store(Protocol):
    """What a node keeps on disk. Small and rarely written."""

    def save_incarnation(self, incarnation: int) -> None: ...

    def save_peers(self, addresses: tuple[Address, ...]) -> None: ...

    def save_stays(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The world of one node."""

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    entropy: Callable[[int], bytes]
    worker: WorkerPort
    store: Store
    files: LocalFiles
    sink: NoteSink
    models: ModelStore | None = None
    """Where models from peers are kept; None: none are fetched."""
    beside: tuple[WorkerPort, ...] = ()
    """Workers of the node's other devices, whose events name the device."""


class NodeIo:
    """Implements `NodePort` for gateways, and the event interfaces of links and worker."""

    def __init__(self, core: NodeCore, parts: Parts) -> None:
        self._core = core
        self._parts = parts
        self._links: Links | None = None
        self._files = ModelFiles(parts.files, self._send, core.holders)
        ports = weight_ports(core, lambda: self._links, parts.clock, self.model_file,
                             self._fetch_fact, self._tell)  # fmt: skip
        self._weights = Weights(core.about.node, ports, parts.models, core.config.weights)
        self._hub = HubFetches(self._fetch_fact, self._tell)
        self._generations: dict[SessionId, GenerationIo] = {}
        self._streams: list[NoteStream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._stats_at = parts.clock()
        self._stalls, self._stall_s = 0, 0.0
        self._desks = [
            WorkerDesk(parts.loop, worker, partial(self.worker_lost, device=device))
            for device, worker in enumerate((parts.worker, *parts.beside))
        ]
        self._stopped = False
        self._idle = asyncio.Event()
        self._link_came = asyncio.Event()
        self.left = asyncio.Event()
        self.identity_lost = asyncio.Event()
        """Set when another living node, the `keeper`, keeps this node's identity: `hand_over`,
        stop, and start anew under a fresh one."""
        self.keeper: Address | None = None
        self._copies: set[Address] = set()

    # ------------------------------------------------------------ life

    def attach(self, links: Links) -> None:
        """Links need their node to report to, so they come after it."""
        self._links = links

    def start(self, seeds: tuple[Address, ...], remembered: tuple[Address, ...]) -> None:
        self._core.start(seeds, remembered, self._parts.clock())
        self._carry_out()

    def asked(self, ask: Ask) -> None:
        self._core.asked(ask, self._parts.clock())
        self._carry_out()

    async def leave(self, grace_s: float) -> None:
        self._core.leave(self._parts.clock())
        self._carry_out()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        self._core.depart(self._parts.clock())
        self._carry_out()
        self.left.set()

    async def hand_over(self, grace_s: float) -> None:
        """The end of a node whose identity lives on elsewhere: nothing departs from the swarm."""
        self._core.hand_over(self._parts.clock())
        self._carry_out()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)

    async def stop(self) -> None:
        """End everything this node has running. The links are closed by their owner."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for desk in self._desks:
            await desk.halt()
        await self._files.close()
        await self._hub.close()
        await self._weights.close()
        for desk in self._desks:
            await desk.close()

    # ------------------------------------------------------------ LinkEvents, DiscoveryEvents

    def link_up(self, peer: Peer) -> None:
        dialled = peer.address if peer.dialled and peer.kind is LinkKind.DIRECT else None
        way = Way(peer.kind, peer.via)
        self._core.link_up(peer.node, peer.incarnation, dialled, self._now(), way)
        self._link_came.set()
        self._carry_out()

    def link_down(self, peer: NodeId, cause: str, orderly: bool) -> None:
        self._core.link_down(peer, cause, orderly=orderly, now=self._now())
        self._weights.link_down(peer)
        self._carry_out()

    def message_received(self, peer: NodeId, message: Message) -> None:
        match message:
            case FileRequest():
                self.heard(peer)
                self._files.requested(peer, message)
            case FileChunk():
                self.heard(peer)
                self._files.arrived(peer, message)
            case HoldingRequest() | Holding() | PieceRequest() | PieceRefused() | PieceSlice():
                self.heard(peer)
                self._weights.received(peer, message)
            case _:
                self._core.receive(peer, message, self._now())
                self._carry_out()

    def heard(self, peer: NodeId) -> None:
        self._core.heard(peer, self._now())

    def dial_failed(
        self, addresses: tuple[Address, ...], expected: NodeId | None, reason: str
    ) -> None:
        self._tell(note("link.dial_failed", Level.DEBUG, reason=reason,
                        addresses=",".join(map(str, addresses))))  # fmt: skip
        if SELF_DIALLED in reason and expected is None:
            self._core.reached_self(addresses, self._now())
        else:
            self._core.dial_failed(addresses, expected, self._now())
        self._carry_out()

    def relay_failed(self, peer: NodeId, via: NodeId, reason: str) -> None:
        self._tell(note("link.relay_failed", Level.DEBUG, peer=short(peer), via=short(via),
                        reason=reason))  # fmt: skip
        self._core.relay_failed(peer, via, self._now())
        self._carry_out()

    def copy_met(self, address: Address, yields: bool) -> None:
        if address not in self._copies and len(self._copies) < COPIES_TOLD_MAX:
            self._copies.add(address)
            self._tell(note("node.copied", Level.WARNING, address=str(address), yields=yields))
        if yields:
            self.keeper = self.keeper or address
            self.identity_lost.set()

    def copy_reported(self, address: Address) -> None:
        self._tell(note("node.copy_reported", Level.WARNING, address=str(address)))

    def lane_writable(self, peer: NodeId) -> None:
        """Credits bound what is in flight; nothing waits for the lane here."""

    def bulk_ready(self, peer: NodeId) -> None:
        self._weights.bulk_ready(peer)

    def peer_sighted(self, node: NodeId, addresses: tuple[Address, ...]) -> None:
        self._core.sighted(node, addresses, self._now())
        self._carry_out()

    def foreign_swarm(self, tag: str, name: str) -> None:
        self._core.foreign_swarm(tag, name)
        self._carry_out()

    def addresses_changed(self, addresses: tuple[Address, ...]) -> None:
        self._core.addresses_changed(addresses, self._now())
        self._carry_out()

    # ------------------------------------------------------------ WorkerEvents

    def worker_message(self, message: Message, device: int = 0) -> None:
        self._core.worker_message(message, self._now(), device)
        self._carry_out()

    def worker_lost(self, reason: str, device: int = 0) -> None:
        self._desks[device].ended()
        if not self._stopped:
            self._core.worker_lost(reason, self._now(), device)
            self._carry_out()

    # ------------------------------------------------------------ NodePort

    def generate(self, order: Order) -> GenerationIo:
        session = SessionId(self._parts.entropy(8).hex())
        generation = GenerationIo(session, self._cancel)
        self._generations[session] = generation
        try:
            self._core.generate(session, order, self._parts.clock())
        except BaseException:
            del self._generations[session]
            raise
        self._carry_out()
        return generation

    def models(self) -> tuple[ModelView, ...]:
        return self._core.models(self._parts.clock())

    def snapshot(self) -> Snapshot:
        found = vitals(self._links, self._stalls, self._stall_s)
        return replace(self._core.snapshot(self._parts.clock()), vitals=found)

    def explain(
        self, model_id: ModelId, prompt_count: int, max_tokens: int, count: int
    ) -> tuple[RouteCost, ...]:
        model = next((m.spec for m in self.models() if m.spec.model_id == model_id), None)
        if model is None:
            return ()
        request = PlanRequest(model, self._core.about.node, prompt_count, 0, max_tokens)
        return alternatives(self._core.swarm_view(), request, self._core.config.routing, count)

    async def model_file(self, model_id: ModelId, name: str) -> bytes:
        if model_id not in self._core.manifests() and not self._core.holders(model_id):
            await self._reach_holder(model_id)
        return await self._files.get(model_id, name)

    async def _reach_holder(self, model_id: ModelId) -> None:
        """In a partial mesh perhaps nobody that is linked has the model."""
        is_sought = self._core.seek_holder(model_id, self._parts.clock())
        self._carry_out()
        if is_sought:
            with suppress(TimeoutError):
                limit_s = self._core.config.routing.dial_wait_s
                await asyncio.wait_for(self._holder_linked(model_id), limit_s)

    async def _holder_linked(self, model_id: ModelId) -> None:
        while not self._core.holders(model_id):
            self._link_came.clear()
            await self._link_came.wait()

    async def subscribe(self, limit: int) -> AsyncIterator[Note]:
        stream = NoteStream(limit)
        self._streams.append(stream)
        try:
            async for entry in stream.read():
                yield entry
        finally:
            self._streams.remove(stream)

    def _cancel(self, session: SessionId) -> None:
        self._generations.pop(session, None)
        self._core.cancel(session, self._parts.clock())
        self._carry_out()

    # ------------------------------------------------------------ effects

    def _carry_out(self) -> None:
        if not self._core.stirred:
            return
        self._core.stirred = False
        while effects := self._core.take_effects():
            for effect in effects:
                self._do(effect)
        if self._core.is_idle:
            self._idle.set()
        else:
            self._idle.clear()
        self._arm()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect.peer, effect.message)
            case Dial() | DialVia() | OpenChannel() | CloseLink():
                order(self._links, effect)
            case ToWorker():
                self._desks[effect.device or 0].send(effect.message)
            case StartWorker():
                self._desks[effect.device].start()
            case StopWorker():
                self._desks[effect.device].stop()
            case SaveIncarnation() | SavePeers() | SaveStays():
                self._save(effect)
            case Reply():
                self._reply(effect)
            case Tell():
                self._tell(effect.note)
            case FetchModel():
                self._weights.fetch_model(effect)
            case FetchLayers():
                self._weights.fetch_layers(effect)
            case DropModel():
                self._weights.drop(effect.model_id)
            case FetchHub():
                self._hub.fetch(effect)
            case StopHub():
                self._hub.stop(effect.hub)
            case _:
                assert_never(effect)

    def _save(self, effect: SaveIncarnation | SavePeers | SaveStays) -> None:
        """A disk that fails costs the memory of this, not the node."""
        try:
            if isinstance(effect, SaveIncarnation):
                self._parts.store.save_incarnation(effect.incarnation)
            elif isinstance(effect, SaveStays):
                self._parts.store.save_stays(effect.data)
            else:
                self._parts.store.save_peers(effect.addresses)
        except ConfigError as error:
            self._tell(note("home.not_saved", Level.WARNING, detail=str(error)))

    def _send(self, peer: NodeId, message: Message) -> bool:
        return self._links is not None and self._links.send(peer, message)

    def _reply(self, effect: Reply) -> None:
        generation = self._generations.get(effect.session)
        if generation is None:
            return
        generation.push(effect.event)
        if isinstance(effect.event, Finished | Failed):
            del self._generations[effect.session]

    def _tell(self, entry: Note) -> None:
        self._parts.sink(entry)
        for stream in self._streams:
            stream.push(entry)

    # ------------------------------------------------------------ weights

    def _fetch_fact(self, fact: Fact) -> None:
        self._core.fetch_fact(fact, self._parts.clock())
        self._carry_out()

    # ------------------------------------------------------------ time

    def _arm(self) -> None:
        now = self._parts.clock()
        if self._timer is not None and self._due <= now + TIMER_SLACK_S:
            return
        stats_at = self._stats_at + LINK_STATS_INTERVAL_S
        due = max(now + TIMER_MIN_S, min(self._core.next_deadline() or stats_at, stats_at))
        if self._stopped or (self._timer is not None and self._due == due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._parts.loop.call_later(due - now, self._on_timer)

    def _now(self) -> float:
        """The time of an input. After a stall of our own loop the sockets speak before the overdue
        timer does, so whoever comes first tells the core of the lag."""
        now = self._parts.clock()
        late_s = now - self._due
        if self._timer is not None and late_s > LAG_WORTH_TELLING_S:
            self._due = now
            self._stalls += 1
            self._stall_s += late_s
            self._core.loop_lag(late_s, now)
        return now

    def _on_timer(self) -> None:
        now = self._now()
        self._timer = None
        if now >= self._stats_at + LINK_STATS_INTERVAL_S:
            self._stats_at = now
            unknown_bytes_s = self._core.config.routing.unknown_goodput_bytes_s
            for speed in link_speeds(self._links, unknown_bytes_s):
                self._core.link_measured(speed, now)
        self._core.tick(now)
        self._carry_out()
