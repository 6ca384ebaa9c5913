"""Parts of GGUF files: laid out as the file they came from, and loaded as the whole one is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from engine_chain import Chain, parts
from gguf import GGMLQuantizationType as Kind
from tiny_gguf import LAYERS, write_gguf

from swarm.errors import ShardError
from swarm.shard import load_io
from swarm.shard.checkpoint import (
    GGUF_HEAD_NAME,
    MANIFEST_NAME,
    PIECE_BYTES,
    PIECES_NAME,
    TEXT_NAMES,
    Manifest,
    piece_hashes,
)
from swarm.shard.checkpoint_io import inspect
from swarm.shard.cut import Part
from swarm.shard.gguf_head import gguf_head
from swarm.shard.gguf_io import gguf_texts
from swarm.shard.gguf_part_io import as_loaded
from swarm.shard.gguf_weights_io import gguf_source
from swarm.shard.load_io import load_stage
from swarm.shard.stage import Stage
from swarm.terms import ModelId
from swarm.weights.layout import file_plans, needed_files, pieces_of
from swarm.weights.store_io import ModelStore

PROMPT = [5, 17, 40, 8, 61, 33, 9, 72, 4]


@dataclass(frozen=True)
class Source:
    """A GGUF file, and what its holder can hand out."""

    path: Path
    model_id: ModelId
    manifest: Manifest
    files: dict[str, bytes]

    def part(self, store: ModelStore, part: Part) -> Path:
        """What a node has on its disk that fetched this part of it."""
        folder = store.begin(self.model_id, "tiny", self.files)
        head = gguf_head(self.files[GGUF_HEAD_NAME])
        names = sorted(self.manifest.tensors)
        hashes = piece_hashes(self.manifest, self.files[PIECES_NAME])
        data = self.path.read_bytes()
        needed = needed_files(self.manifest, part.layers, embed=part.embed, head=part.head)
        for plan in file_plans(self.manifest, needed):
            pieces = pieces_of(plan, hashes)
            store.have(self.model_id, plan, pieces)
            for piece in pieces:
                start = head.starts[names[piece.tensor]] + piece.index * PIECE_BYTES
                assert store.put(self.model_id, piece, data[start : start + piece.byte_count])
            store.finish(self.model_id, plan)
        return folder


def source(folder: Path, kind: Kind) -> Source:
    path = folder / "tiny.gguf"
    write_gguf(path, kind)
    found = inspect(path, folder / "cache", gguf_texts)
    beside = found.manifest_path.parent
    names = [MANIFEST_NAME, PIECES_NAME, *found.manifest.texts]
    return Source(path, found.model_id, found.manifest,
                  {name: (beside / name).read_bytes() for name in names})  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models", 1 << 30, 0)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return source(tmp_path_factory.mktemp("gguf"), Kind.Q8_0)


def load(path: Path, part: Part, quantization: str) -> Stage:
    return load_stage(path, part, torch.float32, torch.device("cpu"), quantization)


@pytest.mark.parametrize(
    ("kind", "quantization"),
    [(Kind.Q8_0, "none"), (Kind.Q8_0, "int8"), (Kind.Q4_0, "int4")],
    ids=["floats", "int8", "int4"],
)
def test_parts_generate_what_those_of_the_whole_file_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, quantization: str
) -> None:
    """The file's integers go in as they are: nothing is quantized twice."""
    taken: list[bool] = []

    def noted(*arguments: Any) -> Any:
        source = gguf_source(*arguments)

        def note(name: str, weight: torch.Tensor) -> Any:
            found = source(name, weight)
            taken.append(found is not None)
            return found

        return note

    monkeypatch.setattr(load_io, "gguf_source", noted)
    whole = source(tmp_path, kind)
    of_whole, of_parts = [], []
    for part in parts(LAYERS, [1, 2]):
        store = ModelStore(tmp_path / f"node-{part.layers.start}", 1 << 30, 0)
        folder = whole.part(store, part)
        assert inspect(folder, tmp_path / "hashes", gguf_texts).model_id == whole.model_id
        of_whole.append(load(whole.path, part, quantization))
        of_parts.append(load(folder, part, quantization))
        assert not list(folder.glob(".load-*"))
        store.close()
    ids = [Chain(stages).generate(PROMPT, 8, chunk=4) for stages in (of_whole, of_parts)]
    assert ids[0] == ids[1] and len(set(ids[0])) > 2
    assert all(taken) and bool(taken) == (quantization != "none")


def test_what_is_not_here_is_a_hole(packed: Source, store: ModelStore) -> None:
    part = parts(LAYERS, [1, 2])[1]
    folder = packed.part(store, part)
    whole = {tensor.name: tensor for tensor in gguf.GGUFReader(packed.path).tensors}
    with as_loaded(folder) as path:
        held = gguf.GGUFReader(path).tensors
        assert [tensor.name for tensor in held] == list(whole)
        for tensor in held:
            is_own = tensor.name.startswith("blk.1.") or tensor.name == "output_norm.weight"
            assert bool(tensor.data.any()) == is_own
            if is_own:
                assert (tensor.data == whole[tensor.name].data).all()
    assert not path.exists()


def test_a_damaged_part_is_not_loaded(packed: Source, store: ModelStore, tmp_path: Path) -> None:
    folder = packed.part(store, parts(LAYERS, [1, 2])[1])
    file = folder / "layer-0001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ShardError, match="is damaged"):
        inspect(folder, tmp_path / "hashes", gguf_texts)
    assert store.verify(packed.model_id) != []
    store.close()


def test_the_head_says_where_tensors_are_as_the_library_does(packed: Source) -> None:
    reader = gguf.GGUFReader(packed.path)
    head = gguf_head(packed.path.read_bytes())
    assert head.byte_count == reader.data_offset == len(packed.files[GGUF_HEAD_NAME])
    assert head.starts == {tensor.name: tensor.data_offset for tensor in reader.tensors}
    assert GGUF_HEAD_NAME not in TEXT_NAMES, "folders of other kinds may have such a file"


def test_a_damaged_head_is_one_sentence(packed: Source) -> None:
    head = packed.files[GGUF_HEAD_NAME]
    for cut in (*range(200), *range(200, len(head) - 64, 97)):
        with pytest.raises(ShardError):
            gguf_head(head[:cut])
    for at in range(0, len(head), 61):
        broken = bytearray(head)
        broken[at] ^= 0xFF
        try:
            gguf_head(broken)
        except ShardError:
            continue
