"""Identity, facts and sizes of checkpoints; sentences for what is wrong with one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_models import LAYERS, VOCAB, save_tiny, tiny_config

from swarm.errors import ShardError
from swarm.shard import checkpoint as rules
from swarm.shard import checkpoint_io
from swarm.shard.checkpoint import TensorEntry
from swarm.shard.checkpoint_io import Checkpoint, inspect
from swarm.terms import ModelId

MODEL = ModelId("0" * 32)


def no_gguf(path: Path) -> Mapping[str, bytes]:
    raise AssertionError(path)


def look(folder: Path, cache: Path) -> Checkpoint:
    return inspect(folder, cache, no_gguf)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model", "llama")
    (tmp_path / "model" / "tokenizer.json").write_text('{"added_tokens": []}')
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# ---------------------------------------------------------------- identity


def test_the_id_is_the_hash_of_the_manifest(folder: Path, cache: Path) -> None:
    found = look(folder, cache)
    data = found.manifest_path.read_bytes()
    assert rules.model_id_of(data) == found.model_id
    assert len(found.model_id) == 32
    assert set(rules.text_digests(data)) == {
        "config.json", "generation_config.json", "tokenizer.json",
    }  # fmt: skip
    assert len(json.loads(data)["tensors"]) == 3 + 9 * LAYERS


def test_texts_stand_beside_the_manifest(folder: Path, cache: Path) -> None:
    found = look(folder, cache)
    for name, content in found.texts.items():
        assert (found.manifest_path.parent / name).read_bytes() == content
        assert (folder / name).read_bytes() == content


def test_a_copy_elsewhere_is_the_same_model(folder: Path, cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert look(copy, tmp_path / "other").model_id == look(folder, cache).model_id


def test_shards_of_another_size_are_the_same_model(
    folder: Path, cache: Path, tmp_path: Path
) -> None:
    whole = look(folder, cache).model_id
    model = save_tiny(tmp_path / "again", "llama")
    split = tmp_path / "split"
    model.save_pretrained(split, max_shard_size="20KB")
    assert len(checkpoint_io.weight_files(split)) > 2
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        (split / name).write_bytes((folder / name).read_bytes())
    assert look(split, cache).model_id == whole


@pytest.mark.parametrize("what", ["weight", "config", "tokenizer"])
def test_any_change_is_another_model(folder: Path, cache: Path, what: str) -> None:
    before = look(folder, cache).model_id
    file = folder / {
        "weight": "model.safetensors", "config": "config.json", "tokenizer": "tokenizer.json",
    }[what]  # fmt: skip
    data = bytearray(file.read_bytes())
    if what == "weight":
        data[-1] ^= 1
    else:
        data += b"\n"
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))
    assert look(folder, cache).model_id != before


def test_an_unchanged_file_is_hashed_once(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look(folder, cache)

    def hashed_again(file: Path) -> dict[str, TensorEntry]:
        raise AssertionError(file)

    monkeypatch.setattr(checkpoint_io, "_safetensors_hashes", hashed_again)
    assert look(folder, cache).model_id == first.model_id
    os.utime(folder / "model.safetensors", ns=(1, 1))
    with pytest.raises(AssertionError):
        look(folder, cache)


def test_a_damaged_cache_is_made_anew(folder: Path, cache: Path) -> None:
    first = look(folder, cache).model_id
    for entry in (cache / "files").iterdir():
        entry.write_text("{broken")
    assert look(folder, cache).model_id == first


# ---------------------------------------------------------------- what is wrong with it


def test_sentences_for_what_cannot_be_read(folder: Path, cache: Path) -> None:
    cases = {
        "nowhere": "is neither a model folder nor a .gguf file",
        "empty": "has no config.json",
    }
    (folder / "empty").mkdir()
    for name, sentence in cases.items():
        with pytest.raises(ShardError, match=sentence):
            look(folder / name, cache)


def test_a_folder_without_weights(folder: Path, cache: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ShardError, match="holds no safetensors weights"):
        look(folder, cache)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ShardError, match="pickled weights only, which are never read"):
        look(folder, cache)


def test_missing_shards_are_named(tmp_path: Path, cache: Path) -> None:
    save_tiny(tmp_path / "a", "llama").save_pretrained(tmp_path / "b", max_shard_size="20KB")
    files = checkpoint_io.weight_files(tmp_path / "b")
    files[1].unlink()
    with pytest.raises(ShardError, match=f"lacks 1 weight files, first {files[1].name}"):
        look(tmp_path / "b", cache)


@pytest.mark.parametrize("keep", [0, 5, 8, 200, -1])
def test_a_file_that_is_cut_short(folder: Path, cache: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ShardError, match="is cut short"):
        look(folder, cache)


def test_a_file_of_another_kind(folder: Path, cache: Path) -> None:
    file = folder / "model.safetensors"
    for content in (b"\xff" * 64, (12).to_bytes(8, "little") + b"not a header" + b"x" * 9):
        file.write_bytes(content)
        with pytest.raises(ShardError, match="is not a safetensors file"):
            look(folder, cache)


def test_a_gguf_file_that_is_none(tmp_path: Path, cache: Path) -> None:
    for content in (b"no", b"GGUF\x03\0\0\0\x01"):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(ShardError, match="not a GGUF file|cut short or damaged"):
            look(tmp_path / "m.gguf", cache)


def test_bytes_that_are_no_manifest() -> None:
    for data in (b"", b"[]", b'{"texts": 3}', b"\xff"):
        with pytest.raises(ShardError, match="not a checkpoint manifest"):
            rules.text_digests(data)


DEEP = b"[" * 200_000


@pytest.mark.parametrize("row", [
    ["F32", [1], "a" * 64, float("inf")],
    ["F32", [float("inf")], "a" * 64, 4],
    ["F32", [1], "a" * 64, float("nan")],
    ["F32", [-1], "a" * 64, 4],
])  # fmt: skip
def test_a_manifest_from_anybody_is_refused_in_a_sentence(row: list[Any]) -> None:
    texts = {"config.json": "a" * 64}
    table = {"config": "a" * 64, "texts": texts, "tensors": {"layers.0.x": row}}
    with pytest.raises(ShardError, match="not a checkpoint manifest"):
        rules.parse_manifest(json.dumps(table).encode())


def test_json_that_is_nested_too_deep_or_has_no_end() -> None:
    for read in (rules.parse_manifest, rules.text_digests):
        with pytest.raises(ShardError, match="not a checkpoint manifest"):
            read(DEEP)
    endless = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}'
    for head in (DEEP, endless):
        with pytest.raises(ShardError, match="header is broken"):
            rules.parse_safetensors_header(len(head).to_bytes(8, "little") + head, 1 << 20, "f")
    with pytest.raises(ShardError, match="JSON file of the checkpoint is broken"):
        rules.model_spec(MODEL, "m", BASE, {"generation_config.json": DEEP})
    with pytest.raises(ShardError, match="added tokens"):
        spec(BASE, tokenizer__json={"added_tokens": [3]}, tokenizer_config__json={"eos_token": "a"})


# ---------------------------------------------------------------- facts


def spec(config: Mapping[str, Any], **texts: Any) -> Any:
    files = {name.replace("__", "."): json.dumps(body).encode() for name, body in texts.items()}
    return rules.model_spec(MODEL, "m", config, files)


BASE = {
    "num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 96, "max_position_embeddings": 128,
}  # fmt: skip


def test_facts_of_a_plain_config() -> None:
    found = spec(BASE | {"eos_token_id": 2})
    assert (found.layer_count, found.hidden_size, found.vocab_size) == (4, 32, 96)
    assert (found.context_length, found.eos_ids, found.has_text) == (128, (2,), False)


def test_facts_of_a_nested_config() -> None:
    found = spec({"text_config": BASE | {"eos_token_id": [7, 8]}, "hidden_size": 9})
    assert (found.layer_count, found.hidden_size, found.eos_ids) == (4, 32, (7, 8))


def test_older_names_of_the_same_facts() -> None:
    found = spec({"n_layer": 3, "n_embd": 16, "n_positions": 64, "vocab_size": 50})
    assert (found.layer_count, found.hidden_size, found.context_length) == (3, 16, 64)
    assert spec({"n_layer": 3, "d_model": 16, "vocab_size": 50}).context_length == 8192


def test_where_the_end_of_sequence_comes_from() -> None:
    config = BASE | {"eos_token_id": 2}
    generation = {"eos_token_id": [5, 6]}
    assert spec(config, generation_config__json=generation).eos_ids == (5, 6)
    assert spec(config, generation_config__json={"eos_token_id": None}).eos_ids == (2,)
    tokenizer = {"added_tokens": [{"id": 9, "content": "</s>"}, {"id": 3, "content": "<s>"}]}
    for eos in ("</s>", {"content": "</s>"}):
        found = spec(BASE, tokenizer__json=tokenizer, tokenizer_config__json={"eos_token": eos})
        assert (found.eos_ids, found.has_text) == ((9,), True)
    assert spec(BASE).eos_ids == ()


def test_configs_that_lack_what_is_needed() -> None:
    with pytest.raises(ShardError, match="lacks num_hidden_layers"):
        spec({"hidden_size": 3, "vocab_size": 5})
    with pytest.raises(ShardError, match="no vocabulary size"):
        spec({"num_hidden_layers": 3, "hidden_size": 3})


def test_sizes_that_no_node_would_take_for_true() -> None:
    for odd in ("num_hidden_layers", "hidden_size", "vocab_size"):
        with pytest.raises(ShardError, match="above"):
            spec(BASE | {odd: 10**12})
    found = spec(BASE | {"max_position_embeddings": 10**30, "eos_token_id": [10**9, *range(99)]})
    assert (found.context_length, found.eos_ids) == (1 << 26, tuple(range(64)))


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_the_parts(tmp_path: Path, tied: bool) -> None:
    save_tiny(tmp_path, "llama", tie_word_embeddings=tied)
    found = look(tmp_path, tmp_path / "cache")
    sizes = rules.weight_sizes(found.manifest.tensors, 2)
    attention, mlp, norms = 32 * (32 + 16 + 16 + 32), 3 * 32 * 48, 2 * 32
    assert sizes.largest_layer == 2 * (attention + mlp + norms)
    assert sizes.embed == sizes.head == 2 * VOCAB * 32


def test_packed_tensors_keep_their_stored_size() -> None:
    packed = TensorEntry("U8", (4, 4), "", 16)
    gguf = TensorEntry("GGUF:Q4_0", (32, 32), "", 576)
    assert rules.loaded_bytes(packed, 2) == 16
    assert rules.loaded_bytes(gguf, 2) == 2048


@pytest.mark.parametrize(
    ("family", "per_position"),
    [("llama", 2 * 2 * 8), ("gemma3_text", 2 * 2 * 8), ("deepseek_v3", 16 + 8)],
)
def test_kv_bytes_of_a_position(family: str, per_position: int) -> None:
    config = tiny_config(family).to_dict()
    assert rules.kv_bytes_per_token_layer(config, 4) == 4 * per_position


def test_kv_bytes_of_a_config_without_grouped_heads() -> None:
    assert rules.kv_bytes_per_token_layer({"n_embd": 32, "n_head": 4}, 2) == 2 * 2 * 4 * 8
