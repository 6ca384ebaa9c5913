"""One fetch at work: carries its orders to peers, proves what comes, and writes it down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from swarm.config import WeightsConfig
from swarm.errors import SwarmError
from swarm.messages import (
    SLICE_BYTES,
    Message,
    PieceFault,
    PieceRefused,
    PieceRequest,
    PieceSlice,
)
from swarm.notes import Level, NoteSink, note
from swarm.terms import ModelId, NodeId, short
from swarm.weights.fetch import Ask, Fetch, Outcome
from swarm.weights.layout import FilePlan, PieceSpec
from swarm.weights.store_io import ModelStore


@dataclass(frozen=True, slots=True)
class FetchPorts:
    """What a fetch needs of its node. `disk`: where files are read, proven and written."""

    send: Callable[[NodeId, Message], bool]
    open_bulk: Callable[[NodeId], None]
    clock: Callable[[], float]
    sink: NoteSink
    disk: Executor


class FileSet:
    """The files that are wanted, the pieces they are made of, and which of those are missing."""

    def __init__(self, model_id: ModelId, plans: Sequence[tuple[FilePlan, Sequence[PieceSpec]]]):
        self.model_id = model_id
        self.plans = plans
        self.pieces = [piece for _, pieces in plans for piece in pieces]
        self.number = {(p.tensor, p.index): i for i, p in enumerate(self.pieces)}
        self.tensor_limit = 1 + max((piece.tensor for piece in self.pieces), default=-1)
        """Above the number of every tensor that is wanted."""
        self.missing: dict[str, set[int]] = {plan.name: set() for plan, _ in plans}
        for number, piece in enumerate(self.pieces):
            self.missing[piece.file].add(number)

    def here(self, store: ModelStore) -> list[int]:
        """Pieces that are on the disk already."""
        found = [have for plan, ps in self.plans for have in store.have(self.model_id, plan, ps)]
        return [number for number, have in enumerate(found) if have]

    def plan(self, name: str) -> FilePlan:
        return next(plan for plan, _ in self.plans if plan.name == name)


class Download:
    """Of one set of files. `run` ends when all are whole; its owner hands it what peers say."""

    def __init__(
        self, files: FileSet, store: ModelStore, ports: FetchPorts, config: WeightsConfig, salt: int
    ) -> None:
        self._files = files
        self._store = store
        self._ports = ports
        self._config = config
        self._core = Fetch(files.pieces, config, salt)
        self._early: dict[NodeId, frozenset[int]] | None = {}
        """What peers held before it was known what is here; nothing is asked for until then."""
        self._buffers: dict[tuple[NodeId, int], bytearray] = {}
        self._proving: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._done = asyncio.Event()
        self._error: SwarmError | OSError | None = None
        self._starved_at: float | None = None
        self._came_bytes = 0
        self._told_percent = -1
        self._unfinished = set(files.missing)
        self.sources: dict[NodeId, int] = {}
        """Pieces that each source gave."""

    @property
    def model_id(self) -> ModelId:
        return self._files.model_id

    @property
    def tensor_limit(self) -> int:
        """What peers hold from this number on does not matter."""
        return self._files.tensor_limit

    @property
    def total_bytes(self) -> int:
        return self._core.total_bytes

    @property
    def done_bytes(self) -> int:
        return self._core.done_bytes

    @property
    def came_bytes(self) -> int:
        """What came from peers, without what was here before."""
        return self._came_bytes

    async def run(self) -> None:
        """Raises OSError or a SwarmError when the disk does not take it."""
        loop = asyncio.get_running_loop()
        here = await loop.run_in_executor(self._ports.disk, self._files.here, self._store)
        touched = {self._files.pieces[number].file for number in here}
        for number in here:
            self._files.missing[self._files.pieces[number].file].discard(number)
        for name, missing in self._files.missing.items():
            if not missing and (name in touched or not self._files.plan(name).tensors):
                await self._finish(name)
        self._core.had(here, self._ports.clock())
        early, self._early = self._early or {}, None
        for peer, tensors in early.items():
            self._core.holds(peer, tensors, self._ports.clock())
        self._tell_progress()
        self._pump()
        try:
            await self._done.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._proving:
                task.cancel()
            await asyncio.gather(*self._proving, return_exceptions=True)
        if self._error is not None:
            raise self._error

    def starved_s(self, now: float) -> float:
        """For how long nobody has had what is missing."""
        return 0.0 if self._starved_at is None else now - self._starved_at

    # ------------------------------------------------------------ facts in

    def holds(self, peer: NodeId, tensors: frozenset[int]) -> None:
        if self._early is not None:
            self._early[peer] = tensors
            return
        self._core.holds(peer, tensors, self._ports.clock())
        self._pump()

    def link_down(self, peer: NodeId) -> None:
        for key in [key for key in self._buffers if key[0] == peer]:
            del self._buffers[key]
        if self._early is not None:
            self._early.pop(peer, None)
        self._core.lost(peer, self._ports.clock())
        self._pump()

    def refused(self, peer: NodeId, message: PieceRefused) -> None:
        number = self._files.number.get((message.tensor, message.piece))
        if number is not None and self._buffers.pop((peer, number), None) is not None:
            is_absent = message.fault is PieceFault.ABSENT
            self._ended(peer, number, Outcome.ABSENT if is_absent else Outcome.BUSY)

    def arrived(self, peer: NodeId, message: PieceSlice) -> None:
        """A slice that was not asked for, or no longer is, is dropped."""
        number = self._files.number.get((message.tensor, message.piece))
        buffer = None if number is None else self._buffers.get((peer, number))
        if number is None or buffer is None:
            return
        left = self._files.pieces[number].byte_count - len(buffer)
        if message.offset != len(buffer) or len(message.payload) != min(SLICE_BYTES, left):
            del self._buffers[(peer, number)]
            self._ended(peer, number, Outcome.BAD)
            return
        buffer += message.payload
        self._core.progressed(peer, number, self._ports.clock())
        if len(message.payload) == left:
            del self._buffers[(peer, number)]
            task = asyncio.get_running_loop().create_task(self._prove(peer, number, buffer))
            self._proving.add(task)
            task.add_done_callback(self._proving.discard)

    def missing(self) -> dict[str, list[int]]:
        """Pieces that have yet to come, by the file that they belong to."""
        return {name: sorted(pieces) for name, pieces in self._files.missing.items() if pieces}

    def piece(self, number: int) -> PieceSpec:
        return self._files.pieces[number]

    async def given(self, number: int, data: bytes) -> bool:
        """A piece that came by another way than from a peer; whether it is the model's."""
        piece, loop = self._files.pieces[number], asyncio.get_running_loop()
        if not await loop.run_in_executor(
            self._ports.disk, self._store.put, self.model_id, piece, data
        ):
            return False
        missing = self._files.missing[piece.file]
        if number in missing:
            missing.discard(number)
            if not missing:
                await self._finish(piece.file)
        self._core.had([number], self._ports.clock())
        self._tell_progress()
        self._pump()
        return True

    # ------------------------------------------------------------ inside

    async def _prove(self, peer: NodeId, number: int, data: bytearray) -> None:
        """Check a piece against its hash; only then is it written."""
        piece = self._files.pieces[number]
        loop = asyncio.get_running_loop()
        try:
            is_true = await loop.run_in_executor(
                self._ports.disk, self._store.put, self.model_id, piece, data
            )
            if is_true:
                await self._came(peer, number, piece.file)
        except (OSError, SwarmError) as error:
            self._fail(error)
            return
        self._ended(peer, number, Outcome.GOOD if is_true else Outcome.BAD)

    async def _came(self, peer: NodeId, number: int, file: str) -> None:
        missing = self._files.missing[file]
        if number not in missing:
            return
        missing.discard(number)
        self.sources[peer] = self.sources.get(peer, 0) + 1
        self._came_bytes += self._files.pieces[number].byte_count
        if not missing:
            await self._finish(file)

    async def _finish(self, name: str) -> None:
        plan = self._files.plan(name)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._ports.disk, self._store.finish, self.model_id, plan)
        self._unfinished.discard(name)

    def _ended(self, peer: NodeId, number: int, outcome: Outcome) -> None:
        if outcome is Outcome.BAD:
            self._ports.sink(note("weights.false", Level.WARNING, peer=short(peer),
                                  file=self._files.pieces[number].file))  # fmt: skip
        self._core.ended(peer, number, outcome, self._ports.clock())
        self._tell_progress()
        self._pump()

    def _tell_progress(self) -> None:
        """Each percent once."""
        percent = 100 * self.done_bytes // max(1, self.total_bytes)
        if percent > self._told_percent:
            self._told_percent = percent
            self._ports.sink(note("weights.fetching", Level.DEBUG, percent=percent))

    def _fail(self, error: SwarmError | OSError) -> None:
        self._error = self._error or error
        self._done.set()

    def _pump(self) -> None:
        """Carry out what the core wants, and look again when it is due."""
        while orders := self._core.take_orders():
            for order in orders:
                key = (order.source, order.piece)
                if not isinstance(order, Ask):
                    self._buffers.pop(key, None)
                    continue
                piece = self._files.pieces[order.piece]
                self._buffers[key] = bytearray()
                self._ports.open_bulk(order.source)
                request = PieceRequest(self.model_id, piece.tensor, piece.index)
                if not self._ports.send(order.source, request):
                    self._core.lost(order.source, self._ports.clock())
        now = self._ports.clock()
        if not self._core.is_starved:
            self._starved_at = None
        elif self._starved_at is None:
            self._starved_at = now
        if self._core.is_done and not self._unfinished:
            self._done.set()
        self._arm(now)

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._core.next_deadline()
        if due is None or self._done.is_set():
            self._timer = None
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.001, due - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._core.tick(self._ports.clock())
        self._pump()
