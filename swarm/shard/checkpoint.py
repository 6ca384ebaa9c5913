"""What a checkpoint is: its identity, what every node must know of it, what its parts weigh.

A checkpoint is identified by its content. The manifest is canonical JSON (sorted keys, no blanks)

    {"config": sha256, "tensors": {name: [dtype, shape, digest, bytes]}, "texts": {name: sha256}}

and the ModelId is the first 32 hex digits of the sha256 over it, so that two nodes that hold
different versions of one model never share a route. A tensor's digest is the sha256 of its bytes,
or, where those are more than one piece, the sha256 over the sha256s of its pieces: so each piece
that comes from a peer can be checked by itself (docs/decisions/023-weights-by-lan.md).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.errors import ShardError
from swarm.terms import (
    CONTEXT_MAX,
    EOS_IDS_MAX,
    HIDDEN_MAX,
    LAYERS_MAX,
    VOCAB_MAX,
    ModelId,
    ModelSpec,
)

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
TOKENIZER_NAME = "tokenizer.json"
MANIFEST_NAME = "manifest.json"
PIECES_NAME = "pieces.bin"
"""The hashes of the pieces of all tensors that have several, 32 bytes each, by tensor name."""
TEXT_NAMES = (
    CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    TOKENIZER_NAME,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Small files that travel between nodes and are part of the identity, where they exist."""
GGUF_HEAD_NAME = "head.gguf"
"""The first bytes of a GGUF file, up to its tensors: one more of them, of such a model."""

HEADER_BYTES_MAX = 100 * 1024 * 1024
"""The format's own limit for the JSON head of a safetensors file."""

PIECE_BYTES = 1 << 20
"""Of a tensor, hashed by themselves. Part of the identity: another size makes other ModelIds."""
HASH_BYTES = 32
TENSORS_MAX = 1 << 18
"""The largest known have a third of it; one bit for each fits into a control frame."""
TENSOR_BYTES_MAX = 1 << 44
TENSOR_NAME_MAX = 512
DIMENSIONS_MAX = 16

BROKEN_JSON = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading foreign JSON raises: cut, of other types, infinite numbers, too deep."""

CONTEXT_LENGTH_UNKNOWN = 8192
"""Taken where the config names no limit (models with linear position bias)."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
LAYER_NAME = re.compile(r"(?:^|\.)(?:layers|h|blk|blocks|block)\.(\d+)\.")
EMBED_NAME = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|token_embd)\.weight$"
)
HEAD_NAME = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight$")

_ALIASES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the manifest. `byte_count`: as stored in the file."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    byte_count: int
    pieces: bytes = field(default=b"", compare=False)
    """The hashes of its pieces where it has several and they are known."""


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Where a safetensors file keeps a tensor: bytes [start, stop) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Manifest:
    config: str
    texts: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes in memory, in the dtype of a load."""

    largest_layer: int
    embed: int
    head: int
    """The output matrix; with tied embeddings the embedding, which a head holds as well."""


def parse_safetensors_header(head: bytes, file_bytes: int, name: str) -> tuple[TensorSpan, ...]:
    """Spans in file order.

    head        the first bytes of the file: 8-byte little-endian length, then the JSON head
    file_bytes  size of the whole file

    Raises ShardError when the file is cut short or is no safetensors file.
    """
    length = header_length(head, name)
    start = 8 + length
    if len(head) < start:
        raise ShardError(f"{name} is cut short: its header needs {start} bytes, it has {len(head)}")
    try:
        table = json.loads(head[8:start])
        spans = sorted(
            (_span(key, entry, start) for key, entry in table.items() if key != "__metadata__"),
            key=lambda span: span.start,
        )
    except BROKEN_JSON as error:
        raise ShardError(f"{name} is not a safetensors file: its header is broken") from error
    end = max((span.stop for span in spans), default=start)
    if end > file_bytes:
        raise ShardError(f"{name} is cut short: it should have {end} bytes, it has {file_bytes}")
    return tuple(spans)


def header_length(head: bytes, name: str) -> int:
    """Bytes of the JSON head that follow the first eight bytes."""
    if len(head) < 8:
        raise ShardError(f"{name} is cut short: it has only {len(head)} bytes")
    length = int.from_bytes(head[:8], "little")
    if length > HEADER_BYTES_MAX:
        raise ShardError(f"{name} is not a safetensors file")
    return length


def _span(name: str, entry: Mapping[str, Any], start: int) -> TensorSpan:
    first, last = (int(offset) for offset in entry["data_offsets"])
    if not 0 <= first <= last:
        raise ValueError(name)
    shape = tuple(int(size) for size in entry["shape"])
    return TensorSpan(name, str(entry["dtype"]), shape, start + first, start + last)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The canonical form, which is what gets hashed and what peers exchange."""
    table = {
        "config": manifest.config,
        "texts": dict(manifest.texts),
        "tensors": {
            name: [entry.dtype, list(entry.shape), entry.digest, entry.byte_count]
            for name, entry in manifest.tensors.items()
        },
    }
    return json.dumps(table, sort_keys=True, separators=(",", ":")).encode()


def model_id_of(manifest: bytes) -> ModelId:
    return ModelId(hashlib.sha256(manifest).hexdigest()[:32])


def text_digests(manifest: bytes) -> dict[str, str]:
    """sha256 by name of the text files, from a manifest in canonical form.

    Raises ShardError when the bytes are no manifest.
    """
    try:
        texts = json.loads(manifest)["texts"]
        return {str(name): str(digest) for name, digest in texts.items()}
    except BROKEN_JSON as error:
        raise ShardError("not a checkpoint manifest") from error


def parse_manifest(data: bytes) -> Manifest:
    """A manifest in canonical form, whoever sent it. Raises ShardError."""
    try:
        table = json.loads(data)
        tensors = {str(name): _entry(str(name), row) for name, row in table["tensors"].items()}
        config, texts = str(table["config"]), text_digests(data)
    except BROKEN_JSON as error:
        raise ShardError("not a checkpoint manifest") from error
    known = {*TEXT_NAMES, GGUF_HEAD_NAME}
    if len(tensors) > TENSORS_MAX or not set(texts) <= known or CONFIG_NAME not in texts:
        raise ShardError("a checkpoint manifest that names too much, or no config")
    return Manifest(config, texts, tensors)


def _entry(name: str, row: Sequence[Any]) -> TensorEntry:
    dtype, shape, digest, byte_count = row
    sizes = tuple(int(size) for size in shape)
    fits = 0 <= int(byte_count) <= TENSOR_BYTES_MAX and len(bytes.fromhex(digest)) == HASH_BYTES
    if not fits or len(sizes) > DIMENSIONS_MAX or min(sizes, default=0) < 0:
        raise ValueError(name)
    if not 0 < len(name) <= TENSOR_NAME_MAX or not name.isprintable():
        raise ValueError(name)
    return TensorEntry(str(dtype), sizes, str(digest), int(byte_count))


def piece_count(byte_count: int) -> int:
    return max(1, -(-byte_count // PIECE_BYTES))


def tensor_digest(pieces: Sequence[bytes]) -> str:
    """From the sha256 of each of its pieces."""
    return pieces[0].hex() if len(pieces) == 1 else hashlib.sha256(b"".join(pieces)).hexdigest()


def pieces_bytes(manifest: Manifest) -> bytes:
    """The content of the file of piece hashes."""
    return b"".join(manifest.tensors[name].pieces for name in sorted(manifest.tensors))


def piece_hashes(manifest: Manifest, data: bytes) -> dict[str, bytes]:
    """Per tensor the hashes of its pieces, 32 bytes each, from the file of them.

    Raises ShardError unless they are what the manifest's digests were made of.
    """
    found: dict[str, bytes] = {}
    at = 0
    for name, entry in sorted(manifest.tensors.items()):
        count = piece_count(entry.byte_count)
        if count == 1:
            found[name] = bytes.fromhex(entry.digest)
            continue
        hashes = data[at : at + count * HASH_BYTES]
        at += count * HASH_BYTES
        if hashlib.sha256(hashes).hexdigest() != entry.digest:
            raise ShardError(f"the piece hashes of {name} are not those of the model")
        found[name] = hashes
    if at != len(data):
        raise ShardError("the file of piece hashes has another length")
    return found


def missing_shards(weight_map: Mapping[str, str], present: Iterable[str]) -> tuple[str, ...]:
    """Weight files that the index names and the folder lacks."""
    return tuple(sorted(set(weight_map.values()) - set(present)))


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def model_spec(
    model_id: ModelId,
    name: str,
    config: Mapping[str, Any],
    texts: Mapping[str, bytes],
) -> ModelSpec:
    """From the config (defaults filled in) and the text files by name.

    Raises ShardError, also for sizes that no other node would take for true.
    """
    text = text_section(config)
    vocab_size = text.get("vocab_size") or config.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise ShardError(f"the config of {name} names no vocabulary size")
    if not 0 < vocab_size <= VOCAB_MAX:
        raise ShardError(f"the config of {name} has a vocabulary that is none or above {VOCAB_MAX}")
    return ModelSpec(
        model_id=model_id,
        name=name,
        layer_count=_number(text, "layers", name, LAYERS_MAX),
        hidden_size=_number(text, "hidden", name, HIDDEN_MAX),
        vocab_size=vocab_size,
        context_length=min(_optional(text, "context") or CONTEXT_LENGTH_UNKNOWN, CONTEXT_MAX),
        eos_ids=_eos_ids(config, texts),
        has_text=TOKENIZER_NAME in texts,
    )


def _number(text: Mapping[str, Any], what: str, name: str, limit: int) -> int:
    value = _optional(text, what)
    if not value:
        raise ShardError(f"the config of {name} lacks {_ALIASES[what][0]}")
    if value > limit:
        raise ShardError(f"the config of {name} has {_ALIASES[what][0]} above {limit}")
    return value


def _optional(text: Mapping[str, Any], what: str) -> int | None:
    values = (text.get(key) for key in _ALIASES[what])
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _eos_ids(config: Mapping[str, Any], texts: Mapping[str, bytes]) -> tuple[int, ...]:
    """End-of-sequence ids from the first of these that names any: generation config, config,
    tokenizer."""
    generation = _json(texts.get(GENERATION_CONFIG_NAME))
    for source in (generation, config, text_section(config)):
        found = source.get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if numbers := tuple(i for i in ids if isinstance(i, int) and 0 <= i <= VOCAB_MAX):
            return numbers[:EOS_IDS_MAX]
    return _tokenizer_eos(texts)


def _tokenizer_eos(texts: Mapping[str, bytes]) -> tuple[int, ...]:
    token = _json(texts.get("tokenizer_config.json")).get("eos_token")
    content = token.get("content") if isinstance(token, Mapping) else token
    added = _json(texts.get(TOKENIZER_NAME)).get("added_tokens", [])
    try:
        ids = tuple(int(e["id"]) for e in added if content and e.get("content") == content)
    except BROKEN_JSON as error:
        raise ShardError("the tokenizer's added tokens are broken") from error
    return tuple(i for i in ids if 0 <= i <= VOCAB_MAX)[:EOS_IDS_MAX]


def _json(data: bytes | None) -> Mapping[str, Any]:
    if data is None:
        return {}
    try:
        table = json.loads(data)
    except BROKEN_JSON as error:
        raise ShardError("a JSON file of the checkpoint is broken") from error
    return table if isinstance(table, Mapping) else {}


def weight_sizes(tensors: Mapping[str, TensorEntry], element_bytes: int) -> WeightSizes:
    """What the parts weigh once loaded with `element_bytes` per floating-point element."""
    layers: dict[int, int] = {}
    embed = head = 0
    for name, entry in tensors.items():
        size = loaded_bytes(entry, element_bytes)
        if match := LAYER_NAME.search(name):
            index = int(match.group(1))
            layers[index] = layers.get(index, 0) + size
        elif EMBED_NAME.search(name):
            embed = max(embed, size)
        elif HEAD_NAME.search(name):
            head = max(head, size)
    return WeightSizes(max(layers.values(), default=0), embed, head or embed)


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to, by its name."""
    match = LAYER_NAME.search(name)
    return int(match.group(1)) if match else None


def loaded_bytes(entry: TensorEntry, element_bytes: int) -> int:
    """Packed formats keep their stored size, except GGUF blocks, which are unpacked at load."""
    if entry.dtype in _FLOAT_DTYPES or entry.dtype.startswith("GGUF:"):
        return math.prod(entry.shape) * element_bytes
    return entry.byte_count


def kv_bytes_per_token_layer(config: Mapping[str, Any], element_bytes: int) -> int:
    """Keys and values of one position in one full-attention layer, as transformers keeps them.

    Sliding-window layers keep less beyond their window and recurrent layers a fixed state; both
    are counted like full attention, on the safe side.
    """
    text = text_section(config)
    heads = _optional(text, "heads") or 1
    hidden = _optional(text, "hidden") or 0
    if text.get("kv_lora_rank") and text.get("qk_rope_head_dim"):
        # Latent attention caches one compressed row for all heads, and one rotary key.
        return (int(text["kv_lora_rank"]) + int(text["qk_rope_head_dim"])) * element_bytes
    kv_heads = max(_integers(text, ("num_key_value_heads", "num_global_key_value_heads"), heads))
    sizes = _integers(text, ("head_dim", "global_head_dim"), hidden // heads)
    return 2 * kv_heads * max(sizes) * element_bytes


def _integers(text: Mapping[str, Any], names: tuple[str, ...], default: int) -> list[int]:
    found = [value for name in names if isinstance(value := text.get(name), int) and value > 0]
    return found or [default]
