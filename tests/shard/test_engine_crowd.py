"""What a session gets does not depend on its company or on losses, however the model computes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from engine_chain import on_blocks, parts
from engine_crowd import Crowd, Talk
from transformers import LlamaConfig, LlamaForCausalLM

from swarm.kernels.native_io import start_native
from swarm.kernels.tiles import Company
from swarm.shard import quantized
from swarm.shard.load_io import load_stage
from swarm.shard.stage import Stage
from swarm.terms import SampledToken, Sampling

LAYERS, VOCABULARY = 4, 160
CPU = torch.device("cpu")
KINDS = {
    "float32": (torch.float32, "none"),
    "bfloat16": (torch.bfloat16, "none"),
    "int8": (torch.float32, "int8"),
    "int4": (torch.float32, "int4"),
}
"""dtype and quantization of a stage."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for its linears to be quantized."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def hops(model: Path, kind: str, *, exact: bool = True) -> list[list[Stage]]:
    """Three parts, each loaded twice."""
    start_native()
    dtype, quantization = KINDS[kind]
    return [
        [
            on_blocks(load_stage(model, part, dtype, CPU, quantization), 160, exact=exact)
            for _ in range(2)
        ]
        for part in parts(LAYERS, [1, 3])
    ]


def talks() -> list[Talk]:
    """Eight, short and long, greedy and sampled."""
    rng = Random(3)
    found = []
    for number in range(8):
        length = (1, 3, 20, 63, 64, 65, 100, 150)[number]
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(length)]
        sampling = Sampling(temperature=0.9 * (number % 2), seed=number, logprobs=2)
        found.append(Talk(f"talk{number}", prompt, 24, sampling))
    return found


def alone(stages: Sequence[Sequence[Stage]]) -> dict[str, list[SampledToken]]:
    tokens: dict[str, list[SampledToken]] = {}
    for talk in talks():
        tokens |= Crowd(stages, [talk], seed=1).play(losses=0)
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_gets_what_it_gets_alone(model: Path, kind: str) -> None:
    stages = hops(model, kind)
    wanted = alone(stages)
    ids = {tuple(token.token_id for token in tokens) for tokens in wanted.values()}
    assert len(ids) == len(wanted)
    for seed in range(3):
        crowd = Crowd(stages, talks(), seed)
        assert crowd.play(losses=seed * 8) == wanted, seed
        assert crowd.losses == 0 or seed
    assert crowd.losses > 8


def test_floats_without_a_native_product_hold_in_whole_tiles(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized, "has_float_product", lambda _: False)
    stages = hops(model, "float32")
    assert {stage.company for pair in stages for stage in pair} == {Company.TILE}
    assert Crowd(stages, talks(), seed=2).play(losses=8) == alone(stages)


def test_bits_would_show_it_if_company_mattered(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized, "has_float_product", lambda _: False)
    stages = hops(model, "float32", exact=False)
    assert Crowd(stages, talks(), seed=1).play(losses=0) != alone(stages)
