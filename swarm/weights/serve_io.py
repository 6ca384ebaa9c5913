"""Hands out pieces of this node's models to peers that ask, within limits, off the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swarm.config import WeightsConfig
from swarm.errors import ShardError
from swarm.messages import (
    SLICE_BYTES,
    Holding,
    HoldingRequest,
    Message,
    PieceFault,
    PieceRefused,
    PieceRequest,
    PieceSlice,
)
from swarm.shard.checkpoint import GGUF_HEAD_NAME, PIECE_BYTES, parse_manifest
from swarm.shard.gguf_head import gguf_head
from swarm.terms import ModelId, NodeId
from swarm.weights.layout import as_bits
from swarm.weights.pace import Effort, Pacer
from swarm.weights.store_io import tensor_places

ROOM_TIMEOUT_S = 10.0
"""A peer that takes nothing for this long has what it asked for refused."""
TURN_MAX_S = 5.0
"""No slice waits longer for a slow link: the node may be idle by then, or know it better."""
HOLDING_ANSWERS_MAX = 32
"""Peers whose question what is here is being answered at one time."""

Place = tuple[Path, int, int]
"""File, first byte, bytes of a tensor."""


@dataclass(frozen=True, slots=True)
class ServePorts:
    """What serving needs of its node.

    manifests  per model the checkpoint's path and that of its manifest
    goodput    bytes a second to a peer, measured or estimated
    is_busy    whether sessions run on this node
    effort     processor time that the loop's thread has taken, seconds
    """

    send: Callable[[NodeId, Message], bool]
    open_bulk: Callable[[NodeId], None]
    bulk_has_room: Callable[[NodeId], bool]
    manifests: Callable[[], Mapping[ModelId, tuple[str, str]]]
    goodput: Callable[[NodeId], float]
    is_busy: Callable[[], bool]
    clock: Callable[[], float]
    effort: Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Index:
    """Where the tensors of a model lie, by number. `stamp`: of the folder it was read from."""

    stamp: int
    places: tuple[Place | None, ...]


class PieceServer:
    def __init__(self, ports: ServePorts, config: WeightsConfig) -> None:
        self._ports = ports
        self._config = config
        self._pacer = Pacer()
        """Of all uploads together."""
        self._busy_pacer = Pacer(TURN_MAX_S)
        """The same while sessions run here, by the fastest link that is in use."""
        self._effort = Effort(config.upload_busy_time, TURN_MAX_S)
        """The processor's time that it takes while sessions run here."""
        self._pacers: dict[NodeId, Pacer] = {}
        """And of those to each peer: a slow one is waited for by nobody else."""
        self._indexes: dict[ModelId, _Index] = {}
        self._queues: dict[NodeId, deque[PieceRequest]] = {}
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._answers: dict[NodeId, asyncio.Task[None]] = {}
        self._ready: dict[NodeId, asyncio.Event] = {}

    # ------------------------------------------------------------ facts in

    def holding_requested(self, peer: NodeId, message: HoldingRequest) -> None:
        if peer not in self._answers and len(self._answers) < HOLDING_ANSWERS_MAX:
            task = asyncio.get_running_loop().create_task(self._say_holding(peer, message.model_id))
            self._answers[peer] = task
            task.add_done_callback(lambda _: self._answers.pop(peer, None))

    def piece_requested(self, peer: NodeId, message: PieceRequest) -> None:
        queue = self._queues.setdefault(peer, deque())
        in_all = sum(len(each) for each in self._queues.values())
        config = self._config
        if len(queue) >= config.uploads_per_peer_max or in_all >= config.uploads_max:
            self._refuse(peer, message, PieceFault.BUSY)
            return
        queue.append(message)
        self._ports.open_bulk(peer)
        if peer not in self._tasks:
            self._start(peer, queue)

    def bulk_ready(self, peer: NodeId) -> None:
        event = self._ready.get(peer)
        if event is not None:
            event.set()

    def link_down(self, peer: NodeId) -> None:
        for tasks in (self._tasks, self._answers):
            if peer in tasks:
                tasks[peer].cancel()

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ answering

    def _start(self, peer: NodeId, queue: deque[PieceRequest]) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(peer, queue))
        self._tasks[peer] = task
        task.add_done_callback(lambda done: self._served(peer, is_over=done.cancelled()))

    def _served(self, peer: NodeId, *, is_over: bool) -> None:
        del self._tasks[peer]
        queue = self._queues[peer]
        if queue and not is_over:
            self._start(peer, queue)  # it was asked for more in the last moment
            return
        del self._queues[peer]
        self._ready.pop(peer, None)
        self._pacers.pop(peer, None)

    async def _say_holding(self, peer: NodeId, model_id: ModelId) -> None:
        places = await self._places(model_id)
        held = [number for number, place in enumerate(places) if place is not None]
        self._ports.send(peer, Holding(model_id, as_bits(held, len(places)) if held else b""))

    async def _serve(self, peer: NodeId, queue: deque[PieceRequest]) -> None:
        while queue:
            request = queue[0]
            data = await self._read(request)
            queue.popleft()
            if data is None:
                self._refuse(peer, request, PieceFault.ABSENT)
            elif not await self._send_piece(peer, request, data):
                self._refuse(peer, request, PieceFault.BUSY)

    async def _send_piece(self, peer: NodeId, request: PieceRequest, data: bytes) -> bool:
        """Whether the peer took all of it."""
        model_id, tensor, piece = request.model_id, request.tensor, request.piece
        for offset in range(0, max(1, len(data)), SLICE_BYTES):
            part = data[offset : offset + SLICE_BYTES]
            await self._wait_turn(peer, len(part))
            message = PieceSlice(model_id, tensor, piece, offset, part)
            if not await self._room(peer):
                return False
            began = self._ports.effort()
            if not self._ports.send(peer, message):
                return False
            if self._ports.is_busy():
                self._effort.spent(self._ports.effort() - began, self._ports.clock())
        return True

    async def _wait_turn(self, peer: NodeId, byte_count: int) -> None:
        now = self._ports.clock()
        wait_s = self._pacer.wait_s(byte_count, self._config.upload_bytes_s, now)
        if self._ports.is_busy():
            share, goodput = self._config.upload_busy_share, self._ports.goodput
            best = max(goodput(peer), *map(goodput, self._tasks))
            pacer = self._pacers.setdefault(peer, Pacer(TURN_MAX_S))
            of_all = self._busy_pacer.wait_s(byte_count, share * best, now)
            of_peer = pacer.wait_s(byte_count, share * goodput(peer), now)
            wait_s = max(wait_s, of_all, of_peer, self._effort.wait_s(now))
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _room(self, peer: NodeId) -> bool:
        """Wait until the bulk lane takes something; False when it does not in time."""
        event = self._ready.setdefault(peer, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(ROOM_TIMEOUT_S):
                while not self._ports.bulk_has_room(peer):
                    event.clear()
                    await event.wait()
                return True
        return False

    def _refuse(self, peer: NodeId, request: PieceRequest, fault: PieceFault) -> None:
        refused = PieceRefused(request.model_id, request.tensor, request.piece, fault)
        self._ports.send(peer, refused)

    # ------------------------------------------------------------ files

    async def _read(self, request: PieceRequest) -> bytes | None:
        places = await self._places(request.model_id, fresh=False)
        start = request.piece * PIECE_BYTES
        if not 0 <= request.tensor < len(places) or request.piece < 0:
            return None
        place = places[request.tensor]
        if place is None or (start >= place[2] and request.piece):
            return None
        file, first, byte_count = place
        return await asyncio.to_thread(
            _read_at, file, first + start, min(PIECE_BYTES, byte_count - start)
        )

    async def _places(self, model_id: ModelId, *, fresh: bool = True) -> tuple[Place | None, ...]:
        """By tensor number; empty for a model that is not here. `fresh`: look for new files."""
        known = self._ports.manifests().get(model_id)
        if known is None:
            return ()
        index = self._indexes.get(model_id)
        if index is None or fresh:
            index = await asyncio.to_thread(_indexed, Path(known[0]), Path(known[1]), index)
            self._indexes[model_id] = index
        return index.places


def _indexed(folder: Path, manifest_path: Path, known: _Index | None) -> _Index:
    """Read where tensors lie, unless the folder, or the GGUF file, is as it was."""
    try:
        stamp = folder.stat().st_mtime_ns
        if known is not None and known.stamp == stamp:
            return known
        manifest = parse_manifest(manifest_path.read_bytes())
        if folder.is_file():
            head = gguf_head(manifest_path.with_name(GGUF_HEAD_NAME).read_bytes())
            places = {
                name: (folder, head.starts[name], entry.byte_count)
                for name, entry in manifest.tensors.items()
                if name in head.starts
            }
        else:
            places = tensor_places(folder)
    except (OSError, ShardError):
        return _Index(0, ())
    return _Index(stamp, tuple(places.get(name) for name in sorted(manifest.tensors)))


def _read_at(file: Path, start: int, byte_count: int) -> bytes | None:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            data = stream.read(byte_count)
    except OSError:
        return None
    return data if len(data) == byte_count else None
