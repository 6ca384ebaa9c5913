"""Parts of models on disk: proven, resumed, whole or not there, and removed when room is needed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import LAYERS
from whole_model import Whole, no_gguf, whole

from swarm.errors import CapacityError, ShardError
from swarm.shard.checkpoint import MANIFEST_NAME, PIECES_NAME
from swarm.shard.checkpoint_io import inspect
from swarm.shard.cut import Part
from swarm.shard.load_io import load_stage
from swarm.terms import LayerRange, ModelId
from swarm.weights.layout import FilePlan
from swarm.weights.store_io import ModelStore

GIB = 1 << 30
ALL = LayerRange(0, LAYERS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models", GIB, 0)


def fill(store: ModelStore, model: Whole, plans: list[FilePlan]) -> None:
    store.begin(model.model_id, "tiny", model.files)
    store.make_room(model.model_id, plans)
    for plan in plans:
        pieces = model.pieces(plan)
        store.have(model.model_id, plan, pieces)
        for piece in pieces:
            assert store.put(model.model_id, piece, model.data(piece))
        store.finish(model.model_id, plan)


def test_a_part_is_the_same_model_and_loads(store: ModelStore, model: Whole) -> None:
    plans = model.plans(LayerRange(1, 3), head=True)
    fill(store, model, plans)
    path = store.path_of(model.model_id)
    found = inspect(path, path.parent / "cache", no_gguf)
    assert (found.model_id, found.manifest) == (model.model_id, model.manifest)
    stage = load_stage(
        path, Part(LayerRange(1, 3), False, False), torch.float32, torch.device("cpu")
    )
    assert stage.parameter_bytes > 0
    files = {f.name: f.stat().st_size for f in path.glob("*.safetensors")}
    assert files == {plan.name: plan.byte_count for plan in plans}
    assert set(files) == {
        "layer-0001.safetensors", "layer-0002.safetensors", "head.safetensors", "rest.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize(
    "family", ["qwen2", "gemma3_text", "mixtral", "gpt2", "deepseek_v3", "lfm2"]
)
def test_parts_of_other_families_load(store: ModelStore, tmp_path: Path, family: str) -> None:
    """Tied embeddings, experts, position tables, other names of things."""
    model = whole(tmp_path, family)
    middle = LAYERS // 2
    fill(store, model, model.plans(LayerRange(0, middle), embed=True))
    path = store.path_of(model.model_id)
    first = Part(LayerRange(0, middle), True, False)
    load_stage(path, first, torch.float32, torch.device("cpu"))
    fill(store, model, model.plans(LayerRange(middle, LAYERS), head=True))
    last = Part(LayerRange(middle, LAYERS), False, True)
    load_stage(path, last, torch.float32, torch.device("cpu"))
    assert inspect(path, tmp_path / "hashes", no_gguf).model_id == model.model_id


def test_the_files_of_all_layers_hold_each_tensor_once(model: Whole) -> None:
    plans = model.plans(ALL, embed=True, head=True)
    names = [placed.name for plan in plans for placed in plan.tensors]
    assert sorted(names) == sorted(model.manifest.tensors)


def test_false_bytes_are_not_written(store: ModelStore, model: Whole) -> None:
    store.begin(model.model_id, "tiny", model.files)
    plan = model.plans(LayerRange(0, 1))[0]
    pieces = model.pieces(plan)
    assert store.have(model.model_id, plan, pieces) == [False] * len(pieces)
    true = model.data(pieces[0])
    assert not store.put(model.model_id, pieces[0], true[:-1])
    assert not store.put(model.model_id, pieces[0], bytes([true[0] ^ 1]) + true[1:])
    assert store.have(model.model_id, plan, pieces) == [False] * len(pieces)
    assert store.put(model.model_id, pieces[0], true)
    assert store.have(model.model_id, plan, pieces) == [True] + [False] * (len(pieces) - 1)


def test_what_a_part_file_holds_is_proven_anew(store: ModelStore, model: Whole) -> None:
    store.begin(model.model_id, "tiny", model.files)
    plan = model.plans(LayerRange(0, 1))[0]
    pieces = model.pieces(plan)
    store.have(model.model_id, plan, pieces)
    for piece in pieces[:3]:
        store.put(model.model_id, piece, model.data(piece))
    part = store.path_of(model.model_id) / f".{plan.name}.part"
    with part.open("r+b") as stream:
        stream.seek(pieces[1].start)
        stream.write(b"spoiled")
    again = ModelStore(store.folder, GIB, 0)
    assert again.have(model.model_id, plan, pieces)[:4] == [True, False, True, False]


def test_a_damaged_part_is_never_loaded(store: ModelStore, model: Whole, tmp_path: Path) -> None:
    fill(store, model, model.plans(LayerRange(0, 2), embed=True))
    path = store.path_of(model.model_id)
    file = path / "layer-0001.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ShardError, match=r"layer-0001\.safetensors is damaged"):
        inspect(path, tmp_path / "hashes", no_gguf)
    (wrong,) = store.verify(model.model_id)
    assert "layer-0001" in wrong
    assert inspect(path, tmp_path / "hashes", no_gguf).model_id == model.model_id
    assert store.verify(model.model_id) == []


@pytest.mark.parametrize("name", [MANIFEST_NAME, PIECES_NAME, "config.json"])
def test_texts_are_remembered_only_while_they_are_true(
    store: ModelStore, model: Whole, name: str
) -> None:
    assert store.remembered(model.model_id) is None
    path = store.begin(model.model_id, "tiny", model.files)
    assert store.remembered(model.model_id) == model.files
    (path / name).write_bytes((path / name).read_bytes() + b" ")
    assert store.remembered(model.model_id) is None


def test_the_longest_unused_makes_room_but_not_what_is_in_use(tmp_path: Path, model: Whole) -> None:
    plans = model.plans(ALL, embed=True, head=True)
    size = sum(plan.byte_count for plan in plans)
    other = whole(tmp_path / "other", "qwen2")
    first = ModelStore(tmp_path / "models", GIB, 0)
    fill(first, other, other.plans(ALL, embed=True, head=True))
    (stored,) = first.models()
    assert (stored.name, stored.in_use, stored.layers) == ("tiny", True, tuple(range(LAYERS)))
    second = ModelStore(tmp_path / "models", size + stored.byte_count // 2, 0)
    second.begin(model.model_id, "tiny", model.files)
    with pytest.raises(CapacityError, match="do not fit"):
        second.make_room(model.model_id, plans)
    assert not second.remove(other.model_id)
    first.close()
    os.utime(stored.path / ".lock", (1, 1))
    second.make_room(model.model_id, plans)
    assert not stored.path.exists()
    second.close()


def test_what_can_never_fit_removes_nothing(tmp_path: Path, model: Whole) -> None:
    """A manifest of a peer's may claim any size."""
    first = ModelStore(tmp_path / "models", GIB, 0)
    fill(first, model, model.plans(ALL))
    (stored,) = first.models()
    first.close()
    second = ModelStore(tmp_path / "models", 0, 0)
    vast = replace(model.plans(LayerRange(0, 1))[0], name="layer-0000", byte_count=1 << 44)
    with pytest.raises(CapacityError, match="do not fit"):
        second.make_room(ModelId("0" * 32), [vast])
    assert second.models() == (replace(stored, in_use=False),)


def test_what_has_come_already_needs_no_room_again(tmp_path: Path, model: Whole) -> None:
    plans = model.plans(ALL, embed=True, head=True)
    first = ModelStore(tmp_path / "models", GIB, 0)
    texts = first.begin(model.model_id, "tiny", model.files)
    beside = sum(f.stat().st_blocks * 512 for f in texts.iterdir())
    for plan in plans:
        first.have(model.model_id, plan, model.pieces(plan))
        for piece in model.pieces(plan):
            first.put(model.model_id, piece, model.data(piece))
    first.close()
    room = beside + sum(plan.byte_count for plan in plans) + (64 << 10)
    again = ModelStore(tmp_path / "models", room, 0)
    again.make_room(model.model_id, plans)


def test_a_look_at_the_models_keeps_nobody_from_holding_one(
    store: ModelStore, model: Whole
) -> None:
    """A look takes each lock for a moment; a node that begins waits for that."""
    path = store.begin(model.model_id, "tiny", model.files)
    store.close()
    lock = os.open(path / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        began = pool.submit(store.begin, model.model_id, "tiny", model.files)
        assert not began.done()
        os.close(lock)
        assert began.result(timeout=30) == path
    assert store.models()[0].in_use


def test_a_model_that_was_removed_is_held_anew(store: ModelStore, model: Whole) -> None:
    path = store.begin(model.model_id, "tiny", model.files)
    shutil.rmtree(path)  # by hand, for none of ours would
    assert store.begin(model.model_id, "tiny", model.files) == path
    assert not ModelStore(store.folder, GIB, 0).remove(model.model_id)
    store.close()
    assert store.remove(model.model_id)
    assert not store.remove(model.model_id)
    assert list(store.folder.iterdir()) == []


def test_nodes_that_begin_finish_and_look_at_once(tmp_path: Path, model: Whole) -> None:
    """Six of one host: none fails, and the index names every file."""
    plans = model.plans(ALL, embed=True, head=True)
    folder = tmp_path / "models"

    def node(number: int) -> None:
        store = ModelStore(folder, GIB, 0)
        turn = number % len(plans)
        fill(store, model, plans[turn:] + plans[:turn])
        store.models()

    for _ in range(5):
        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(node, number) for number in range(6)]:
                done.result()
        path = folder / model.model_id
        named = json.loads((path / "model.safetensors.index.json").read_bytes())["weight_map"]
        assert set(named.values()) == {plan.name for plan in plans}
        shutil.rmtree(folder)


def test_two_nodes_of_a_host_may_fetch_one_file(store: ModelStore, model: Whole) -> None:
    other = ModelStore(store.folder, GIB, 0)
    plan = replace(model.plans(LayerRange(0, 1))[0])
    pieces = model.pieces(plan)
    for each in (store, other):
        each.begin(model.model_id, "tiny", model.files)
        each.have(model.model_id, plan, pieces)
    for number, piece in enumerate(pieces):
        (store, other)[number % 2].put(model.model_id, piece, model.data(piece))
    store.finish(model.model_id, plan)
    other.finish(model.model_id, plan)
    assert store.verify(model.model_id) == []


def test_a_part_that_becomes_whole_while_room_is_sought_lacks_nothing(
    store: ModelStore, model: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node of the host finishes the file between two looks at the folder."""
    (plan, *_) = model.plans(ALL, embed=True, head=True)
    whole = store.begin(model.model_id, "m", model.files) / plan.name
    part = whole.with_name(f".{plan.name}.part")
    part.write_bytes(b"x" * plan.byte_count)
    look = Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        state = look(path, **how)
        if path == part:
            part.replace(whole)
        return state

    monkeypatch.setattr(Path, "stat", stat)
    store.make_room(model.model_id, [plan])
    assert whole.exists()
