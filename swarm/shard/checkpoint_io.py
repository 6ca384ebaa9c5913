"""Reads checkpoints: finds their files, hashes them once, and keeps manifest and texts at hand.

Below the cache folder:

    files/<hash of path>.json     hashes of one weight file, valid while its size and mtime last
    models/<ModelId>/             manifest.json, pieces.bin and the text files of the model

A folder named after a ModelId that holds that model's manifest.json is a part of the model, as it
comes from peers: every tensor that is there must be as the manifest says.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.errors import ShardError
from swarm.shard import checkpoint as rules
from swarm.shard.checkpoint import Manifest, TensorEntry
from swarm.terms import ModelId

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
CACHE_VERSION = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose every byte was hashed (now, or while it had this size and mtime)."""

    path: Path
    model_id: ModelId
    manifest: Manifest
    manifest_path: Path
    texts: Mapping[str, bytes]

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()


TextSource = Callable[[Path], Mapping[str, bytes]]
"""Gives the text files of a GGUF checkpoint, which keeps them in its own form."""


def inspect(path: Path, cache: Path, gguf_texts: TextSource) -> Checkpoint:
    """Identify the checkpoint at `path`, a Hugging Face folder or a GGUF file.

    Raises ShardError, in one sentence, when it is missing, cut short or of another kind.
    """
    if path.is_file() and path.suffix == ".gguf":
        return _remember(path, cache, _gguf_tensors(path, cache), gguf_texts(path))
    if not path.is_dir():
        raise ShardError(f"{path} is neither a model folder nor a .gguf file")
    if (partial := partial_manifest(path)) is not None:
        return _inspect_part(path, cache, partial)
    if not (path / rules.CONFIG_NAME).is_file():
        raise ShardError(f"{path} has no config.json, so it is not a model folder")
    tensors: dict[str, TensorEntry] = {}
    for file in weight_files(path):
        tensors |= _hashes(file, cache, _safetensors_hashes)
    texts = {
        name: (path / name).read_bytes() for name in rules.TEXT_NAMES if (path / name).exists()
    }
    return _remember(path, cache, tensors, texts)


def partial_manifest(folder: Path) -> bytes | None:
    """The manifest of a folder that holds a part of a model; None for any other folder."""
    file = folder / rules.MANIFEST_NAME
    if not file.is_file():
        return None
    data = file.read_bytes()
    return data if rules.model_id_of(data) == folder.name else None


def _inspect_part(path: Path, cache: Path, data: bytes) -> Checkpoint:
    """A part of a model. Raises ShardError when anything in it is not as the manifest says."""
    manifest = rules.parse_manifest(data)
    for file in part_files(path):
        for name, entry in _hashes(file, cache, _safetensors_hashes).items():
            if manifest.tensors.get(name) != entry:
                raise ShardError(f"{file} is damaged: {name} is not what the model's manifest says")
    texts = {}
    for name, digest in manifest.texts.items():
        texts[name] = (path / name).read_bytes() if (path / name).is_file() else b""
        if hashlib.sha256(texts[name]).hexdigest() != digest:
            raise ShardError(f"{path / name} is damaged: it is not what the manifest says")
    model_id = rules.model_id_of(data)
    return Checkpoint(path, model_id, manifest, path / rules.MANIFEST_NAME, texts)


def part_files(folder: Path) -> list[Path]:
    """The weight files of a folder that holds a part of a model, none when it has none yet."""
    return weight_files(folder) if (folder / INDEX_NAME).is_file() else []


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in name order. Raises ShardError when one is missing."""
    index = folder / INDEX_NAME
    if index.is_file():
        weight_map = _read_json(index).get("weight_map", {})
        absent = rules.missing_shards(weight_map, (path.name for path in folder.iterdir()))
        if absent:
            raise ShardError(f"{folder} lacks {len(absent)} weight files, first {absent[0]}")
        return [folder / name for name in sorted(set(weight_map.values()))]
    if (folder / SINGLE_NAME).is_file():
        return [folder / SINGLE_NAME]
    found = sorted(folder.glob("*.safetensors"))
    if found:
        raise ShardError(f"{folder} has {found[0].name} but neither an index nor {SINGLE_NAME}")
    if any(folder.glob("*.bin")):
        raise ShardError(f"{folder} holds pickled weights only, which are never read")
    raise ShardError(f"{folder} holds no safetensors weights")


def _remember(
    path: Path, cache: Path, tensors: Mapping[str, TensorEntry], texts: Mapping[str, bytes]
) -> Checkpoint:
    """Write manifest and texts into the cache, so that the daemon can hand them out."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}
    manifest = Manifest(digests[rules.CONFIG_NAME], digests, tensors)
    data = rules.manifest_bytes(manifest)
    model_id = rules.model_id_of(data)
    folder = cache / "models" / model_id
    hashes = rules.pieces_bytes(manifest)
    for name, content in {**texts, rules.MANIFEST_NAME: data, rules.PIECES_NAME: hashes}.items():
        _write(folder / name, content)
    return Checkpoint(path, model_id, manifest, folder / rules.MANIFEST_NAME, dict(texts))


def _write(path: Path, content: bytes) -> None:
    """Atomic, and only when the content differs."""
    if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        table = json.loads(path.read_bytes())
    except ValueError as error:
        raise ShardError(f"{path} is not valid JSON") from error
    if not isinstance(table, dict):
        raise ShardError(f"{path} does not hold a JSON object")
    return table


# ---------------------------------------------------------------- hashes of weight files


Hasher = Callable[[Path], dict[str, TensorEntry]]


def _hashes(file: Path, cache: Path, hasher: Hasher) -> dict[str, TensorEntry]:
    """From the cache where path, size and mtime are the same, else read anew."""
    state = file.stat()
    stamp = [CACHE_VERSION, str(file.resolve()), state.st_size, state.st_mtime_ns]
    key = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:32]
    entry = cache / "files" / f"{key}.json"
    if entry.is_file():
        kept = _cached(entry)
        if kept.get("stamp") == stamp:
            return {
                name: TensorEntry(d, tuple(s), h, b, bytes.fromhex(p))
                for name, d, s, h, b, p in kept["tensors"]
            }
    tensors = hasher(file)
    rows = [
        [name, e.dtype, list(e.shape), e.digest, e.byte_count, e.pieces.hex()]
        for name, e in tensors.items()
    ]
    _write(entry, json.dumps({"stamp": stamp, "tensors": rows}).encode())
    return tensors


def _cached(entry: Path) -> Mapping[str, Any]:
    """A cache file that was damaged counts as absent."""
    try:
        return _read_json(entry)
    except ShardError:
        return {}


def _safetensors_hashes(file: Path) -> dict[str, TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = rules.header_length(stream.read(8), str(file))
        stream.seek(0)
        spans = rules.parse_safetensors_header(stream.read(8 + length), size, str(file))
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            found = {}
            for span in spans:
                with memoryview(mapped) as data, data[span.start : span.stop] as content:
                    found[span.name] = _hashed(span.dtype, span.shape, content)
            return found


def _hashed(dtype: str, shape: tuple[int, ...], content: memoryview) -> TensorEntry:
    size = rules.PIECE_BYTES
    pieces = [
        hashlib.sha256(content[start : start + size]).digest()
        for start in range(0, max(1, len(content)), size)
    ]
    kept = b"".join(pieces) if len(pieces) > 1 else b""
    return TensorEntry(dtype, shape, rules.tensor_digest(pieces), len(content), kept)


def _gguf_tensors(path: Path, cache: Path) -> dict[str, TensorEntry]:
    return _hashes(path, cache, _gguf_hashes)


def _gguf_hashes(path: Path) -> dict[str, TensorEntry]:
    import gguf

    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ShardError(f"{path} is not a GGUF file")
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ShardError(f"{path} is cut short or damaged") from error
    return {
        tensor.name: _hashed(
            f"GGUF:{tensor.tensor_type.name}",
            tuple(int(size) for size in reversed(tensor.shape)),
            memoryview(tensor.data.tobytes()),
        )
        for tensor in reader.tensors
    }
