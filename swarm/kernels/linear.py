"""Linear layers on integer weights, with activations rounded to 15 bits row by row.

What a row gives depends on that row and the weights alone: its integers come from its own largest
value, integer sums have no order, and the few float operations are done in one fixed order. So a
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
    quantize_rows,
)

NATIVE_TYPES = (torch.float32, torch.bfloat16)
_HALF_BITS = 7
"""An activation is high * 2**7 + low, each times weights exact in float32 over a group."""


class Product(nn.Module):  # type: ignore[misc]
    """x times one weight, or several of one kind.

    out[r, n] = (sum over groups, in order, of integer sum times scale) * scale[r] + bias[n]. With
    minimums, after each group comes the sum of its activations times its minimum.
    """

    def __init__(
        self, weights: Sequence[GroupWeight], biases: Sequence[torch.Tensor | None]
    ) -> None:
        super().__init__()
        assert len({weight.kind for weight in weights}) == 1
        self.native = native_available() and weights[0].values.device.type == "cpu"
        self.widths = [len(weight.values) for weight in weights]
        self.in_features, self._zero = weights[0].inputs, weights[0].zero
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
        values, scale = quantize_rows(x.flatten(0, -2))
        made = self._groups(pad(values, 1, GROUP)) * scale
        if self.bias is not None:
            made = made + self.bias
        made = made.to(x.dtype).view(*x.shape[:-1], sum(self.widths))
        return list(made.split(self.widths, dim=-1))

    def _groups(self, values: torch.Tensor) -> torch.Tensor:
        """[R, K] int16 to [R, N of all] float32, before the scale of the row."""
        count = values.shape[1] // GROUP
        rows = values.view(len(values), count, GROUP).transpose(0, 1).int()  # [M, R, 32]
        weight = (self.values.float() - self._zero).view(len(self.values), count, GROUP)
        weight = weight.permute(1, 2, 0)  # [M, 32, N]
        high = rows >> _HALF_BITS
        low = rows - (high << _HALF_BITS)
        sums = (torch.bmm(high.float(), weight).int() << _HALF_BITS) + torch.bmm(
            low.float(), weight
        ).int()
        scale, totals = self.scale.float(), rows.sum(2, keepdim=True).float()
        made = torch.zeros(sums.shape[1:], device=sums.device)
        for group in range(count):
            made = made + sums[group].float() * scale[:, group]
            if self.minimum is not None:
                made = made + totals[group] * self.minimum[:, group].float()
        return made


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
