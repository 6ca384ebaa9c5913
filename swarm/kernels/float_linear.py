"""Linear layers on float weights whose rows do not depend on their company.

Libraries choose another order of sums for another number of rows. Here every output is one chain of
multiply-adds over the inputs, first to last (float32), or what the processor's matrix tiles make of
them in the order that is theirs (bfloat16): in a batch of any size, at any place, on any thread.

Legend: `R` rows, `K` inputs, `N` outputs, `T` tiles of 16 outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from swarm.kernels.native_io import native_available
from swarm.kernels.quantize import TILE, pad

_STEP = 32
"""Inputs that a matrix tile takes at a time."""


def has_float_product(weight: torch.Tensor) -> bool:
    """Whether there is a native product for weights of this type here, about as fast as others."""
    if not native_available() or weight.device.type != "cpu":
        return False
    return bool(torch.ops.swarm.has_float_linear(weight.dtype))


class FloatProduct(nn.Module):  # type: ignore[misc]
    """x times one weight, or several of one type: out[r, n] = sum of x[r, k] w[n, k], + bias[n]."""

    def __init__(
        self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]
    ) -> None:
        """weights [N, K] each; biases [N] each"""
        super().__init__()
        assert len({(weight.dtype, weight.shape[1]) for weight in weights}) == 1
        self.widths = [len(weight) for weight in weights]
        self.in_features = weights[0].shape[1]
        self.is_read = False
        """Some code has asked for the weights, and may multiply by them in its own way."""
        self.register_buffer("values", torch.cat([pack(weight) for weight in weights]))
        self.register_buffer("bias", self._biases(biases))

    def _biases(self, biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """One float for each output; every part fills whole tiles."""
        if all(bias is None for bias in biases):
            return None
        parts = [
            torch.zeros(width) if bias is None else bias.detach().float()
            for bias, width in zip(biases, self.widths, strict=True)
        ]
        return torch.cat([pad(part, 0, TILE) for part in parts])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """[..., K] to one [..., N] for each weight, all of the weights' dtype."""
        made: list[torch.Tensor] = torch.ops.swarm.float_linear(
            x, self.values, self.bias, self.widths
        )
        return made

    def weight(self, index: int) -> torch.Tensor:
        """[N, K] of one part, unpacked anew: for model code that looks into its linears."""
        self.is_read = True
        first, tiles = self._tiles(index)
        values = self.values[first : first + tiles]
        if values.dim() == 3:
            rows = values.transpose(1, 2).reshape(tiles * TILE, -1)
        else:
            rows = values.permute(0, 3, 1, 2, 4).reshape(tiles * TILE, -1)
        return rows[: self.widths[index], : self.in_features]

    def part_bias(self, index: int) -> torch.Tensor | None:
        """[N] of one part, in the weights' dtype; zeros where only other parts have one."""
        if self.bias is None:
            return None
        first, _ = self._tiles(index)
        return self.bias[first * TILE :][: self.widths[index]].to(self.values.dtype)

    def _tiles(self, index: int) -> tuple[int, int]:
        """The first tile of a part, and how many it has."""
        counts = [-(-width // TILE) for width in self.widths]
        return sum(counts[:index]), counts[index]


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] to [T, K, 16] float32, or [T, K / 32, 16, 16, 2] bfloat16: pairs of inputs of 16
    outputs, in steps of 32 inputs, zeros where there are none."""
    tiles = pad(weight.detach(), 0, TILE)
    if weight.dtype is torch.float32:
        return tiles.view(-1, TILE, weight.shape[1]).transpose(1, 2).contiguous()
    tiles = pad(tiles, 1, _STEP)
    pairs = tiles.view(-1, TILE, tiles.shape[1] // _STEP, _STEP // 2, 2)
    return pairs.permute(0, 2, 3, 1, 4).contiguous()
