"""Machines that have nothing but the program: they fetch their layers from those that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hub_like import HubLike
from swarm_http import Json
from swarm_procs import Node, NodePlan, Swarm
from tiny_models import save_tiny
from whole_model import whole_at

from swarm.terms import LayerRange
from swarm.weights.layout import FilePlan, file_plans, needed_files
from swarm.weights.store_io import ModelStore

pytestmark = pytest.mark.xdist_group("processes")

LAYERS = 12
CHANGES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": LAYERS, "head_dim": 64,
    "initializer_range": 0.05, "vocab_size": 512,
}  # fmt: skip
BODY: dict[str, Any] = {
    "model": "model", "prompt": [5, 9, 12, 7], "max_tokens": 24, "ignore_eos": True, "seed": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "model"
    save_tiny(folder, "llama", **CHANGES)
    return folder


def shard_of(state: Json, node: Node) -> Json | None:
    """Once it can be on a route: its speeds come in a record of their own."""
    shards = node.view(state).get("shards", [])
    is_known = shards and shards[0]["state"] == "serving" and shards[0]["decode_s_per_layer"]
    return shards[0] if is_known else None


def layers_of(swarm: Swarm, node: Node) -> LayerRange:
    shard = swarm.wait(lambda: shard_of(node.state(), node), f"{node.name} to serve")
    return LayerRange(shard["start"], shard["stop"])


def expected_files(model: Path, cache: Path, layers: LayerRange) -> dict[str, FilePlan]:
    manifest = whole_at(model, cache).manifest
    ends = {"embed": layers.start == 0, "head": layers.stop == LAYERS}
    names = needed_files(manifest, layers, **ends)
    return {plan.name: plan for plan in file_plans(manifest, names)}


def test_nodes_without_files_cover_the_model_twice(tmp_path: Path, model: Path) -> None:
    """Half of the layers fit on each; each has on its disk its own layers and no others."""
    with Swarm(tmp_path) as swarm:
        first = swarm.start(NodePlan("first", model))
        layers_of(swarm, first)
        ids = first.ask(**BODY).finish().ids
        assert len(ids) == 24
        size = sum(p.byte_count for p in expected_files(
            model, tmp_path / "hashes", LayerRange(0, LAYERS)).values())  # fmt: skip
        memory = str(int((0.6 * size) / 0.7) + (256 << 20))
        plans = [
            NodePlan(name, takes_part=True, extra=("--memory", memory))
            for name in ("second", "third")
        ]
        nodes = [swarm.start(plan) for plan in plans]
        held = [layers_of(swarm, node) for node in nodes]
        for node, layers in zip(nodes, held, strict=True):
            assert len(layers) < LAYERS
            store = ModelStore(node.home / "models", 0, 0)
            (stored,) = store.models()
            files = {f.name: f.stat().st_size for f in stored.path.glob("*.safetensors")}
            wanted = expected_files(model, tmp_path / "hashes", layers)
            assert files == {name: plan.byte_count for name, plan in wanted.items()}
            assert store.verify(stored.model_id) == []
        assert {layer for layers in held for layer in range(layers.start, layers.stop)} == set(
            range(LAYERS)
        )
        asked, other = nodes
        swarm.wait(lambda: shard_of(asked.state(), other), f"{asked.name} to hear of {other.name}")
        first.kill()
        answer = asked.ask(**BODY).finish()
        assert answer.error is None
        assert answer.ids == ids


def test_of_several_that_want_it_of_the_hub_one_fetches_it_and_is_followed_when_it_dies(
    tmp_path: Path, model: Path
) -> None:
    """The first is killed half-way; its successor fetches all, the last one its layers of that."""
    files = {file.name: file.read_bytes() for file in model.iterdir()}
    weights = "model.safetensors"
    size = len(files[weights])
    memory = ("--memory", str(int((0.75 * size) / 0.7) + (256 << 20)))
    body = {**BODY, "model": "some/model"}
    with (
        HubLike({"some/model": files}, hold_after={weights: size // 2}) as hub,
        Swarm(tmp_path) as swarm,
    ):
        nodes = []
        for name in ("first", "second", "third"):
            cache = str(tmp_path / f"hub-{name}")
            at = (("HF_ENDPOINT", hub.url), ("HF_HUB_CACHE", cache))
            plan = NodePlan(name, Path("some/model"), environment=at, extra=memory)
            nodes.append(swarm.start(plan))
        swarm.wait(hub.is_holding.is_set, "one to fetch it")
        (fetching,) = [n for n in nodes if any(e["event"] == "hub.fetch" for e in n.notes)]
        fetching.kill()
        left = [node for node in nodes if node is not fetching]
        held = {node.name: layers_of(swarm, node) for node in left}
        covered = {n for layers in held.values() for n in range(layers.start, layers.stop)}
        assert covered == set(range(LAYERS))
        (successor,) = [n for n in left if any(e["event"] == "hub.fetch" for e in n.notes)]
        (last,) = [node for node in left if node is not successor]
        (stored,) = ModelStore(last.home / "models", 0, 0).models()
        found = {f.name: f.stat().st_size for f in stored.path.glob("*.safetensors")}
        wanted = expected_files(model, tmp_path / "hashes", held[last.name])
        assert found == {name: plan.byte_count for name, plan in wanted.items()}
        assert len(held[last.name]) < LAYERS
        swarm.wait(lambda: shard_of(last.state(), successor), "the last to hear of the other")
        ids = last.ask(**body).finish().ids
        assert len(ids) == 24 and successor.ask(**body).finish().ids == ids
        assert hub.sent_bytes[weights] == size // 2 + size
