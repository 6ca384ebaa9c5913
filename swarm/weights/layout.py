"""How a part of a model lies on disk: one safetensors file per layer, and three more. Pure.

    layer-0012.safetensors   all tensors of that layer
    embed.safetensors        the embedding
    head.safetensors         the output matrix, where the model has one of its own
    rest.safetensors         what is none of these, mostly small norms; every part has it

Tensors of a GGUF file lie in them as the blocks that they are, with `GGUF:Q4_0` or another as their
type: for those who read such files they are laid out anew (`shard/gguf_part_io.py`).

The bytes of a file follow from the manifest alone, so two nodes that hold a layer hold equal files,
and the place of each piece in its file is known before it has come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarm.shard.checkpoint import (
    EMBED_NAME,
    HASH_BYTES,
    HEAD_NAME,
    LAYER_NAME,
    PIECE_BYTES,
    Manifest,
    TensorEntry,
    piece_count,
)
from swarm.terms import LayerRange

EMBED_FILE = "embed.safetensors"
HEAD_FILE = "head.safetensors"
REST_FILE = "rest.safetensors"
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in its file: its bytes begin at `start`. `number`: among all names in order."""

    name: str
    number: int
    start: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file as it will be once complete. `head`: its first bytes, up to the first tensor."""

    name: str
    head: bytes
    tensors: tuple[Placed, ...]
    byte_count: int


@dataclass(frozen=True, slots=True)
class PieceSpec:
    """A piece of a tensor: its bytes begin at `start` of its file."""

    tensor: int
    index: int
    file: str
    start: int
    byte_count: int
    digest: bytes


def file_of(tensor: str) -> str:
    if match := LAYER_NAME.search(tensor):
        return f"layer-{int(match.group(1)):04d}.safetensors"
    if EMBED_NAME.search(tensor):
        return EMBED_FILE
    if HEAD_NAME.search(tensor):
        return HEAD_FILE
    return REST_FILE


def needed_files(
    manifest: Manifest, layers: LayerRange, *, embed: bool, head: bool
) -> tuple[str, ...]:
    """Of a shard. A head without an output matrix of its own multiplies by the embedding."""
    present = {file_of(name) for name in manifest.tensors}
    wanted = [f"layer-{layer:04d}.safetensors" for layer in range(layers.start, layers.stop)]
    tied = not any(HEAD_NAME.search(name) for name in manifest.tensors)
    wanted += [REST_FILE]
    wanted += [EMBED_FILE] if embed or (head and tied) else []
    wanted += [HEAD_FILE] if head else []
    return tuple(name for name in wanted if name in present)


def file_plans(manifest: Manifest, names: Iterable[str]) -> tuple[FilePlan, ...]:
    """The plans of these files, in their order."""
    numbers = {name: number for number, name in enumerate(sorted(manifest.tensors))}
    members: dict[str, list[str]] = {name: [] for name in names}
    for tensor in sorted(numbers, key=lambda name: (-_element_bytes(manifest.tensors[name]), name)):
        if (file := file_of(tensor)) in members:
            members[file].append(tensor)
    return tuple(
        _plan(file, [(t, numbers[t], manifest.tensors[t]) for t in tensors])
        for file, tensors in members.items()
    )


def _element_bytes(entry: TensorEntry) -> int:
    """Wider elements stand first in a file, so that each tensor begins at a multiple of its own."""
    return entry.byte_count // max(1, math.prod(entry.shape))


def _plan(file: str, tensors: Sequence[tuple[str, int, TensorEntry]]) -> FilePlan:
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, _, entry in tensors:
        stop = offset + entry.byte_count
        table[name] = {
            "dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, stop],
        }  # fmt: skip
        offset = stop
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    start = 8 + len(text)
    placed = []
    at = start
    for name, number, entry in tensors:
        placed.append(Placed(name, number, at, entry.byte_count))
        at += entry.byte_count
    return FilePlan(file, len(text).to_bytes(8, "little") + text, tuple(placed), start + offset)


def pieces_of(plan: FilePlan, hashes: Mapping[str, bytes]) -> tuple[PieceSpec, ...]:
    """In file order. `hashes`: per tensor those of its pieces, one after the other."""
    return tuple(
        PieceSpec(
            tensor=placed.number,
            index=index,
            file=plan.name,
            start=placed.start + index * PIECE_BYTES,
            byte_count=min(PIECE_BYTES, placed.byte_count - index * PIECE_BYTES),
            digest=hashes[placed.name][index * HASH_BYTES : (index + 1) * HASH_BYTES],
        )
        for placed in plan.tensors
        for index in range(piece_count(placed.byte_count))
    )


def index_json(files: Mapping[str, Iterable[str]]) -> bytes:
    """The index of a part, from the tensors in each of its files."""
    weight_map = {tensor: file for file, tensors in sorted(files.items()) for tensor in tensors}
    return json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1).encode()


def obtainable_layers(manifest: Manifest, held: Sequence[frozenset[int]]) -> frozenset[int]:
    """Layers all of whose tensors somebody holds. `held`: tensor numbers, by holder."""
    everything: frozenset[int] = frozenset().union(*held)
    known: set[int] = set()
    lacking: set[int] = set()
    for number, name in enumerate(sorted(manifest.tensors)):
        if match := LAYER_NAME.search(name):
            (known if number in everything else lacking).add(int(match.group(1)))
    return frozenset(known - lacking)


def as_bits(numbers: Iterable[int], count: int) -> bytes:
    """A set of tensor numbers below `count` as bits, lowest first."""
    bits = bytearray(-(-count // 8))
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)


def from_bits(bits: bytes, count: int) -> frozenset[int]:
    return frozenset(
        number
        for number in range(min(count, 8 * len(bits)))
        if bits[number >> 3] >> (number & 7) & 1
    )
