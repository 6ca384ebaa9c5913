"""A tiny checkpoint, and what a node has that fetched a part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from swarm.shard.checkpoint import (
    MANIFEST_NAME,
    PIECES_NAME,
    Manifest,
    parse_manifest,
    piece_hashes,
)
from swarm.shard.checkpoint_io import inspect
from swarm.terms import LayerRange, ModelId
from swarm.weights.layout import FilePlan, PieceSpec, file_plans, needed_files, pieces_of
from swarm.weights.store_io import tensor_places


def no_gguf(path: Path) -> Mapping[str, bytes]:
    raise AssertionError(path)


@dataclass(frozen=True)
class Whole:
    """A whole checkpoint, with all that its holder can hand out."""

    path: Path
    model_id: ModelId
    manifest: Manifest
    files: dict[str, bytes]

    @property
    def hashes(self) -> dict[str, bytes]:
        return piece_hashes(self.manifest, self.files[PIECES_NAME])

    def plans(
        self, layers: LayerRange, *, embed: bool = False, head: bool = False
    ) -> list[FilePlan]:
        names = needed_files(self.manifest, layers, embed=embed, head=head)
        return list(file_plans(self.manifest, names))

    def data(self, piece: PieceSpec) -> bytes:
        name = sorted(self.manifest.tensors)[piece.tensor]
        file, start, _ = tensor_places(self.path)[name]
        with file.open("rb") as stream:
            stream.seek(start + piece.index * (1 << 20))
            return stream.read(piece.byte_count)

    def pieces(self, plan: FilePlan) -> list[PieceSpec]:
        return list(pieces_of(plan, self.hashes))


def whole(folder: Path, family: str = "llama") -> Whole:
    """As transformers saves it."""
    from tiny_models import save_tiny

    save_tiny(folder / "model", family)
    (folder / "model" / "tokenizer.json").write_text('{"added_tokens": []}')
    return whole_at(folder / "model", folder / "cache")


def whole_at(path: Path, cache: Path) -> Whole:
    found = inspect(path, cache, no_gguf)
    beside = found.manifest_path.parent
    names = [MANIFEST_NAME, PIECES_NAME, *found.manifest.texts]
    files = {name: (beside / name).read_bytes() for name in names}
    return Whole(path, found.model_id, parse_manifest(files[MANIFEST_NAME]), files)


def raw(folder: Path, layers: int, floats: int = 3000, vocab: int = 300_000) -> Whole:
    """Random tensors that no model could run; an embedding of two pieces. Needs no torch."""
    rng = Random(11)
    sizes = {"model.embed_tokens.weight": vocab, "lm_head.weight": 500, "model.norm.weight": 9}
    for layer in range(layers):
        for name in ("self_attn.q_proj", "mlp.up_proj"):
            sizes[f"model.layers.{layer}.{name}.weight"] = floats
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, count in sizes.items():
        table[name] = {
            "dtype": "F32",
            "shape": [count],
            "data_offsets": [offset, offset + 4 * count],
        }
        offset += 4 * count
    head = json.dumps(table).encode()
    path = folder / "model"
    path.mkdir(parents=True)
    content = len(head).to_bytes(8, "little") + head + rng.randbytes(offset)
    (path / "model.safetensors").write_bytes(content)
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "tokenizer.json").write_text('{"added_tokens": []}')
    return whole_at(path, folder / "cache")
