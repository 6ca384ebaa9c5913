"""Weights between nodes over real links: from several at once, resumed, and never a false byte."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from link_pair import Bench, LinkNode, run
from whole_model import Whole, raw

from swarm.config import WeightsConfig
from swarm.effects import FetchLayers, FetchModel
from swarm.fetch_facts import FetchFact, FetchFailed, LayersFetched, LayersShort, ModelFetched
from swarm.messages import Message, PieceRefused, PieceRequest, PieceSlice
from swarm.notes import Note
from swarm.shard.checkpoint import PIECES_NAME
from swarm.terms import LayerRange, ModelId, NodeId
from swarm.weights.serve_io import ServePorts
from swarm.weights.store_io import ModelStore
from swarm.weights.weights_io import WeightMessage, WeightPorts, Weights

LAYERS = 6
CONFIG = WeightsConfig(
    piece_silence_s=0.3, source_rest_s=0.05, holdings_interval_s=0.1, starved_s=0.3
)
GIB = 1 << 30
Spoil = Callable[[NodeId, Message], Message | None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return raw(tmp_path_factory.mktemp("raw"), LAYERS)


class Node:
    """One end: links, weights, and what a node would tell them."""

    def __init__(self, link: LinkNode, folder: Path, config: WeightsConfig = CONFIG) -> None:
        self.link = link
        self.folder = folder
        self.manifests: dict[ModelId, tuple[str, str]] = {}
        self.files: dict[str, bytes] = {}
        self.facts: asyncio.Queue[FetchFact] = asyncio.Queue()
        self.notes: list[Note] = []
        self.is_busy = False
        self.goodput = 1e9
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
            goodput=lambda peer: self.goodput,
            is_busy=lambda: self.is_busy,
            clock=asyncio.get_running_loop().time,
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
        async with asyncio.timeout(20):
            return await self.facts.get()

    async def fetch(self, model: Whole, layers: LayerRange) -> FetchFact:
        """Both steps of a node that knows only the model's id."""
        self.files = dict(model.files)
        self.weights.fetch_model(FetchModel(model.model_id, "raw"))
        fetched = await self.fact()
        assert isinstance(fetched, ModelFetched), fetched
        ends = (layers.start == 0, layers.stop == LAYERS)
        self.weights.fetch_layers(FetchLayers(model.model_id, layers, *ends))
        return await self.fact()

    def content(self, model: Whole) -> dict[str, bytes]:
        path = self.store.path_of(model.model_id)
        return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}


Scenario = Callable[[list[Node]], Awaitable[None]]


def play(folder: Path, count: int, scenario: Scenario, config: WeightsConfig = CONFIG) -> None:
    """The first node has linked itself with all others."""

    async def main(bench: Bench) -> None:
        links = [await bench.node() for _ in range(count)]
        nodes = [Node(link, folder / f"n{i}", config) for i, link in enumerate(links)]
        for other in links[1:]:
            links[0].links.dial([other.address], other.id)
            await links[0].linked_to(other)
            await other.linked_to(links[0])
        try:
            await scenario(nodes)
        finally:
            for node in nodes:
                await node.weights.close()

    run("uvloop", "tcp", main)


def test_a_part_comes_from_several_and_is_the_same(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        getter, *givers = nodes
        for node in givers:
            node.serves(model)
        layers = LayerRange(0, 4)
        assert await getter.fetch(model, layers) == LayersFetched(model.model_id, layers)
        plans = model.plans(layers, embed=True)
        assert {n: len(c) for n, c in getter.content(model).items()} == {
            plan.name: plan.byte_count for plan in plans
        }
        assert getter.store.verify(model.model_id) == []
        assert all(node.asked for node in givers)
        entry = next(n for n in getter.notes if n.event == "weights.fetched")
        assert entry.get("sources") == 2
        again = await getter.fetch(model, layers)
        assert isinstance(again, LayersFetched)
        assert getter.notes[-1].get("came_bytes") == 0

    play(tmp_path, 3, scenario)


def test_whoever_did_not_dial_gets_weights_too(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        giver, getter = nodes
        giver.serves(model)
        assert isinstance(await getter.fetch(model, LayerRange(2, 3)), LayersFetched)

    play(tmp_path, 2, scenario)


@pytest.mark.parametrize("kind", ["liar", "cut", "mute", "dying", "forgetful"])
def test_a_bad_source_is_left_for_another(tmp_path: Path, model: Whole, kind: str) -> None:
    async def scenario(nodes: list[Node]) -> None:
        getter, bad, good = nodes
        for node in (bad, good):
            node.serves(model)
        sent = 0

        def spoil(peer: NodeId, message: Message) -> Message | None:
            nonlocal sent
            if not isinstance(message, PieceSlice):
                return message
            sent += 1
            match kind:
                case "liar":
                    data = bytes(message.payload)
                    return dataclasses.replace(message, payload=data[:-1] + bytes([data[-1] ^ 1]))
                case "cut":
                    return dataclasses.replace(message, payload=bytes(message.payload)[:-1])
                case "mute":
                    return None
                case "forgetful" if sent == 1:
                    shutil.rmtree(tmp_path / "half")
                case "dying" if sent == 2:
                    bad.link.links.close(peer, "gone")
            return message

        bad.spoil = spoil
        good.goodput, good.is_busy = 3e6, True
        if kind == "forgetful":
            half = tmp_path / "half"
            shutil.copytree(model.path, half)
            bad.manifests[model.model_id] = (str(half), bad.manifests[model.model_id][1])
        layers = LayerRange(0, LAYERS)
        assert isinstance(await getter.fetch(model, layers), LayersFetched)
        assert getter.store.verify(model.model_id) == []
        told = [note.event for note in getter.notes]
        assert ("weights.false" in told) == (kind in ("liar", "cut"))

    play(tmp_path, 3, scenario)


def test_nothing_false_is_kept_when_nobody_is_honest(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        getter, bad = nodes
        bad.serves(model)

        def spoil(peer: NodeId, message: Message) -> Message | None:
            if isinstance(message, PieceSlice):
                return dataclasses.replace(message, payload=bytes(len(message.payload)))
            return message

        bad.spoil = spoil
        getter.files = dict(model.files)
        getter.weights.fetch_model(FetchModel(model.model_id, "raw"))
        await getter.fact()
        getter.weights.fetch_layers(FetchLayers(model.model_id, LayerRange(0, 1), True, False))
        await getter.link.events.until(lambda: bad.asked)
        while not any(note.event == "weights.false" for note in getter.notes):
            await asyncio.sleep(0)
        assert getter.content(model) == {}
        bad.spoil = lambda peer, message: message
        assert getter.facts.empty(), "a liar is not asked again"

    play(tmp_path, 2, scenario)


def test_a_download_goes_on_where_it_was_cut(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        giver, getter, second = nodes
        giver.serves(model)
        slices = 0

        def stop_after_a_while(peer: NodeId, message: Message) -> Message | None:
            nonlocal slices
            slices += isinstance(message, PieceSlice)
            return message if slices < 5 or not isinstance(message, PieceSlice) else None

        giver.spoil = stop_after_a_while
        getter.files = dict(model.files)
        getter.weights.fetch_model(FetchModel(model.model_id, "raw"))
        await getter.fact()
        order = FetchLayers(model.model_id, LayerRange(0, LAYERS), True, True)
        getter.weights.fetch_layers(order)
        while slices < 5:
            await asyncio.sleep(0)
        while not getter.weights._downloads[model.model_id].done_bytes:
            await asyncio.sleep(0)
        await getter.weights.close()
        shutil.copytree(getter.folder, second.folder, dirs_exist_ok=True)
        giver.spoil = lambda peer, message: message
        assert isinstance(await second.fetch(model, order.layers), LayersFetched)
        entry = next(n for n in second.notes if n.event == "weights.fetched")
        assert 0 < int(str(entry.get("came_bytes"))) < int(str(entry.get("bytes")))
        assert second.store.verify(model.model_id) == []

    play(tmp_path, 3, scenario)


def test_what_nobody_has_is_said(tmp_path: Path, model: Whole) -> None:
    """The source holds layers 0 to 2 only."""

    async def scenario(nodes: list[Node]) -> None:
        getter, giver, whole = nodes
        whole.serves(model)
        whole.link.links.dial([giver.link.address], giver.link.id)
        await giver.link.linked_to(whole.link)
        assert isinstance(await giver.fetch(model, LayerRange(0, 3)), LayersFetched)
        whole.manifests.clear()
        path = giver.store.path_of(model.model_id)
        giver.manifests[model.model_id] = (str(path), str(path / "manifest.json"))
        short = await getter.fetch(model, LayerRange(2, 5))
        assert short == LayersShort(model.model_id, frozenset({0, 1, 2}))
        order = FetchLayers(model.model_id, LayerRange(1, 3), False, False)
        getter.weights.fetch_layers(order)
        assert isinstance(await getter.fact(), LayersFetched)

    play(tmp_path, 3, scenario)


def test_false_piece_hashes_are_no_use(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        getter = nodes[0]
        getter.files = model.files | {PIECES_NAME: bytes(len(model.files[PIECES_NAME]))}
        getter.weights.fetch_model(FetchModel(model.model_id, "raw"))
        failed = await getter.fact()
        assert isinstance(failed, FetchFailed)
        assert not (getter.folder / model.model_id).exists()
        getter.weights.fetch_model(FetchModel(ModelId("../../etc"), "raw"))
        assert isinstance(await getter.fact(), FetchFailed)

    play(tmp_path, 1, scenario)


def test_a_peer_may_not_ask_for_more_than_it_may(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        greedy, giver = nodes
        giver.serves(model)
        giver.is_busy, giver.goodput = True, 1.0
        got: list[Message] = []
        greedy.link.events.on_message = lambda peer, message: got.append(message)
        for number in range(40):
            greedy.link.links.send(
                giver.link.id, PieceRequest(model.model_id, number % 4, number // 4)
            )
        greedy.link.links.send(giver.link.id, PieceRequest(model.model_id, 1 << 40, 0))
        greedy.link.links.send(giver.link.id, PieceRequest(model.model_id, 0, 1 << 40))
        greedy.link.links.send(giver.link.id, PieceRequest(ModelId("x"), -1, -1))
        over = 43 - CONFIG.uploads_per_peer_max
        while sum(isinstance(message, PieceRefused) for message in got) < over:
            await asyncio.sleep(0)
        assert len(giver.weights._server._queues[greedy.link.id]) <= CONFIG.uploads_per_peer_max

    play(tmp_path, 2, scenario)
