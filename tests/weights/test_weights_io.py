"""Weights between nodes over real links: from several at once, resumed, and never a false byte."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hub_like import HubLike
from link_pair import Bench, run
from weights_node import Node
from whole_model import Whole, raw

from swarm.config import WeightsConfig
from swarm.effects import FetchLayers, FetchModel
from swarm.fetch_facts import FetchFailed, LayersFetched, LayersShort
from swarm.messages import Holding, Message, PieceRefused, PieceRequest, PieceSlice
from swarm.shard.checkpoint import PIECES_NAME
from swarm.terms import LayerRange, ModelId, NodeId
from swarm.weights.layout import file_of
from swarm.weights.store_io import tensor_places

LAYERS = 6
CONFIG = WeightsConfig(
    piece_silence_s=0.3, source_rest_s=0.05, holdings_interval_s=0.1, starved_s=0.3
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return raw(tmp_path_factory.mktemp("raw"), LAYERS)


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


def test_a_peer_on_a_slow_link_holds_up_nobody_else(tmp_path: Path, model: Whole) -> None:
    async def scenario(nodes: list[Node]) -> None:
        giver, slow, getter = nodes
        giver.serves(model)
        giver.is_busy, giver.slow = True, {slow.link.id}
        arrived = asyncio.Event()
        slow.link.events.on_message = lambda peer, message: arrived.set()
        for piece in range(2):
            slow.link.links.send(giver.link.id, PieceRequest(model.model_id, piece, 0))
        slow.link.links.open_bulk(giver.link.id)
        await arrived.wait()  # its next slice is due in days, by its link
        getter.link.links.open_bulk(giver.link.id)
        assert isinstance(await getter.fetch(model, LayerRange(0, LAYERS)), LayersFetched)

    config = dataclasses.replace(CONFIG, piece_silence_s=20.0)
    play(tmp_path, 3, scenario, config)


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


def test_a_peer_that_speaks_before_the_disk_was_read_is_no_liar(
    tmp_path: Path, model: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the disk was read there is no file that pieces could be written to."""

    async def scenario(nodes: list[Node]) -> None:
        getter, giver = nodes
        giver.serves(model)
        getter.files = dict(model.files)
        getter.weights.fetch_model(FetchModel(model.model_id, "raw"))
        await getter.fact()
        told, have = threading.Event(), getter.store.have

        def slow(*arguments: Any) -> list[bool]:
            assert told.wait(20.0)
            return have(*arguments)

        monkeypatch.setattr(getter.store, "have", slow)
        getter.weights.fetch_layers(FetchLayers(model.model_id, LayerRange(0, 2), True, False))
        before = len(getter.link.events.messages)
        await getter.link.events.until(
            lambda: any(isinstance(m, Holding) for _, m in getter.link.events.messages[before:])
        )
        assert not getter.weights._downloads[model.model_id]._buffers, "nothing is asked for yet"
        told.set()
        assert isinstance(await getter.fact(), LayersFetched)
        assert not any(note.event == "weights.false" for note in getter.notes)

    play(tmp_path, 2, scenario)


def test_a_dropped_model_is_fetched_no_further_and_may_be_removed(
    tmp_path: Path, model: Whole
) -> None:
    async def scenario(nodes: list[Node]) -> None:
        getter, giver = nodes
        giver.serves(model)
        asked = asyncio.Event()

        def keep_back(peer: NodeId, message: Message) -> Message | None:
            asked.set()
            return None if isinstance(message, PieceSlice) else message

        giver.spoil = keep_back
        getter.files = dict(model.files)
        getter.weights.fetch_model(FetchModel(model.model_id, "raw"))
        await getter.fact()
        order = FetchLayers(model.model_id, LayerRange(0, LAYERS), True, True)
        getter.weights.fetch_layers(order)
        await asked.wait()
        assert not await asyncio.to_thread(getter.store.remove, model.model_id)
        getter.weights.drop(model.model_id)
        while not await asyncio.to_thread(getter.store.remove, model.model_id):
            await asyncio.sleep(0)
        assert not getter.weights._downloads and getter.facts.empty()
        giver.spoil = lambda peer, message: message
        assert isinstance(await getter.fetch(model, order.layers), LayersFetched)
        assert not getter.store.remove(model.model_id), "it is held again"

    play(tmp_path, 2, scenario)


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


@pytest.mark.parametrize("is_same", [True, False], ids=["same", "changed"])
def test_what_nobody_has_comes_from_the_hub_of_the_files_that_hold_it(
    tmp_path: Path, model: Whole, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """The model lies there in a file for each layer; the getter wants one that a peer has and one
    that none has."""
    files = in_several_files(model.path)
    if not is_same:
        data = bytearray(files["layer-0003.safetensors"])
        data[-1] ^= 1
        files["layer-0003.safetensors"] = bytes(data)

    async def scenario(nodes: list[Node]) -> None:
        getter, giver, whole = nodes
        whole.serves(model)
        whole.link.links.dial([giver.link.address], giver.link.id)
        await giver.link.linked_to(whole.link)
        assert isinstance(await giver.fetch(model, LayerRange(0, 3)), LayersFetched)
        whole.manifests.clear()
        path = giver.store.path_of(model.model_id)
        giver.manifests[model.model_id] = (str(path), str(path / "manifest.json"))
        getter.files = dict(model.files)
        getter.weights.fetch_model(FetchModel(model.model_id, "raw"))
        await getter.fact()
        wanted = LayerRange(2, 4)
        order = FetchLayers(model.model_id, wanted, False, False, "some/raw")
        getter.weights.fetch_layers(order)
        fact = await getter.fact()
        if is_same:
            assert fact == LayersFetched(model.model_id, wanted)
            assert getter.store.verify(model.model_id) == []
        else:
            assert fact == LayersShort(model.model_id, frozenset({0, 1, 2}))
            reasons = [n.get("reason") for n in getter.notes if n.event == "hub.failed"]
            assert reasons == ["what the hub has is another version of the model"]
            assert "layer-0003.safetensors" not in getter.content(model)

    with HubLike({"some/raw": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        play(tmp_path, 3, scenario)
    weights = [name for name, _ in hub.sent if name.endswith(".safetensors")]
    assert weights == ["layer-0003.safetensors"]


def in_several_files(folder: Path) -> dict[str, bytes]:
    """A checkpoint as the hub may have it: a file for each layer, and an index."""
    by_file: dict[str, dict[str, bytes]] = {}
    for name, (file, start, count) in tensor_places(folder).items():
        data = file.read_bytes()[start : start + count]
        by_file.setdefault(file_of(name), {})[name] = data
    files = {"config.json": (folder / "config.json").read_bytes()}
    for file, tensors in by_file.items():
        table, offset = {}, 0
        for name, data in tensors.items():
            shape, stop = [len(data) // 4], offset + len(data)
            table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, stop]}
            offset = stop
        head = json.dumps(table).encode()
        files[file] = len(head).to_bytes(8, "little") + head + b"".join(tensors.values())
    weight_map = {name: file for file, tensors in by_file.items() for name in tensors}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


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
