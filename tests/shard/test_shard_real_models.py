"""Engines on real weights: the ids of transformers, whatever the cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_chain import Chain, load, parts, whole_part
from reference_ids import Reference, reference

from swarm.kernels.native_io import start_native
from swarm.shard.checkpoint import weight_sizes
from swarm.shard.checkpoint_io import inspect
from swarm.shard.cut import Part
from swarm.shard.load_io import load_stage
from swarm.shard.selfcheck import check_pieces
from swarm.terms import LayerRange, Sampling

pytestmark = pytest.mark.model

CHUNK = 64
SMOLLM2_CUTS = {1: [], 2: [15], 3: [10, 20], 5: [6, 12, 18, 24]}
GEMMA3_CUTS = {2: [9], 3: [6, 12]}
SUBJECTS = ("the sea", "a small town", "prime numbers", "bread", "the year 1969")
OPENINGS = (
    "Write about {}.",
    "def about(text):\n    # {}\n    return",
    "Q: What is {}?\nA:",
    "«{}», said the",
)
PROMPTS = [opening.format(subject) for subject in SUBJECTS for opening in OPENINGS]
LONG = (
    "".join(f"Line {n}: {SUBJECTS[n % 5]} and then {SUBJECTS[n % 3]}. " for n in range(70)) + "So"
)
"""Beyond the 512 positions of Gemma's sliding window."""


def compare(path: Path, cuts: list[int], wanted: list[Reference]) -> None:
    chain = Chain.of(path, cuts)
    for want in wanted:
        ids = chain.generate(want.prompt_ids, len(want.ids), chunk=CHUNK)
        assert ids == want.ids, want.prompt_ids


@pytest.mark.parametrize("pieces", [2, 5])
def test_smollm2_in_pieces(smollm2: Path, reference_cache: Path, pieces: int) -> None:
    wanted = reference(smollm2, PROMPTS[:2], 12, reference_cache)
    compare(smollm2, SMOLLM2_CUTS[pieces], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("pieces", SMOLLM2_CUTS)
def test_smollm2_in_pieces_at_length(smollm2: Path, reference_cache: Path, pieces: int) -> None:
    wanted = reference(smollm2, PROMPTS, 64, reference_cache)
    compare(smollm2, SMOLLM2_CUTS[pieces], wanted if pieces == 3 else wanted[:4])


@pytest.mark.slow
@pytest.mark.parametrize("pieces", GEMMA3_CUTS)
def test_gemma3_in_pieces_beyond_its_window(
    gemma3: Path, reference_cache: Path, pieces: int
) -> None:
    wanted = reference(gemma3, [*PROMPTS[:6], LONG, LONG[40:]], 32, reference_cache)
    assert len(wanted[-1].prompt_ids) > 512
    compare(gemma3, GEMMA3_CUTS[pieces], wanted)


@pytest.mark.slow
def test_gemma3_sampled_is_the_same_for_any_cut(gemma3: Path, reference_cache: Path) -> None:
    (want,) = reference(gemma3, [LONG], 32, reference_cache)
    warm = Sampling(temperature=0.8, top_p=0.95, seed=5)
    answers = [
        Chain.of(gemma3, cuts).generate(want.prompt_ids, 24, chunk=CHUNK, sampling=warm)
        for cuts in ([], [9], [5, 6])
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.slow
def test_real_models_pass_the_check_at_load(smollm2: Path, gemma3: Path) -> None:
    for path, count in ((smollm2, 30), (gemma3, 18)):
        for part in (whole_part(count), *parts(count, [count // 2])):
            check_pieces(load(path, part))


def test_a_head_that_is_tied_to_the_embedding_is_held_once(smollm2: Path, tmp_path: Path) -> None:
    """Nodes count on it when they choose how many layers fit."""
    start_native()
    device = torch.device("cpu")
    stage = load_stage(smollm2, Part(LayerRange(28, 30), False, True), torch.float32, device)
    manifest = inspect(smollm2, tmp_path, lambda path: {}).manifest
    sizes = weight_sizes(manifest.tensors, torch.float32.itemsize)
    assert stage.parameter_bytes <= 1.01 * (2 * sizes.largest_layer + sizes.head)
