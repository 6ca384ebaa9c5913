"""Weights of one node: what it gets from peers and what it gives them.

Manifest, piece hashes and texts of a model come first, proven by the ModelId; then, once the node
has chosen its layers, their weights, piece by piece from all that have them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from swarm.config import WeightsConfig
from swarm.effects import FetchLayers, FetchModel
from swarm.errors import CapacityError, LinkError, ShardError, SwarmError
from swarm.fetch_facts import FetchFact, FetchFailed, LayersFetched, LayersShort, ModelFetched
from swarm.messages import (
    Holding,
    HoldingRequest,
    PieceRefused,
    PieceRequest,
    PieceSlice,
)
from swarm.notes import note
from swarm.shard.checkpoint import (
    MANIFEST_NAME,
    PIECES_NAME,
    Manifest,
    parse_manifest,
    piece_hashes,
)
from swarm.terms import ModelId, NodeId
from swarm.weights.fetch_io import Download, FetchPorts, FileSet
from swarm.weights.hub_fill_io import fill_from_hub
from swarm.weights.layout import (
    file_plans,
    from_bits,
    needed_files,
    obtainable_layers,
    pieces_of,
)
from swarm.weights.serve_io import PieceServer, ServePorts
from swarm.weights.store_io import ModelStore, check_texts, tensor_places

WeightMessage = HoldingRequest | Holding | PieceRequest | PieceRefused | PieceSlice
DISK_THREADS = 2


@dataclass(frozen=True, slots=True)
class WeightPorts:
    """What a node lends. `text`: a proven text file of a model; `holders`: linked members that have
    some of it; `tell`: takes what became of an order."""

    serve: ServePorts
    text: Callable[[ModelId, str], Awaitable[bytes]]
    holders: Callable[[ModelId], Sequence[NodeId]]
    tell: Callable[[FetchFact], None]
    sink: Callable[..., None]


class Weights:
    """Runs on the node's loop; files are read and written in threads of its own."""

    def __init__(
        self, me: NodeId, ports: WeightPorts, store: ModelStore | None, config: WeightsConfig
    ) -> None:
        """`store` None: nothing is fetched."""
        self._ports = ports
        self._store = store
        self._config = config
        self._salt = int.from_bytes(hashlib.blake2s(me.encode(), digest_size=4).digest())
        self._server = PieceServer(ports.serve, config)
        self._disk = ThreadPoolExecutor(DISK_THREADS, "swarm-weights")
        self._jobs: dict[ModelId, asyncio.Task[None]] = {}
        self._downloads: dict[ModelId, Download] = {}
        self._held: dict[ModelId, dict[NodeId, bytes]] = {}
        """What peers said they hold, while it is of interest."""
        self._asked: set[tuple[NodeId, ModelId]] = set()
        self._answered = asyncio.Event()

    # ------------------------------------------------------------ messages and links

    def received(self, peer: NodeId, message: WeightMessage) -> None:
        match message:
            case HoldingRequest():
                self._server.holding_requested(peer, message)
            case PieceRequest():
                self._server.piece_requested(peer, message)
            case Holding():
                self._holding(peer, message)
            case PieceRefused() | PieceSlice():
                download = self._downloads.get(message.model_id)
                if download is None:
                    return
                if isinstance(message, PieceSlice):
                    download.arrived(peer, message)
                else:
                    download.refused(peer, message)

    def bulk_ready(self, peer: NodeId) -> None:
        self._server.bulk_ready(peer)

    def link_down(self, peer: NodeId) -> None:
        self._server.link_down(peer)
        for held in self._held.values():
            held.pop(peer, None)
        self._asked = {(node, model) for node, model in self._asked if node != peer}
        for download in self._downloads.values():
            download.link_down(peer)

    # ------------------------------------------------------------ orders

    def fetch_model(self, order: FetchModel) -> None:
        self._start(order.model_id, lambda: self._get_model(order))

    def fetch_layers(self, order: FetchLayers) -> None:
        self._start(order.model_id, lambda: self._get_layers(order))

    def drop(self, model_id: ModelId) -> None:
        """What is under way for a model ends, and it is held no more."""

        async def let_go() -> None:
            self._held.pop(model_id, None)
            self._asked = {(node, model) for node, model in self._asked if model != model_id}
            if self._store is not None:
                await asyncio.to_thread(self._store.release, model_id)

        self._start(model_id, let_go)

    async def close(self) -> None:
        for task in self._jobs.values():
            task.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        await self._server.close()
        await asyncio.to_thread(self._disk.shutdown)
        if self._store is not None:
            self._store.close()

    def _start(self, model_id: ModelId, work: Callable[[], Awaitable[FetchFact | None]]) -> None:
        """The work of a model, after what was done for it before has been given up."""
        before = self._jobs.get(model_id)
        if before is not None:
            before.cancel()

        async def job() -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            if (fact := await self._guarded(model_id, work)) is not None:
                self._ports.tell(fact)

        self._jobs[model_id] = asyncio.get_running_loop().create_task(job())

    async def _guarded(
        self, model_id: ModelId, work: Callable[[], Awaitable[FetchFact | None]]
    ) -> FetchFact | None:
        try:
            return await work()
        except (LinkError, FileNotFoundError) as error:
            return FetchFailed(model_id, str(error), is_final=False)
        except (CapacityError, ShardError) as error:
            return FetchFailed(model_id, str(error), is_final=True)
        except (OSError, SwarmError) as error:
            return FetchFailed(model_id, f"its files could not be kept: {error}", is_final=True)

    # ------------------------------------------------------------ a model

    async def _get_model(self, order: FetchModel) -> FetchFact:
        store, model_id = self._storage, order.model_id
        files = await asyncio.to_thread(store.remembered, model_id)
        if files is None:
            files = await self._texts(model_id)
        manifest = await asyncio.to_thread(check_texts, model_id, files)
        path = await asyncio.to_thread(store.begin, model_id, order.name, files)
        await self._ask_holdings(model_id)
        obtainable = await self._obtainable(model_id, path, manifest)
        return ModelFetched(model_id, str(path), obtainable)

    async def _texts(self, model_id: ModelId) -> dict[str, bytes]:
        files = {MANIFEST_NAME: await self._ports.text(model_id, MANIFEST_NAME)}
        manifest = await asyncio.to_thread(parse_manifest, files[MANIFEST_NAME])
        for name in (PIECES_NAME, *manifest.texts):
            files[name] = await self._ports.text(model_id, name)
        return files

    async def _obtainable(
        self, model_id: ModelId, path: Path, manifest: Manifest
    ) -> frozenset[int]:
        """Layers that are here or at some linked peer."""
        own = await asyncio.to_thread(tensor_places, path)
        names = sorted(manifest.tensors)
        held = [frozenset(n for n, name in enumerate(names) if name in own)]
        for bits in self._held.get(model_id, {}).values():
            held.append(from_bits(bits, len(names)))
        return obtainable_layers(manifest, held)

    # ------------------------------------------------------------ layers

    async def _get_layers(self, order: FetchLayers) -> FetchFact:
        store, model_id = self._storage, order.model_id
        path = store.path_of(model_id)
        manifest, files = await asyncio.to_thread(self._plan, order)
        await asyncio.to_thread(store.make_room, model_id, [plan for plan, _ in files.plans])
        ports = self._ports.serve
        download = Download(
            files,
            store,
            FetchPorts(ports.send, ports.open_bulk, ports.clock, self._ports.sink, self._disk),
            self._config,
            self._salt,
        )
        self._downloads[model_id] = download
        began = ports.clock()
        running = asyncio.get_running_loop().create_task(download.run())
        try:
            while not running.done():
                await self._ask_holdings(model_id, download)
                await self._wait(running, self._config.holdings_interval_s)
                is_starved = download.starved_s(ports.clock()) >= self._config.starved_s
                if is_starved and not await self._had_of_hub(order, manifest, download):
                    obtainable = await self._obtainable(model_id, path, manifest)
                    if not obtainable >= frozenset(range(order.layers.start, order.layers.stop)):
                        return LayersShort(model_id, obtainable)
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            del self._downloads[model_id]
        self._tell_done(order, download, ports.clock() - began)
        return LayersFetched(model_id, order.layers)

    async def _had_of_hub(self, order: FetchLayers, manifest: Manifest, download: Download) -> bool:
        """Whether what no peer has came from the hub instead."""
        sink = self._ports.sink
        return bool(order.hub) and await fill_from_hub(order.hub, manifest, download, sink)

    def _plan(self, order: FetchLayers) -> tuple[Manifest, FileSet]:
        """Which files and pieces, from the manifest on the disk. Raises ShardError."""
        files = self._storage.remembered(order.model_id)
        if files is None:
            raise ShardError("its manifest or a text file on the disk is damaged")
        manifest = parse_manifest(files[MANIFEST_NAME])
        hashes = piece_hashes(manifest, files[PIECES_NAME])
        names = needed_files(manifest, order.layers, embed=order.embed, head=order.head)
        plans = [(plan, pieces_of(plan, hashes)) for plan in file_plans(manifest, names)]
        return manifest, FileSet(order.model_id, plans)

    def _tell_done(self, order: FetchLayers, download: Download, took_s: float) -> None:
        self._ports.sink(
            note(
                "weights.fetched",
                model_id=order.model_id[:8],
                layers=str(order.layers),
                bytes=download.total_bytes,
                came_bytes=download.came_bytes,
                sources=len(download.sources),
                seconds=round(took_s, 3),
            )
        )

    # ------------------------------------------------------------ what peers hold

    async def _ask_holdings(self, model_id: ModelId, download: Download | None = None) -> None:
        """Ask all holders. Without a download, wait until they have said it, for a while."""
        held = self._held.setdefault(model_id, {})
        asked = list(self._ports.holders(model_id))
        for peer in asked:
            if self._ports.serve.send(peer, HoldingRequest(model_id)):
                self._asked.add((peer, model_id))
        if download is not None:
            return
        ends_at = self._ports.serve.clock() + self._config.holding_timeout_s
        while not all(peer in held for peer in asked if (peer, model_id) in self._asked):
            left_s = ends_at - self._ports.serve.clock()
            self._answered.clear()
            if left_s <= 0 or not await self._within(self._answered.wait(), left_s):
                return

    def _holding(self, peer: NodeId, message: Holding) -> None:
        key = (peer, message.model_id)
        if key not in self._asked:
            return
        self._asked.discard(key)
        self._held[message.model_id][peer] = message.tensors
        self._answered.set()
        download = self._downloads.get(message.model_id)
        if download is not None:
            download.holds(peer, from_bits(message.tensors, download.tensor_limit))

    # ------------------------------------------------------------ small parts

    @property
    def _storage(self) -> ModelStore:
        if self._store is None:
            raise ShardError("this node keeps no models from peers")
        return self._store

    @staticmethod
    async def _within(work: Awaitable[object], limit_s: float) -> bool:
        try:
            await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            return False
        return True

    async def _wait(self, task: asyncio.Task[None], limit_s: float) -> None:
        """Until the task ends, at most so long; its outcome is for whoever awaits it."""
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        await self._within(ended.wait(), limit_s)
