"""What a stage holds and reads, and how it may be used in part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_chain import Chain, load, parts, whole_part
from safetensors import safe_open
from tiny_models import LAYERS, VOCAB, reference_ids, save_tiny

from swarm.errors import ConfigError, ShardError
from swarm.shard.checkpoint import kv_bytes_per_token_layer
from swarm.shard.cut import Part
from swarm.shard.load_io import choose_device, choose_dtype, load_stage, read_config
from swarm.terms import LayerRange

PROMPT = [5, 17, 40, 8, 61, 33, 9, 72, 4, 28, 90, 55, 13, 6, 47, 21, 80, 3, 66, 39]


def tensor_bytes(folder: Path) -> dict[str, int]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118


def belongs(name: str, part: Part, *, tied: bool) -> bool:
    """Whether a part of a llama-like model needs a tensor."""
    if ".layers." in name:
        return int(name.split(".layers.")[1].split(".")[0]) in part.layers
    if "embed_tokens" in name:
        return part.embed or (part.head and tied)
    return part.head


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cuts", [[], [1], [2, 3]])
def test_a_stage_holds_its_own_tensors_and_no_others(
    cuts: list[int], tied: bool, tmp_path: Path
) -> None:
    save_tiny(tmp_path, "llama", tie_word_embeddings=tied)
    sizes = tensor_bytes(tmp_path)
    assert ("lm_head.weight" in sizes) is not tied
    for part in parts(LAYERS, cuts):
        own = sum(size for name, size in sizes.items() if belongs(name, part, tied=tied))
        # Where products are native, a head that shares the embedding's weights packs a copy.
        copy = 2 * sizes["model.embed_tokens.weight"] if tied and part.head else 0
        assert own <= load(tmp_path, part).parameter_bytes <= own + copy


def test_a_stage_reads_only_its_own_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, "llama")
    read: list[str] = []

    class Watched:
        """The tensors of a file, with a note of every one that is looked at."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._file = safe_open(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_slice(self, name: str) -> Any:
            inner = self._file.get_slice(name)
            return Slice(name, inner)

    class Slice:
        def __init__(self, name: str, inner: Any) -> None:
            self._name, self._inner = name, inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __getitem__(self, key: Any) -> Any:
            read.append(self._name)
            return self._inner[key]

    monkeypatch.setattr("transformers.modeling_utils.safe_open", Watched)
    part = Part(LayerRange(1, 2), embed=False, head=False)
    load(tmp_path, part)
    assert read
    assert {name for name in read if not belongs(name, part, tied=False)} == set()


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads_give_the_reference(tied: bool, tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "qwen2", tie_word_embeddings=tied)
    expected = reference_ids(model, PROMPT, 12)
    for cuts in ([1], [2], [3], [1, 2, 3]):
        assert Chain.of(tmp_path, cuts).generate(PROMPT, 12, chunk=8) == expected


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "gpt_oss", "qwen3_next", "granite"])
def test_a_range_used_in_part_gives_the_bits_of_a_shard_of_that_size(
    family: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path, family)
    exact, wide = parts(LAYERS, [1, 3]), whole_part(LAYERS)
    stage = load(tmp_path, wide)
    narrow = [load(tmp_path, part) for part in exact]
    rows = [torch.tensor([PROMPT])] * 2
    for part, own in zip(exact, narrow, strict=True):
        for position, count in ((0, 8), (8, 8), (16, 1), (17, 1)):
            if position == 0:
                caches = [one.new_cache(part, 30) for one in (own, stage)]
                outputs: list[list[torch.Tensor]] = [[], []]
            wanted = (count - 1,) if part.head else ()
            for index, one in enumerate((own, stage)):
                piece = rows[index][:, position : position + count]
                outputs[index].append(one.forward(piece, position, caches[index], wanted))
        rows = [torch.cat(pieces, dim=1) for pieces in outputs]
        assert torch.equal(rows[0], rows[1]), part


def test_a_cache_for_part_of_a_range_holds_only_that_part(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    stage = load(tmp_path, whole_part(LAYERS))
    cache = stage.new_cache(Part(LayerRange(1, 3), embed=False, head=False), 32)
    stage.forward(torch.randn(1, 4, 32), 0, cache)
    keys_and_values, heads, head_size, element = 2, 2, 8, 4
    assert cache.byte_count == 2 * keys_and_values * heads * 32 * head_size * element


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "phi3", "qwen3_moe", "glm4", "opt"])
def test_kv_takes_what_the_config_foretells(family: str, tmp_path: Path) -> None:
    heads = {"num_key_value_heads": 4} if family == "opt" else {}
    save_tiny(tmp_path, family, **heads)
    stage = load(tmp_path, whole_part(LAYERS))
    cache = stage.new_cache(stage.part, 50)
    stage.forward(torch.tensor([PROMPT]), 0, cache)
    per_position = kv_bytes_per_token_layer(read_config(tmp_path).to_dict(), 4)
    assert cache.byte_count == 50 * LAYERS * per_position


def test_layers_that_are_not_held_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    stage = load(tmp_path, Part(LayerRange(1, 3), embed=False, head=False))
    for layers, head in ((LayerRange(0, 2), False), (LayerRange(1, 3), True)):
        with pytest.raises(ShardError, match="not \\(all\\) held here"):
            stage.new_cache(Part(layers, embed=False, head=head), 8)


def test_rows_must_go_on_where_the_cache_ends(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    stage = load(tmp_path, whole_part(LAYERS))
    cache = stage.new_cache(stage.part, 8)
    stage.forward(torch.tensor([[5, 6, 7]]), 0, cache)
    for position in (0, 2, 4):
        with pytest.raises(ShardError, match="the KV holds 3 positions"):
            stage.forward(torch.tensor([[5]]), position, cache)
    with pytest.raises(ShardError, match="above the 8 reserved"):
        stage.forward(torch.tensor([[5] * 6]), 3, cache)
    assert cache.length == 3


def test_bits_do_not_depend_on_how_many_positions_are_reserved(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    stage = load(tmp_path, whole_part(LAYERS))
    results = []
    for limit in (20, 21, 200):
        cache = stage.new_cache(stage.part, limit)
        prompt = torch.tensor([PROMPT])
        logits = [stage.forward(prompt[:, :16], 0, cache, (15,))]
        logits += [stage.forward(prompt[:, i : i + 1], i, cache, (0,)) for i in range(16, 20)]
        results.append(torch.cat(logits, dim=1))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_half_precision_rows(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    split = Chain.of(tmp_path, [2], torch.bfloat16)
    whole = Chain.of(tmp_path, [], torch.bfloat16)
    assert split.engines[0].stage.row_bytes == 64
    assert split.generate(PROMPT, 8, chunk=8) == whole.generate(PROMPT, 8, chunk=8)


# ---------------------------------------------------------------- what cannot be loaded


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A checkpoint and its config, to be spoilt."""
    save_tiny(tmp_path, "llama")
    yield tmp_path, json.loads((tmp_path / "config.json").read_text())


def test_code_of_a_checkpoint_is_never_run(broken: tuple[Path, dict[str, Any]]) -> None:
    folder, config = broken
    (folder / "own.py").write_text("raise SystemExit('the code of the checkpoint ran')\n")
    config |= {"model_type": "own_kind", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ShardError, match="the config of .* is not usable"):
        read_config(folder)


@pytest.mark.parametrize("odd", [
    {"pad_token_id": 10**6}, {"num_attention_heads": 0}, {"rms_norm_eps": "x"}, {"layer_types": []},
    {"head_dim": 0}, {"hidden_act": "no"}, {"rope_parameters": []},
])  # fmt: skip
def test_a_config_of_anybody_is_refused_in_a_sentence(
    broken: tuple[Path, dict[str, Any]], odd: dict[str, Any]
) -> None:
    """Models come from peers: no config ends the worker."""
    folder, config = broken
    (folder / "config.json").write_text(json.dumps(config | odd))
    part = Part(LayerRange(0, 1), True, False)
    with pytest.raises(ShardError, match="is not usable|could not be loaded"):
        load_stage(folder, part, torch.float32, torch.device("cpu"))


def test_a_config_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"model_type":"llama","x":' + b"[" * 200_000)
    with pytest.raises(ShardError, match="is not usable"):
        read_config(tmp_path)


def test_a_model_that_generates_no_text_is_refused(broken: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = broken
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ShardError, match="of kind 'vit', which generates no text"):
        read_config(folder)


def test_missing_tensors_are_named(broken: tuple[Path, dict[str, Any]]) -> None:
    folder, config = broken
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS + 1}))
    with pytest.raises(ShardError, match=r"lacks 9 tensors, first model\.layers\.4\."):
        load(folder, whole_part(LAYERS + 1))
    assert load(folder, Part(LayerRange(0, LAYERS), embed=True, head=False)).vocab_size == VOCAB


def test_devices_and_dtypes_that_do_not_exist() -> None:
    for name in ("tpu9", "cuda:99", "xpu"):
        with pytest.raises(ConfigError):
            choose_device(name)
    with pytest.raises(ConfigError, match="is not a dtype"):
        choose_dtype("int3", torch.float32, torch.device("cpu"))


def test_dtype_auto_keeps_the_weights_but_avoids_the_slow() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("auto", torch.float32, cpu) is torch.float32
    assert choose_dtype("auto", None, cpu) is torch.float32
    assert choose_dtype("bfloat16", torch.float32, cpu) is torch.bfloat16
    assert choose_dtype("auto", torch.bfloat16, cpu) in (torch.bfloat16, torch.float32)
