"""A model outlined from its config alone weighs what its checkpoint weighs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import transformers

from swarm.errors import ShardError
from swarm.shard import checkpoint as rules
from swarm.shard.checkpoint import parse_safetensors_header
from swarm.shard.outline_io import outline

COMMON = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
FAMILIES = {
    "llama": {"tie_word_embeddings": False},
    "gemma3_text": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_sizes_are_those_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    kind = type(transformers.AutoConfig.for_model(family))
    config = kind(**{**COMMON, **FAMILIES[family]})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    told = outline(tmp_path)
    file = tmp_path / "model.safetensors"
    spans = parse_safetensors_header(file.read_bytes(), file.stat().st_size, "it")
    stored = {s.name: rules.TensorEntry(s.dtype, s.shape, "", s.stop - s.start) for s in spans}
    sizes = rules.weight_sizes(stored, 1)
    assert told["largest_layer_elements"] == sizes.largest_layer
    assert (told["embed_elements"], told["head_elements"]) == (sizes.embed, sizes.head)
    layers = {n: math.prod(e.shape) for n, e in stored.items() if rules.layer_of(n) is not None}
    assert told["layers_elements"] == sum(layers.values())
    if "num_experts" in FAMILIES[family]:
        experts = sum(size for name, size in layers.items() if ".experts." in name)
        assert told["layers_active_elements"] == sum(layers.values()) - experts * 3 // 4
    else:
        assert told["layers_active_elements"] == told["layers_elements"]
    alone = tmp_path / "renamed.json"
    alone.write_bytes((tmp_path / "config.json").read_bytes())
    assert outline(alone) == told | {"name": "renamed"}


def test_what_cannot_be_outlined_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "resnet"}')
    with pytest.raises(ShardError, match="generates no text"):
        outline(tmp_path)
    with pytest.raises(ShardError, match="there is no model"):
        outline(tmp_path / "none")
