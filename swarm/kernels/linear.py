"""Linear layers on integer weights, with activations rounded to integers too: for weights of 8 bits
to 15 bits in each row, for weights of 4 bits to 8 bits in each group of a row.

What a row gives depends on that row and the weights alone: its integers come from its own largest
values, integer sums have no order, and the few float operations are done in one fixed order. So a
row has the same bits alone, in any batch, on any number of threads, and in the native kernel as in
the plain torch reference below.

Several layers that read the same input can be one product (`fuse`): the first of them computes all,
the others take their part. Legend: `R` rows, and as in `quantize`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from swarm.kernels.float_linear import FloatProduct
from swarm.kernels.native_io import native_available
from swarm.kernels.quantize import (
    GROUP,
    TILE,
    GroupWeight,
    pack_floats,
    pack_values,
    pad,
    quantize_bytes,
    quantize_rows,
)

NATIVE_TYPES = (torch.float32, torch.bfloat16)
_HALF_BITS = 7
"""An activation of 15 bits is high * 2**7 + low; each times weights is exact over a group."""


class Product(nn.Module):  # type: ignore[misc]
    """x times one weight, or several of one kind.

    out[r, n] = (sum over groups, in order, of integer sum times scale) * scale[r] + bias[n]. With
    4 bits a group's integer sum counts by its share, each addition is one multiply-add with one
    rounding, and with minimums the sum of a group's activations times its minimum follows.
    """

    def __init__(
        self, weights: Sequence[GroupWeight], biases: Sequence[torch.Tensor | None]
    ) -> None:
        super().__init__()
        assert len({weight.kind for weight in weights}) == 1
        self.native = native_available() and weights[0].values.device.type == "cpu"
        self.widths = [len(weight.values) for weight in weights]
        self.in_features, self._zero = weights[0].inputs, weights[0].zero
        self._bits = weights[0].bits
        packed = [pack_values(w) if self.native else w.values for w in weights]
        minimums = [w.minimum for w in weights if w.minimum is not None]
        self.register_buffer("values", torch.cat(packed))
        self.register_buffer("scale", self._by_group([w.scale for w in weights]))
        self.register_buffer("minimum", self._by_group(minimums) if minimums else None)
        self.register_buffer("bias", self._biases(biases))

    def _by_group(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([pack_floats(part) if self.native else part for part in parts])

    def _biases(self, biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """One float for each output; for the native kernel every part fills whole tiles."""
        if all(bias is None for bias in biases):
            return None
        parts = [
            self.scale.new_zeros(width, dtype=torch.float32) if bias is None else bias.float()
            for bias, width in zip(biases, self.widths, strict=True)
        ]
        return torch.cat([pad(part.detach(), 0, TILE) if self.native else part for part in parts])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """[..., K], any float dtype, to one [..., N] of that dtype for each weight."""
        if not self.native:
            return self._plain(x)
        rows = x if x.dtype in NATIVE_TYPES else x.float()
        made: list[torch.Tensor] = torch.ops.swarm.group_linear(
            rows, self.values, self.scale, self.minimum, self.bias, self.widths
        )
        return made if rows is x else [part.to(x.dtype) for part in made]

    def _plain(self, x: torch.Tensor) -> list[torch.Tensor]:
        rows = pad(x.flatten(0, -2), 1, GROUP)
        made, scale = self._of_bytes(rows) if self._bits == 4 else self._of_words(rows)
        made = made * scale
        if self.bias is not None:
            made = made + self.bias
        made = made.to(x.dtype).view(*x.shape[:-1], sum(self.widths))
        return list(made.split(self.widths, dim=-1))

    def _of_words(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, K] floats to [R, N of all] float32, before the scale of the row, and that."""
        values, scale = quantize_rows(rows)
        groups = values.unflatten(1, (-1, GROUP)).transpose(0, 1).int()  # [M, R, 32]
        weight = self._by_groups()
        high = groups >> _HALF_BITS
        low = groups - (high << _HALF_BITS)
        sums = (torch.bmm(high.float(), weight).int() << _HALF_BITS) + torch.bmm(
            low.float(), weight
        ).int()
        by = self.scale.float()
        made = torch.zeros(sums.shape[1:], device=sums.device)
        for group in range(len(sums)):
            made = made + sums[group].float() * by[:, group]
        return made, scale

    def _of_bytes(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, for weights of 4 bits."""
        values, share, scale = quantize_bytes(rows)
        groups = values.float() * share[..., None]  # [R, M, 32]: their sums are exact
        sums = torch.bmm(groups.transpose(0, 1), self._by_groups())
        totals, by = groups.sum(dim=2), self.scale.float()
        made = torch.zeros(sums.shape[1:], device=sums.device)
        for group in range(len(sums)):
            made = fused(sums[group], by[:, group], made)
            if self.minimum is not None:
                made = fused(totals[:, group, None], self.minimum[:, group].float(), made)
        return made, scale

    def _by_groups(self) -> torch.Tensor:
        """[M, 32, N of all] float32."""
        weight = (self.values.float() - self._zero).unflatten(1, (-1, GROUP))
        return weight.permute(1, 2, 0)


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c with one rounding, all float32, as processors do it.

    In float64 the product is exact. What the sum loses goes into its last bit (rounding to odd), so
    that the second rounding is that of the exact sum (Boldo and Melquiond, 2008). A device without
    float64 rounds twice: its class is its own.
    """
    if a.device.type == "mps":
        return a * b + c
    product, addend = a.double() * b.double(), c.double()
    made = product + addend
    back = made - product
    lost = (product - (made - back)) + (addend - back)
    bits = made.view(torch.int64)
    outward = (lost > 0) == (made > 0)
    odd = torch.where(outward, bits + 1, bits - 1)
    inexact = (lost != 0) & (bits & 1 == 0) & made.isfinite()
    return torch.where(inexact, odd, bits).view(torch.float64).float()


class SingleLinear(nn.Module):  # type: ignore[misc]
    """Stands where a `nn.Linear` was."""

    def __init__(self, product: Product | FloatProduct) -> None:
        super().__init__()
        self.product = product
        self.in_features, self.out_features = product.in_features, product.widths[0]

    @property
    def weight(self) -> torch.Tensor:
        return _weight(self.product, 0)

    @property
    def bias(self) -> torch.Tensor | None:
        return _bias(self.product, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: list[torch.Tensor] = self.product(x)
        return made[0]


class SharedProduct(nn.Module):  # type: ignore[misc]
    """Keeps the parts of the last product until each has been taken, or another input comes."""

    def __init__(self, product: Product | FloatProduct) -> None:
        super().__init__()
        self.product = product
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor] = []

    def take(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """The part `index` for this input. The input is known by identity, and held meanwhile."""
        if self._input is not x:
            self._parts = self.product(x)
            self._input = x
        part = self._parts[index]
        if index == len(self._parts) - 1:
            self._input, self._parts = None, []
        return part


class FusedLinear(nn.Module):  # type: ignore[misc]
    """Stands where a `nn.Linear` was whose input others read too, right before or after it."""

    def __init__(self, shared: SharedProduct, index: int) -> None:
        super().__init__()
        self.shared, self._index = shared, index
        self.in_features = shared.product.in_features
        self.out_features = shared.product.widths[index]

    @property
    def weight(self) -> torch.Tensor:
        return _weight(self.shared.product, self._index)

    @property
    def bias(self) -> torch.Tensor | None:
        return _bias(self.shared.product, self._index)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.take(x, self._index)


def _weight(product: Product | FloatProduct, index: int) -> torch.Tensor:
    """For the few models whose code reads a linear's weight. Integers have none to show."""
    if isinstance(product, FloatProduct):
        return product.weight(index)
    raise AttributeError("a linear with integer weights has no float weight")


def _bias(product: Product | FloatProduct, index: int) -> torch.Tensor | None:
    """[N] in the dtype of the weights."""
    if isinstance(product, FloatProduct):
        return product.part_bias(index)
    raise AttributeError("a linear with integer weights has no bias of its own")


def single(weight: GroupWeight, bias: torch.Tensor | None) -> SingleLinear:
    """A layer of its own."""
    return SingleLinear(Product([weight], [bias]))


def fuse(product: Product | FloatProduct) -> list[FusedLinear]:
    """A layer for each part of one product."""
    shared = SharedProduct(product)
    return [FusedLinear(shared, index) for index in range(len(product.widths))]
