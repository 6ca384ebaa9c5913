"""Norm, gate and rotary embedding as native calls, against the same in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from swarm.kernels.native_io import Native

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
SIZES = (1, 15, 16, 17, 64, 577)


@pytest.fixture(autouse=True)
def _kernels(native: Native) -> None:
    """There is nothing to test without them."""


def randoms(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """`other` is float64"""
    error = (one.double() - other).abs() / (1 + other.abs())
    return bool(error.max() < TOLERANCE[one.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
def test_norms(dtype: torch.dtype, size: int) -> None:
    x, weight = randoms(5, 2, size, dtype=dtype), randoms(size, dtype=dtype, seed=1)
    wide = x.double()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    call = torch.ops.swarm.rms_norm
    assert close(call(x, None, 1e-5, 0), normed)
    assert close(call(x, weight, 1e-5, 0), weight.double() * normed)
    assert close(call(x, weight, 1e-5, 1), weight.double() * normed)
    assert close(call(x, weight, 1e-5, 2), (1 + weight.double()) * normed)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", SIZES)
def test_gates(dtype: torch.dtype, size: int) -> None:
    both = randoms(4, 2 * size, dtype=dtype)
    gate, up = both.chunk(2, dim=-1)
    silu = functional.silu(gate.double()) * up.double()
    gelu = functional.gelu(gate.double(), approximate="tanh") * up.double()
    assert close(torch.ops.swarm.gated(gate, up, 0), silu)
    assert close(torch.ops.swarm.gated(gate, up, 1), gelu)


def plain_turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    size = cos.shape[-1]
    turned, passed = x[..., :size], x[..., size:]
    half = torch.cat((-turned[..., size // 2 :], turned[..., : size // 2]), -1)
    return torch.cat((turned * cos[:, None] + half * sin[:, None], passed), -1)


@pytest.mark.parametrize("turned", [2, 20, 32, 64])
@pytest.mark.parametrize("shared", [True, False])
def test_rotary_embedding_has_the_bits_of_plain_float32(turned: int, shared: bool) -> None:
    q = randoms(2, 5, 3 * 64, dtype=torch.float32).view(2, 5, 3, 64).transpose(1, 2)
    k = randoms(2, 5, 1 * 64, dtype=torch.float32, seed=1).view(2, 5, 1, 64).transpose(1, 2)
    shape = (1 if shared else 2, 5, turned)
    cos, sin = (randoms(*shape, dtype=torch.float32, seed=n) for n in (2, 3))
    for given, x in zip(torch.ops.swarm.rotate(q, k, cos, sin), (q, k), strict=True):
        assert torch.equal(given.transpose(1, 2), plain_turn(x, cos, sin))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_does_not_depend_on_its_company(dtype: torch.dtype) -> None:
    """Enough rows for several threads."""
    x, weight = randoms(3000, 96, dtype=dtype), randoms(96, dtype=dtype, seed=1)
    normed, gated = torch.ops.swarm.rms_norm(x, weight, 1e-6, 0), torch.ops.swarm.gated(x, x, 0)
    for row in (0, 1, 1499, 2999):
        alone = x[row : row + 1]
        assert torch.equal(normed[row], torch.ops.swarm.rms_norm(alone, weight, 1e-6, 0)[0])
        assert torch.equal(gated[row], torch.ops.swarm.gated(alone, alone, 0)[0])


def test_what_is_not_finite_stays_so() -> None:
    x = torch.tensor([[1.0, torch.nan, 2.0], [torch.inf, 1.0, 1.0]])
    assert not torch.isfinite(torch.ops.swarm.rms_norm(x, None, 1e-6, 0)).all(-1).any()
    assert not torch.isfinite(torch.ops.swarm.gated(x, x, 0)).all(-1).any()


def test_wrong_shapes_are_refused() -> None:
    x = torch.ones(2, 8)
    for call in (
        lambda: torch.ops.swarm.rms_norm(x, torch.ones(7), 1e-6, 0),
        lambda: torch.ops.swarm.rms_norm(x, torch.ones(8), 1e-6, 3),
        lambda: torch.ops.swarm.rms_norm(x.double(), None, 1e-6, 0),
        lambda: torch.ops.swarm.gated(x, torch.ones(2, 7), 0),
        lambda: torch.ops.swarm.rotate(x[None, None], x[None, None], x[None, :, :7], x[None]),
    ):
        with pytest.raises(RuntimeError):
            call()
