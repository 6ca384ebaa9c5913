"""Stages with integer weights: what is swapped, what stays, and what they still say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import VOCAB, save_tiny
from tokenizers import Tokenizer
from torch import nn

from swarm.errors import ConfigError
from swarm.kernels.linear import FusedLinear, SingleLinear
from swarm.kernels.native_io import start_native
from swarm.kernels.quantize import GroupWeight, to_int8
from swarm.shard import quantized
from swarm.shard.cut import Part
from swarm.shard.load_io import load_stage
from swarm.shard.quantized import quantize_model
from swarm.shard.stage import Stage
from swarm.terms import LayerRange

CPU = torch.device("cpu")
LAYERS = 4
WHOLE = Part(LayerRange(0, LAYERS), embed=True, head=True)
DENSE = ("llama", "qwen2", "qwen3", "phi3", "gemma3_text", "glm4", "olmo2")
PROSE = (
    "A lighthouse is a tower that shows a light to the ships at sea. Before there were engines, "
    "keepers lived in them, carried oil up the stairs and trimmed the lamps through the night. "
    "Most of them are automatic now, and many have been turned into museums or small hotels. "
    "People still visit them because they stand in lonely places with a wide view of the water. A "
    "bridge carries a road over a river. The oldest ones that still stand were built of stone, in "
    "arches, because stone is strong when it is pressed and weak when it is pulled. Later "
    "builders had iron and then steel, which can be pulled as well, and so they could hang a road "
    "from long cables between two towers. When the wind is strong such a bridge moves a little "
    "from side to side, and the people who walk across it can feel that. Bread is made from "
    "flour, water, salt and yeast. The baker mixes them in the evening and lets the dough rest "
    "through the night, so that it has time to rise. In the morning it is shaped into loaves and "
    "put into a hot oven. After about forty minutes the crust is brown, and the whole street "
    "smells of it. Most people buy their bread in a shop, but many have learned to make it at "
    "home, because it is cheap and not difficult once you have done it a few times. In winter the "
    "days are short and the lake is frozen. Children go out on the ice after school, and their "
    "parents stand on the shore and talk. When the sun goes down it becomes very cold, and "
    "everybody walks back to the village, where there is a fire and something warm to drink."
)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    start_native()
    monkeypatch.setattr(quantized, "OUTPUTS_MIN", 8)


def tiny(folder: Path, family: str, quantization: str, part: Part = WHOLE) -> Stage:
    return load_stage(folder, part, torch.float32, CPU, quantization)


def kinds(stage: Stage) -> dict[str, type[nn.Module]]:
    """The class of every module by name, without what the stage puts around layers and head."""
    found = {}
    for name, module in stage._model.named_modules():
        parts = [part for part in name.split(".") if part not in ("layer", "head")]
        found[".".join(parts)] = type(module)
    return found


def logits(stage: Stage, ids: list[int]) -> torch.Tensor:
    cache = stage.new_cache(stage.part, len(ids))
    return stage.forward(torch.tensor([ids]), 0, cache, tuple(range(len(ids))))[0].float()


@pytest.mark.parametrize("family", DENSE)
def test_a_quantized_stage_is_near_the_float_one(tmp_path: Path, family: str) -> None:
    save_tiny(tmp_path, family)
    ids = [5, 9, 33, 71, 12, 8, 90, 41, 17, 3]
    plain = logits(tiny(tmp_path, family, "none"), ids)
    errors = {}
    for quantization in ("int8", "int4"):
        stage = tiny(tmp_path, family, quantization)
        assert stage.quantization == quantization
        assert SingleLinear in kinds(stage).values()
        errors[quantization] = float((logits(stage, ids) - plain).norm() / plain.norm())
    # Random layers blow up small differences; unrelated logits would be about 1.4 apart.
    assert 0.0 < errors["int8"] < 0.1
    assert errors["int8"] < errors["int4"] < 0.9


def test_linears_and_head_are_swapped_and_all_else_stays(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    found = kinds(tiny(tmp_path, "llama", "int8"))
    layer = "model.layers.2"
    for name in ("q_proj", "k_proj", "v_proj"):
        assert found[f"{layer}.self_attn.{name}"] is FusedLinear
    assert found[f"{layer}.mlp.gate_proj"] is FusedLinear
    assert found[f"{layer}.self_attn.o_proj"] is SingleLinear
    assert found[f"{layer}.mlp.down_proj"] is SingleLinear
    assert found["lm_head"] is SingleLinear
    assert found["model.embed_tokens"] is nn.Embedding, "though tied to the head"
    assert nn.Linear not in found.values()


def test_routers_and_small_linears_stay_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.ModuleDict(
        {"gate": nn.Linear(64, 64), "up_proj": nn.Linear(64, 64), "b_proj": nn.Linear(64, 4)}
    )
    assert quantized._families(layer, quantized._is_wanted) == [("up_proj",)]
    layer["up_proj"].weight.data = torch.zeros(64, 64, dtype=torch.float8_e4m3fn)
    assert quantized._families(layer, quantized._is_wanted) == [], "packed by somebody else"
    save_tiny(tmp_path, "qwen3_moe")
    monkeypatch.setattr(quantized, "OUTPUTS_MIN", 40)
    found = kinds(tiny(tmp_path, "qwen3_moe", "int8"))
    assert SingleLinear not in {kind for name, kind in found.items() if "mlp" in name}


def test_two_stages_give_what_one_gives(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    ids = [4, 50, 23, 77, 1, 60]
    whole = logits(tiny(tmp_path, "llama", "int4"), ids)
    front = tiny(tmp_path, "llama", "int4", Part(LayerRange(0, 3), embed=True, head=False))
    back = tiny(tmp_path, "llama", "int4", Part(LayerRange(3, LAYERS), embed=False, head=True))
    rows = front.forward(torch.tensor([ids]), 0, front.new_cache(front.part, 6))
    split = back.forward(rows, 0, back.new_cache(back.part, 6), tuple(range(6)))[0]
    assert torch.equal(whole, split)


def test_packed_weights_are_counted_and_float_ones_gone(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    plain, int8, int4 = (
        tiny(tmp_path, "llama", name).parameter_bytes for name in ("none", "int8", "int4")
    )
    assert int4 < int8 < plain / 2
    assert plain > VOCAB * 32 * 4


def test_what_the_checkpoint_has_in_integers_goes_in_as_it_is(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, "llama")
    asked: list[str] = []

    def source(name: str, weight: torch.Tensor) -> GroupWeight | None:
        asked.append(name)
        return (
            to_int8(torch.zeros_like(weight)) if name.endswith("layers.1.mlp.down_proj") else None
        )

    quantize_model(model, "none", source)
    assert not asked
    model = save_tiny(tmp_path, "llama")
    quantize_model(model, "int4", source)
    assert {"lm_head", "model.layers.0.self_attn.q_proj"} <= set(asked)
    assert not model.model.layers[1].mlp.down_proj(torch.ones(1, 48)).any()
    assert model.model.layers[0].mlp.down_proj(torch.ones(1, 48)).any()


def test_an_unknown_quantization_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama")
    with pytest.raises(ConfigError, match="'int3' is not a quantization; use none, int8, int4"):
        tiny(tmp_path, "llama", "int3")


@pytest.mark.model
@pytest.mark.parametrize(("quantization", "agreement"), [("int8", 0.92), ("int4", 0.92)])
def test_smollm2_says_the_same(smollm2: Path, quantization: str, agreement: float) -> None:
    ids = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).encode(PROSE).ids
    part = Part(LayerRange(0, 30), embed=True, head=True)
    plain = logits(load_stage(smollm2, part, torch.float32, CPU), ids)
    stage = load_stage(smollm2, part, torch.float32, CPU, quantization)
    made = logits(stage, ids)
    same = (made.argmax(-1) == plain.argmax(-1)).float().mean()
    assert same >= agreement
    wanted = torch.tensor(ids[1:])
    loss, plain_loss = (
        float(nn.functional.cross_entropy(scores[:-1], wanted)) for scores in (made, plain)
    )
    assert abs(loss - plain_loss) < 0.03
