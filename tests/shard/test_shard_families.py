"""Every family, every cut: the ids that transformers generates with the whole model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers
from engine_chain import Chain, load, parts, whole_part
from tiny_models import FAMILIES, LAYERS, UNCUTTABLE, VOCAB, reference_ids, save_tiny, with_vision

from swarm.errors import ShardError
from swarm.shard.selfcheck import check_pieces

CHUNK = 8
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK)
TOKENS = 10
CUTS = ([1], [2], [3], [1, 3])
QUICK = ("llama", "gemma3_text", "qwen3_next", "deepseek_v3")
LISTED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]


def prompt_of(length: int) -> list[int]:
    return random.Random(length).choices(range(3, VOCAB), k=length)


@pytest.mark.parametrize("family", LISTED)
def test_every_cut_generates_what_the_whole_model_does(family: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path, family)
    expected = {n: reference_ids(model, prompt_of(n), TOKENS) for n in LENGTHS}
    assert len(set().union(*expected.values())) > 3, "the model says too little to compare"
    for cuts in CUTS:
        chain = Chain.of(tmp_path, cuts)
        for length, ids in expected.items():
            assert chain.generate(prompt_of(length), TOKENS, chunk=CHUNK) == ids, (cuts, length)


@pytest.mark.parametrize("family", LISTED)
def test_split_logits_equal_unsplit_ones_bit_for_bit(family: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, family)
    prompt = torch.tensor([prompt_of(2 * CHUNK + 1)])
    results = []
    for cuts in ([], [2], [1, 3]):
        stages = [load(tmp_path, part) for part in parts(LAYERS, cuts)]
        caches = [stage.new_cache(stage.part, 40) for stage in stages]
        for start in range(0, prompt.shape[1], CHUNK):
            rows = prompt[:, start : start + CHUNK]
            wanted = tuple(range(rows.shape[1]))
            for stage, cache in zip(stages, caches, strict=True):
                rows = stage.forward(rows, start, cache, wanted if stage.part.head else ())
            results.append((cuts, start, rows))
    unsplit = {start: rows for cuts, start, rows in results if not cuts}
    for cuts, start, rows in results:
        assert torch.equal(rows, unsplit[start]), (cuts, start)


@pytest.mark.parametrize("family", LISTED)
def test_the_check_at_load_lets_the_family_pass(family: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, family)
    for part in parts(LAYERS, [2]):
        check_pieces(load(tmp_path, part))


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
def test_a_checkpoint_that_also_sees_serves_its_text_part(family: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    seeing = transformers.AutoModelForImageTextToText.from_config(with_vision(family)).eval()
    seeing.save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = reference_ids(model, prompt_of(2 * CHUNK), 6)
    text = ("language_model", "lm_head")
    text_bytes = sum(
        parameter.nbytes
        for name, parameter in seeing.named_parameters()
        if any(word in name for word in text)
    )
    packed_bytes = (
        text_bytes // 8
    )  # of a head tied to the embedding, and outputs that fill up tiles
    assert text_bytes + packed_bytes < sum(parameter.nbytes for parameter in seeing.parameters())
    held = load(tmp_path, whole_part(LAYERS)).parameter_bytes
    assert text_bytes <= held <= text_bytes + packed_bytes
    for cuts in ([], [2], [1, 3]):
        chain = Chain.of(tmp_path, cuts)
        assert chain.generate(prompt_of(2 * CHUNK), 6, chunk=CHUNK) == expected


@pytest.mark.parametrize("family", UNCUTTABLE)
def test_what_cannot_be_cut_says_so_and_runs_whole(family: str, tmp_path: Path) -> None:
    changes = UNCUTTABLE[family]
    model = save_tiny(tmp_path, family, **changes)
    with pytest.raises(ShardError, match=f"{family} cannot be cut between layers"):
        load(tmp_path, parts(LAYERS, [2])[0])
    chain = Chain([load(tmp_path, whole_part(LAYERS))])
    prompt = prompt_of(CHUNK + 1)
    assert chain.generate(prompt, 4, chunk=CHUNK) == reference_ids(model, prompt, 4)


def test_a_family_that_cannot_continue_a_prompt_is_refused_at_load(tmp_path: Path) -> None:
    save_tiny(tmp_path, "mamba", state_size=8)
    with pytest.raises(ShardError, match="other results for a prompt in pieces"):
        check_pieces(load(tmp_path, whole_part(LAYERS)))


def test_a_family_whose_code_looks_into_its_layers_is_refused_when_cut(tmp_path: Path) -> None:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
    save_tiny(tmp_path, "falcon_h1", mamba_n_groups=1, **sizes)
    with pytest.raises(ShardError, match="could not be loaded"):
        load(tmp_path, parts(LAYERS, [2])[0])


def test_a_family_with_a_cache_of_its_own_is_refused_at_load(tmp_path: Path) -> None:
    save_tiny(
        tmp_path,
        "minimax",
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["linear_attention", "full_attention"] * 2,
        block_size=8,
    )
    with pytest.raises(ShardError, match="minimax cannot be run in stages yet"):
        check_pieces(load(tmp_path, parts(LAYERS, [2])[0]))
