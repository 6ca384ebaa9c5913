"""Weights of a GGUF file between nodes: one that has the file, one that wants a layer of it."""

from __future__ import annotations

from pathlib import Path

from test_weights_io import play
from tiny_gguf import LAYERS, write_gguf
from weights_node import Node
from whole_model import Whole

from swarm.fetch_facts import LayersFetched
from swarm.shard.checkpoint import MANIFEST_NAME, PIECES_NAME
from swarm.shard.checkpoint_io import inspect
from swarm.shard.gguf_io import gguf_texts
from swarm.terms import LayerRange


def packed(folder: Path) -> Whole:
    path = folder / "tiny.gguf"
    write_gguf(path)
    found = inspect(path, folder / "cache", gguf_texts)
    names = [MANIFEST_NAME, PIECES_NAME, *found.manifest.texts]
    beside = found.manifest_path.parent
    files = {name: (beside / name).read_bytes() for name in names}
    return Whole(path, found.model_id, found.manifest, files)


def test_a_layer_of_a_gguf_file_comes_alone_and_is_handed_on(tmp_path: Path) -> None:
    """The second source has but a part of the file."""
    model = packed(tmp_path)
    layers = LayerRange(1, 2)

    async def scenario(nodes: list[Node]) -> None:
        getter, giver, third = nodes
        giver.serves(model)
        fetched = LayersFetched(model.model_id, layers)
        assert await getter.fetch(model, layers, LAYERS) == fetched
        plans = model.plans(layers)
        assert {n: len(c) for n, c in getter.content(model).items()} == {
            plan.name: plan.byte_count for plan in plans
        }
        assert getter.store.verify(model.model_id) == []
        giver.manifests.clear()
        path = getter.store.path_of(model.model_id)
        getter.manifests[model.model_id] = (str(path), str(path / MANIFEST_NAME))
        assert await third.fetch(model, layers, LAYERS) == fetched
        assert third.content(model) == getter.content(model)

    play(tmp_path, 3, scenario)
