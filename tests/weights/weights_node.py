"""One end of an exchange of weights: real links, real files, and what a node would tell them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from link_pair import LinkNode
from whole_model import Whole

from swarm.config import WeightsConfig
from swarm.effects import FetchLayers, FetchModel
from swarm.fetch_facts import FetchFact, ModelFetched
from swarm.messages import Message, PieceRequest
from swarm.notes import Note
from swarm.terms import LayerRange, ModelId, NodeId
from swarm.weights.serve_io import ServePorts
from swarm.weights.store_io import ModelStore
from swarm.weights.weights_io import WeightMessage, WeightPorts, Weights

GIB = 1 << 30
FACT_DEADLINE_S = 60.0
Spoil = Callable[[NodeId, Message], Message | None]


class Node:
    """One end: links, weights, and what a node would tell them."""

    def __init__(self, link: LinkNode, folder: Path, config: WeightsConfig) -> None:
        self.link = link
        self.folder = folder
        self.manifests: dict[ModelId, tuple[str, str]] = {}
        self.files: dict[str, bytes] = {}
        self.facts: asyncio.Queue[FetchFact] = asyncio.Queue()
        self.notes: list[Note] = []
        self.is_busy = False
        self.goodput = 1e9
        self.slow: set[NodeId] = set()
        self.spoil: Spoil = lambda peer, message: message
        self.asked: list[PieceRequest] = []
        self.store = ModelStore(folder, GIB, 0)
        self.weights = Weights(link.id, self._ports(), self.store, config)
        link.events.on_message = self._received
        link.events.bulk_ready = self.weights.bulk_ready  # type: ignore[method-assign]

    def _ports(self) -> WeightPorts:
        links = self.link.links
        serve = ServePorts(
            send=self._send,
            open_bulk=links.open_bulk,
            bulk_has_room=links.bulk_has_room,
            manifests=lambda: self.manifests,
            goodput=lambda peer: 1.0 if peer in self.slow else self.goodput,
            is_busy=lambda: self.is_busy,
            clock=asyncio.get_running_loop().time,
            effort=time.thread_time,
        )
        return WeightPorts(serve, self._text, self._holders, self._tell, self.notes.append)

    def serves(self, model: Whole) -> None:
        self.manifests[model.model_id] = (
            str(model.path), str(model.path.parent / "cache" / "models" / model.model_id
                                 / "manifest.json"),
        )  # fmt: skip

    def _send(self, peer: NodeId, message: Message) -> bool:
        spoiled = self.spoil(peer, message)
        return True if spoiled is None else bool(self.link.links.send(peer, spoiled))

    def _received(self, peer: NodeId, message: Message) -> None:
        if isinstance(message, PieceRequest):
            self.asked.append(message)
        if isinstance(message, WeightMessage):
            self.weights.received(peer, message)

    async def _text(self, model_id: ModelId, name: str) -> bytes:
        return self.files[name]

    def _holders(self, model_id: ModelId) -> Sequence[NodeId]:
        return sorted(self.link.events.up)

    def _tell(self, fact: FetchFact) -> None:
        self.facts.put_nowait(fact)

    async def fact(self) -> FetchFact:
        async with asyncio.timeout(FACT_DEADLINE_S):
            return await self.facts.get()

    async def fetch(self, model: Whole, layers: LayerRange, layer_count: int = 6) -> FetchFact:
        """Both steps of a node that knows only the model's id."""
        self.files = dict(model.files)
        self.weights.fetch_model(FetchModel(model.model_id, "raw"))
        fetched = await self.fact()
        assert isinstance(fetched, ModelFetched), fetched
        ends = (layers.start == 0, layers.stop == layer_count)
        self.weights.fetch_layers(FetchLayers(model.model_id, layers, *ends))
        return await self.fact()

    def content(self, model: Whole) -> dict[str, bytes]:
        path = self.store.path_of(model.model_id)
        return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}
