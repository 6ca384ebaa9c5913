"""Modules whose work one native call does: found by what they give, and giving the same after."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_models import VOCAB, tiny_config
from transformers import AutoModelForCausalLM

from swarm.kernels.native_io import start_native
from swarm.shard.glue import install_glue

ALL = ("norm", "gate", "turn")
FAMILIES = {
    "llama": ALL,
    "qwen3": ALL,
    "gemma3_text": ALL,
    "mixtral": ("norm", "turn"),
    "olmo2": ALL,
    "gpt_oss": ("norm",),
    "cohere2": ("gate",),
}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Rotary functions belong to the whole process: other tests want the plain ones."""
    if not start_native().available:
        pytest.skip(start_native().problem)
    yield
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models."):
            continue
        turn = getattr(module, "apply_rotary_pos_emb", None)
        if hasattr(turn, "plain"):
            module.apply_rotary_pos_emb = turn.plain  # type: ignore[attr-defined]


def model_of(family: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(family), dtype=dtype).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_gives_the_same_with_fewer_calls(family: str) -> None:
    model = model_of(family, torch.float32)
    ids = torch.arange(1, 40)[None] % VOCAB
    with torch.inference_mode():
        before = model(ids).logits
        assert install_glue(model) == FAMILIES[family]
        after = model(ids).logits
        assert install_glue(model) == FAMILIES[family]
    assert (before - after).abs().max() < 1e-4 * before.abs().max()
    assert not torch.equal(before, before.roll(1, -1))


def test_half_precision_is_served() -> None:
    model = model_of("llama", torch.bfloat16)
    ids = torch.arange(1, 40)[None] % VOCAB
    with torch.inference_mode():
        before = model(ids).logits
        assert install_glue(model) == ALL
        error = (before - model(ids).logits).float().abs()
    assert error.mean() < 0.05 * before.float().abs().mean()


def test_a_norm_of_another_kind_stays() -> None:
    class OddRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(16)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.abs().mean(-1, keepdim=True) * self.weight

    model = torch.nn.Sequential(OddRMSNorm())
    assert install_glue(model) == ()
    assert "forward" not in vars(model[0])
