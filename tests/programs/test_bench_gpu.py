"""What the GPU bench computes, where there is no GPU."""

from __future__ import annotations

import subprocess
import sys

import bench_gpu
import pytest
import torch

from swarm.kernels import attention


def test_the_bytes_of_a_step_are_those_of_the_weights_and_the_cache() -> None:
    shape = bench_gpu.Shape.of(bench_gpu.QWEN3_8B)
    assert 36 * shape.layer_weights == pytest.approx(6.95e9, rel=0.01)
    plain = shape.step_bytes(1, 0, 16.0)
    assert plain == 2 * (36 * shape.layer_weights + 4096 * 151936)
    assert shape.step_bytes(8, 100, 16.0) - plain == 8 * 100 * 36 * 2 * 8 * 128 * 2


def test_parity_finds_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(most <= allowed for _, most, allowed in bench_gpu.parities("cpu"))
    right = attention.paged_attention

    def wrong(q: torch.Tensor, *rest: object) -> torch.Tensor:
        return right(q * 1.5, *rest)

    monkeypatch.setattr(attention, "paged_attention", wrong)
    assert all(most > allowed for _, most, allowed in bench_gpu.parities("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_it_says_so_and_ends_well() -> None:
    ran = subprocess.run(
        [sys.executable, bench_gpu.__file__], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "skipped: no CUDA device")
