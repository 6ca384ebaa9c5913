"""Float linears: a row's bits are its own, and near what torch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from swarm.kernels.float_linear import FloatProduct, has_float_product
from swarm.kernels.linear import fuse
from swarm.kernels.native_io import Native

SHAPES = [((48,), 64), ((192, 64, 64), 576), ((100, 7), 37), ((7,), 1040), ((16,), 1)]
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3}
"""Of the norm of a row's product."""


def weights_of(widths: tuple[int, ...], inputs: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(width, inputs, generator=generator).to(dtype) for width in widths]
    if not has_float_product(made[0]):
        pytest.skip(f"no native product of {dtype} on this processor")
    return made


def product(widths: tuple[int, ...], inputs: int, dtype: torch.dtype) -> FloatProduct:
    weights = weights_of(widths, inputs, dtype)
    return FloatProduct(weights, [None if w == 7 else torch.linspace(-1, 1, w) for w in widths])


def rows(count: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, inputs, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("widths", "inputs"), SHAPES, ids=str)
def test_it_is_near_torchs_product(
    native: Native, widths: tuple[int, ...], inputs: int, dtype: torch.dtype
) -> None:
    made, weights = product(widths, inputs, dtype), weights_of(widths, inputs, dtype)
    for count in (1, 3, 7, 16, 17, 100):
        x = rows(count, inputs, dtype)
        for part, weight in zip(made(x), weights, strict=True):
            width = len(weight)
            bias = None if width == 7 else torch.linspace(-1, 1, width).double()
            exact = linear(x.double(), weight.double(), bias)
            error = (part.double() - exact).norm() / exact.norm()
            assert part.dtype is dtype and error < TOLERANCE[dtype], (count, error)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_company(
    native: Native, dtype: torch.dtype, data: st.DataObject
) -> None:
    widths, inputs = data.draw(st.sampled_from(SHAPES))
    count = data.draw(st.integers(1, 200))
    place = data.draw(st.integers(0, count - 1))
    made, x = product(widths, inputs, dtype), rows(count, inputs, dtype)
    for alone, together in zip(made(x[place : place + 1]), made(x), strict=True):
        assert torch.equal(alone[0], together[place])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_do_not_change_bits(native: Native, dtype: torch.dtype) -> None:
    made, x = product((480, 96), 576, dtype), rows(133, 576, dtype)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(torch.cat(made(x), dim=1))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_value_that_is_not_finite_spoils_its_row_alone(
    native: Native, dtype: torch.dtype
) -> None:
    made, x = product((48,), 64, dtype), rows(21, 64, dtype)
    clean = made(x)[0]
    x[3, 17] = torch.nan
    spoilt = made(x)[0]
    assert spoilt[3].isnan().all()
    clean[3] = spoilt[3] = 0
    assert torch.equal(clean, spoilt)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_parts_shapes_and_strides(native: Native, dtype: torch.dtype) -> None:
    made, x = product((48, 7), 64, dtype), rows(6, 128, dtype).view(2, 3, 128)[..., :64]
    parts = [layer(x) for layer in fuse(made)]
    assert [tuple(part.shape) for part in parts] == [(2, 3, 48), (2, 3, 7)]
    for part, other in zip(parts, made(x.contiguous()), strict=True):
        assert torch.equal(part, other)
    assert made(x[:0])[0].shape == (0, 3, 48)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_weights_can_be_read_and_that_is_noted(native: Native, dtype: torch.dtype) -> None:
    made, weights = product((100, 7), 37, dtype), weights_of((100, 7), 37, dtype)
    first, second = fuse(made)
    assert torch.equal(first.bias, torch.linspace(-1, 1, 100).to(dtype))
    assert not second.bias.any() and second.bias.shape == (7,)
    assert not made.is_read
    assert torch.equal(first.weight, weights[0]) and torch.equal(second.weight, weights[1])
    assert made.is_read


@pytest.mark.parametrize(
    "spoil",
    [
        lambda args: (args[0][:, :-40], *args[1:]),
        lambda args: (args[0].half(), *args[1:]),
        lambda args: (args[0], args[1].bfloat16(), *args[2:]),
        lambda args: (*args[:2], torch.zeros(3), args[3]),
        lambda args: (*args[:3], [48, 48]),
    ],
    ids=["inputs", "rows' type", "weights' type", "bias", "widths"],
)
def test_the_op_refuses_what_does_not_fit(
    native: Native, spoil: Callable[[tuple[object, ...]], tuple[object, ...]]
) -> None:
    made = product((48,), 96, torch.float32)
    args = (rows(2, 96, torch.float32), made.values, made.bias, [48])
    torch.ops.swarm.float_linear(*args)
    with pytest.raises(RuntimeError):
        torch.ops.swarm.float_linear(*spoil(args))
