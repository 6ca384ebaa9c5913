"""Ids through real processes equal those of transformers, whatever the split."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompts import PROMPTS, long_prompt
from reference_ids import Reference, reference
from swarm_procs import Node, Swarm

pytestmark = pytest.mark.xdist_group("processes")

SMOLLM2_SPLITS = {
    1: ["0:30"],
    2: ["0:15", "15:30"],
    3: ["0:10", "10:20", "20:30"],
    5: ["0:6", "6:12", "12:18", "18:24", "24:30"],
}
GEMMA3_SPLITS = {2: ["0:9", "9:18"], 3: ["0:6", "6:12", "12:18"]}
GEMMA3_PROMPTS = [
    *(PROMPTS[i] for i in (0, 2, 6, 13, 19)),
    *(long_prompt(repeats, number=repeats) for repeats in (8, 11, 14)),
]
"""The long ones pass the 512 tokens of the sliding window, one of them while it generates."""


def compare(node: Node, name: str, prompts: list[str], wanted: list[Reference]) -> None:
    for prompt, want in zip(prompts, wanted, strict=True):
        answer = node.ask(
            model=name, prompt=prompt, max_tokens=len(want.ids), ignore_eos=True
        ).finish()
        assert answer.error is None
        assert answer.done
        assert answer.prompt_ids == want.prompt_ids, prompt
        assert answer.ids == want.ids, prompt
        assert answer.swarm["exact"] is True
        assert answer.swarm["reroutes"] == 0


def split_gives(
    folder: Path, model: Path, cuts: list[str], wanted: list[Reference], prompts: list[str]
) -> None:
    with Swarm(folder) as swarm:
        nodes = swarm.start_split(model, cuts)
        compare(nodes[-1], model.name, prompts, wanted)
        route = nodes[0].ask(model=model.name, prompt="x", max_tokens=1).finish().swarm["route"]
        assert [f"{hop['start']}:{hop['stop']}" for hop in route] == cuts
        swarm.await_idle()


def test_a_split_in_three_gives_the_ids_of_transformers(
    tmp_path: Path, smollm2: Path, reference_cache: Path
) -> None:
    prompts = [*PROMPTS[:3], long_prompt(6, number=1)]
    wanted = reference(smollm2, prompts, 16, reference_cache)
    split_gives(tmp_path, smollm2, SMOLLM2_SPLITS[3], wanted, prompts)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", SMOLLM2_SPLITS)
def test_smollm2(tmp_path: Path, smollm2: Path, reference_cache: Path, parts: int) -> None:
    wanted = reference(smollm2, PROMPTS, 64, reference_cache)
    split_gives(tmp_path, smollm2, SMOLLM2_SPLITS[parts], wanted, PROMPTS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", GEMMA3_SPLITS)
def test_gemma3(tmp_path: Path, gemma3: Path, reference_cache: Path, parts: int) -> None:
    wanted = reference(gemma3, GEMMA3_PROMPTS, 32, reference_cache)
    assert any(len(w.prompt_ids) < 512 < len(w.prompt_ids) + 32 for w in wanted)
    assert any(len(w.prompt_ids) > 512 for w in wanted)
    split_gives(tmp_path, gemma3, GEMMA3_SPLITS[parts], wanted, GEMMA3_PROMPTS)
