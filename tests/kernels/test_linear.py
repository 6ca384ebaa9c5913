"""Integer linears: a row's bits are its own, and the native kernel's are the reference's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.kernels import linear
from swarm.kernels.linear import Product, fuse, fused, single
from swarm.kernels.native_io import Native
from swarm.kernels.quantize import (
    GroupWeight,
    dequantized,
    quantize_bytes,
    quantize_rows,
    to_int4,
    to_int8,
)

KINDS = ("int8", "int4", "int4-symmetric")
SHAPES = [((48,), 64), ((192, 64, 64), 576), ((100, 7), 37), ((7,), 2080), ((16,), 1)]
DTYPES = (torch.float32, torch.bfloat16)
WORDS, TILES = 1 << 30, 1
"""Rows from which matrix tiles are used: never, and always, where the processor has them."""


@contextmanager
def tiles_from(rows: int) -> Iterator[None]:
    before = torch.ops.swarm.set_tiles_from(rows)
    try:
        yield
    finally:
        if before > 0:
            torch.ops.swarm.set_tiles_from(before)


@pytest.fixture(params=[WORDS, TILES], ids=["words", "tiles"])
def way(native: Native, request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways of the native kernel, where there are two."""
    with tiles_from(request.param):
        if request.param == TILES and torch.ops.swarm.set_tiles_from(TILES) < 0:
            pytest.skip("this processor has no matrix tiles")
        yield


def quantized(kind: str, outputs: int, inputs: int, seed: int = 0) -> GroupWeight:
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(outputs, inputs, generator=generator)
    if kind == "int8":
        made = to_int8(plain)
        made.values[0] = -128  # GGUF may hold it
        return made
    made = to_int4(plain)
    return dataclasses.replace(made, minimum=None) if kind == "int4-symmetric" else made


def product(
    kind: str, widths: tuple[int, ...], inputs: int, native: bool = True, bias: bool = False
) -> Product:
    weights = [quantized(kind, width, inputs, seed) for seed, width in enumerate(widths)]
    biases = [torch.linspace(-1, 1, width) if bias and width > 7 else None for width in widths]
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(linear, "native_available", lambda: False)
        made = Product(weights, biases)
    assert made.native == native
    return made


def rows(count: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Of very different sizes, one of them zero."""
    generator = torch.Generator().manual_seed(count)
    made = torch.randn(count, inputs, generator=generator)
    made *= torch.randn(count, 1, generator=generator).mul(3).exp()
    made[count // 2] *= count % 2
    return made.to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, NaN equal to NaN."""
    return (
        one.dtype == other.dtype
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("widths", "inputs"), SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_native_and_reference_agree_bit_for_bit(
    way: None, kind: str, widths: tuple[int, ...], inputs: int, dtype: torch.dtype
) -> None:
    for bias in (False, True):
        fast = product(kind, widths, inputs, bias=bias)
        plain = product(kind, widths, inputs, native=False, bias=bias)
        for count in (1, 2, 6, 7, 16, 27, 53):  # tiles of 4, 8 and 16 rows, full and not
            x = rows(count, inputs, dtype)
            pairs = zip(fast(x), plain(x), strict=True)
            assert all(same(one, other) for one, other in pairs), (count, bias)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_company(
    native: Native, kind: str, is_native: bool, data: st.DataObject
) -> None:
    widths, inputs = data.draw(st.sampled_from(SHAPES))
    dtype = data.draw(st.sampled_from(DTYPES))
    count = data.draw(st.integers(1, 200))
    place = data.draw(st.integers(0, count - 1))
    made = product(kind, widths, inputs, native=is_native)
    x = rows(count, inputs, dtype)
    with tiles_from(data.draw(st.sampled_from((WORDS, TILES)))):
        alone = made(x[place : place + 1])
    with tiles_from(data.draw(st.sampled_from((WORDS, TILES, 7)))):
        together = made(x)
    for one, all_rows in zip(alone, together, strict=True):
        assert same(one[0], all_rows[place])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_bits(way: None, kind: str) -> None:
    made, x = product(kind, (480, 96), 576), rows(133, 576, torch.bfloat16)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(torch.cat(made(x), dim=1))
    finally:
        torch.set_num_threads(before)
    assert same(results[0], results[1]) and same(results[0], results[2])


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_product_is_near_the_float_one(native: Native, kind: str, is_native: bool) -> None:
    made = product(kind, (64,), 576, native=is_native)
    x = rows(40, 576, torch.float32)
    exact = x @ dequantized(quantized(kind, 64, 576)).T
    error = (made(x)[0] - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(1e-20)
    assert error.max() < (1e-3 if kind == "int8" else 1.2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_is_that_of_the_rounded_rows(native: Native, kind: str) -> None:
    """All that a product loses, it loses by rounding the rows as the rule says."""
    made, x = product(kind, (64,), 576), rows(40, 576, torch.float32)
    if kind == "int8":
        values, scale = quantize_rows(x)
    else:
        groups, share, scale = quantize_bytes(x)
        values = (groups * share[..., None]).flatten(1)
    weight = dequantized(quantized(kind, 64, 576)).double()
    exact = (values.double() * scale.double()) @ weight.T
    error = (made(x)[0] - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(1e-20)
    assert error.max() < 1e-6


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_spoils_its_row_alone(
    native: Native, kind: str, is_native: bool, bad: float
) -> None:
    made = product(kind, (48,), 64, native=is_native)
    x = rows(9, 64, torch.bfloat16)
    clean = made(x)[0]
    x[3, 17] = bad
    spoilt = made(x)[0]
    assert not spoilt[3].isfinite().any()
    clean[3] = spoilt[3]
    assert same(clean, spoilt)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_and_huge_rows(way: None, kind: str, is_native: bool) -> None:
    made = product(kind, (48,), 64, native=is_native)
    plain = product(kind, (48,), 64, native=False)
    sizes = torch.tensor([0.0, 1e-45, 1e-38, 2.0**-100, 1e-20, 1e20, 1e30, 3e38])
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    x = x / x.abs().amax(1, keepdim=True) * sizes[:, None]
    out = made(x)[0]
    assert same(out, plain(x)[0])
    assert not out[:3].any(), "too small to tell from zero"
    assert out[4:7].isfinite().all() and out[4:7].any(dim=1).all()
    empty = made(x[:0])[0]
    assert empty.shape == (0, 48)


def test_shapes_and_dtypes_follow_the_input(native: Native) -> None:
    made = product("int8", (100, 7), 96)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = rows(6, 96, dtype).view(2, 3, 96)
        assert [tuple(part.shape) for part in made(x)] == [(2, 3, 100), (2, 3, 7)]
        assert {part.dtype for part in made(x)} == {dtype}
    wide = rows(6, 192, torch.float32)
    assert same(made(wide[:, :96])[0], made(wide[:, :96].contiguous())[0]), "strided input"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda args: (args[0][:, :-64], *args[1:]),
        lambda args: (args[0].half(), *args[1:]),
        lambda args: (*args[:2], args[2][:-1], *args[3:]),
        lambda args: (*args[:3], args[2], *args[4:]),
        lambda args: (*args[:5], [48, 48]),
    ],
    ids=["inputs", "dtype", "scale", "minimum", "widths"],
)
def test_the_op_refuses_what_does_not_fit(
    native: Native, spoil: Callable[[tuple[object, ...]], tuple[object, ...]]
) -> None:
    made = product("int8", (48,), 96)
    args = (rows(2, 96, torch.float32), made.values, made.scale, None, None, [48])
    torch.ops.swarm.group_linear(*args)
    with pytest.raises(RuntimeError):
        torch.ops.swarm.group_linear(*spoil(args))


def test_rounding_follows_the_stated_rule() -> None:
    x = torch.tensor([[16256.0, 0.5, 1.5, -2.5, 126.4], [0.0, 0.0, 0.0, 0.0, 0.0]])
    values, scale = quantize_rows(x)
    assert values.tolist() == [[16256, 0, 2, -2, 126], [0, 0, 0, 0, 0]]
    assert scale.tolist() == [[1.0], [0.0]]


def test_groups_of_bytes_are_doubled_as_often_as_they_fit() -> None:
    x = torch.zeros(3, 128)
    x[0, 0], x[0, 33], x[0, 34], x[0, 64] = 127.0, 63.5, -2.25, 2.0**-30
    x[1, 0], x[1, 32] = -127.0, 63.75
    values, share, scale = quantize_bytes(x)
    assert values[0, :, :3].tolist() == [[127, 0, 0], [0, 127, -4], [0, 0, 0], [0, 0, 0]]
    assert share[0].tolist() == [1.0, 0.5, 2.0**-20, 2.0**-20], "no more than 20 doublings"
    assert values[1, :2, 0].tolist() == [-127, 64], "63.75 twice would be above 127"
    assert share[1, :2].tolist() == [1.0, 1.0]
    assert not values[2].any() and share[2].tolist() == [1.0] * 4
    assert scale.tolist() == [[1.0], [1.0], [0.0]]


def test_a_multiply_add_is_rounded_once() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b, c = torch.randn(3, 4000, generator=generator).mul(3).exp()
    c[::2] *= -1
    c[1::4] = 2.0**24 + 1  # halves of its last place, which only what is lost decides
    b[1::4] = 1.0
    a[1::4] = 1 + 2.0**-23
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in triples]
    made = fused(a, b, c)
    far = torch.tensor(torch.inf)
    below, above = torch.nextafter(made, -far).tolist(), torch.nextafter(made, far).tolist()
    for wanted, *near in zip(exact, made.tolist(), below, above, strict=True):
        errors = [abs(Fraction(value) - wanted) for value in near]
        assert errors[0] == min(errors)


def test_values_on_a_grid_of_sixteen_survive_int4() -> None:
    """What came from a file of 4 bits with minimums is found again."""
    steps = torch.randint(0, 16, (24, 4, 32)).float()
    steps[:, :, 0], steps[:, :, 1] = 0, 15
    scale = torch.rand(24, 4, 1).half().float()
    minimum = torch.randn(24, 4, 1).half().float()
    plain = (steps * scale + minimum).view(24, 128)
    found = to_int4(plain)
    assert torch.equal(found.values.view(24, 4, 32).float(), steps)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "reference"])
def test_fused_layers_give_what_single_ones_give(native: Native, is_native: bool) -> None:
    widths = (48, 16, 16)
    parts = fuse(product("int8", widths, 64, native=is_native))
    singles = [single(quantized("int8", width, 64, i), None) for i, width in enumerate(widths)]
    first, second = rows(3, 64, torch.float32), rows(4, 64, torch.float32)
    order = [(0, first), (1, first), (2, first), (2, second), (0, second), (1, second), (0, first)]
    for index, x in order:
        assert same(parts[index](x), singles[index](x)), "in whatever order they are asked"
    for part, x in zip(parts, (first, first.clone(), second), strict=True):
        assert same(part(x), singles[parts.index(part)](x)), "each with an input of its own"


def test_fused_layers_compute_once_and_let_go() -> None:
    made = product("int8", (48, 16), 64, native=False)
    calls: list[int] = []
    made.register_forward_hook(lambda *_: calls.append(1))
    query, key = fuse(made)
    x = rows(2, 64, torch.float32)
    query(x), key(x)
    assert len(calls) == 1
    assert query.shared._input is None and not query.shared._parts, "nothing is held after the last"


def test_weights_of_two_kinds_are_not_one_product() -> None:
    int8, int4 = quantized("int8", 16, 64), quantized("int4", 16, 64)
    other = quantized("int4-symmetric", 16, 64)
    kinds = [int8.kind, int4.kind, other.kind, quantized("int8", 16, 96).kind]
    assert len(set(kinds)) == 4
    with pytest.raises(AssertionError):
        Product([int8, int4], [None, None])
