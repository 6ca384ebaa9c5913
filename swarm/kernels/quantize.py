"""Weights of linear layers as small integers in groups, and the layout that native kernels read.

A float16 scale, and for some weights a float16 minimum, serves 32 neighbouring inputs of an output.
That is what GGUF's Q4_0, Q4_1 and Q8_0 are, so those go in without being rounded again.

Legend: `N` outputs, `K` inputs, `M` groups of an output (K / 32, rounded up), `T` tiles (N / 16,
rounded up).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

TILE = 16
"""Outputs of one tile: one vector register of 32-bit sums."""
DEPTH = 4
"""Neighbouring inputs of one output that lie in one 32-bit lane."""
GROUP = 32
"""Inputs that share a scale."""
LEVELS = 127.0 * 128.0
"""Largest integer of an activation for weights of 8 bits: 15 bits with the sign. With 8 bits for a
whole row, SmolLM2-135M loses a tenth of its greedy choices."""
BYTE_LEVELS = 127.0
"""The same for weights of 4 bits, where each group has 8 bits of its own."""
DOUBLINGS = 20
"""A group whose values are smaller than the row's by more than this many powers of two keeps fewer
bits of them."""
SMALLEST = 2.0**-100
"""Rows of activations whose largest value is below this count as zero."""
INT4_ZERO = 8
PIECE_ELEMENTS = 1 << 19
"""Weights rounded at a time: they and what is computed of them fit a processor's caches."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupWeight:
    """w[n, k] = values[n, k] * scale[n, k / 32] + minimum[n, k / 32].

    values   [N, K] int8, K a multiple of 32: in [-128, 127], or with 4 bits in [0, 15]
    scale    [N, M] float16
    minimum  [N, M] float16; None: 0, with 4 bits -8 * scale. Never with 8 bits
    inputs   of the layer; values beyond meet zeros
    """

    values: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    bits: int
    inputs: int

    @property
    def kind(self) -> tuple[int, bool, int]:
        """Weights of one kind can be one product."""
        return self.bits, self.minimum is None, self.inputs

    @property
    def zero(self) -> int:
        """The integer that stands for 0 where there is no minimum."""
        return INT4_ZERO if self.bits == 4 and self.minimum is None else 0


def to_int8(weight: torch.Tensor) -> GroupWeight:
    """Nearest int8 of [N, K], scaled by each group's largest weight."""
    parts = []
    for groups in _pieces(weight):
        scale = (groups.abs().amax(dim=2) / 127.0).half()
        values = (groups / _divisor(scale)).round_().clamp_(-127, 127)
        parts.append((_whole(values), scale))
    values, scale = map(torch.cat, zip(*parts, strict=True))
    return GroupWeight(values, scale, None, bits=8, inputs=weight.shape[1])


def to_int4(weight: torch.Tensor) -> GroupWeight:
    """Nearest of 16 evenly spaced values between each group's smallest and largest weight."""
    parts = []
    for groups in _pieces(weight):
        low, high = groups.aminmax(dim=2)
        scale, minimum = ((high - low) / 15.0).half(), low.half()
        values = (groups - minimum.float()[..., None]).div_(_divisor(scale))
        parts.append((_whole(values.round_().clamp_(0, 15)), scale, minimum))
    values, scale, minimum = map(torch.cat, zip(*parts, strict=True))
    return GroupWeight(values, scale, minimum, bits=4, inputs=weight.shape[1])


def _pieces(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """[N, K] in runs of outputs as [n, M, 32] float32, zeros added: some MiB at a time, so that a
    large weight has no copies in float32 beside it."""
    for rows in weight.split(max(1, PIECE_ELEMENTS // weight.shape[1])):
        yield pad(rows.float(), 1, GROUP).unflatten(1, (-1, GROUP))


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    """[N, M] float16 to [N, M, 1] float32, the scale that will be used, never zero."""
    return torch.where(scale == 0.0, 1.0, scale.float())[..., None]


def _whole(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.int8).flatten(1)


def dequantized(weight: GroupWeight) -> torch.Tensor:
    """[N, K] float32, what the integers stand for."""
    groups = weight.values.float().view(len(weight.values), -1, GROUP) - weight.zero
    made = groups * weight.scale.float()[..., None]
    if weight.minimum is not None:
        made = made + weight.minimum.float()[..., None]
    return made.flatten(1)[:, : weight.inputs]


def pad(tensor: torch.Tensor, dim: int, multiple: int) -> torch.Tensor:
    """Zeros appended along `dim` up to a multiple."""
    missing = -tensor.shape[dim] % multiple
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def pack_values(weight: GroupWeight) -> torch.Tensor:
    """Tiles by group: [T, M, 8, 16, 4] int8. With 4 bits [T, M, 4, 16, 4], where step s of four
    inputs is in the low halves and step s + 4 in the high."""
    tiles = pad(weight.values, 0, TILE)
    tiles = tiles.view(-1, TILE, tiles.shape[1] // GROUP, GROUP // DEPTH, DEPTH)
    tiles = tiles.permute(0, 2, 3, 1, 4)
    if weight.bits == 8:
        return tiles.contiguous()
    half = GROUP // DEPTH // 2
    return tiles[:, :, :half] | (tiles[:, :, half:] << 4)


def pack_floats(values: torch.Tensor) -> torch.Tensor:
    """[N, M] scales or minimums to [T, M, 16]."""
    tiles = pad(values, 0, TILE)
    return tiles.view(-1, TILE, values.shape[1]).transpose(1, 2).contiguous()


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row of activations as integers: the rule that every kernel follows, bit for bit.

    x        [..., K] any float dtype
    returns  values [..., K] int16 in [-16256, 16256]; scale [..., 1] float32. A row with a value
             that is not finite gets scale NaN and zeros; one of (nearly) zeros scale 0 and zeros
    """
    values, scale = _scaled(x.float(), LEVELS)
    return values.round_().to(torch.int16), scale


def quantize_bytes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for weights of 4 bits: a group's values are doubled as often as 8 bits allow.

    x        [..., K] any float dtype, K a multiple of 32
    returns  values [..., M, 32] int8 in [-127, 127]; share [..., M] float32, a power of two: what
             1 in a value of this group is worth; scale [..., 1] as above
    """
    values, scale = _scaled(x.float(), BYTE_LEVELS)
    groups = values.unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1)
    # Floats of one sign are ordered as their bits, and 2**23 of these are one doubling.
    level = torch.full_like(largest, BYTE_LEVELS).view(torch.int32)
    doublings = ((level - largest.view(torch.int32)) >> 23).clamp_(0, DOUBLINGS)
    doublings = torch.where(largest.amax(dim=-1, keepdim=True) > 0, doublings, 0)
    values = (groups * _power_of_two(doublings)[..., None]).round_()
    return values.to(torch.int8), _power_of_two(-doublings), scale


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """int32 to float32, by its bits: exact on every device."""
    return ((exponent + 127) << 23).view(torch.float32)


def _scaled(wide: torch.Tensor, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] float32 so that each row's largest magnitude is `most`, or all zeros, and [..., 1]
    what brings it back: 0 for a row of (nearly) zeros, NaN for one that is not finite."""
    largest = wide.abs().amax(dim=-1, keepdim=True)
    plain = torch.isfinite(largest) & (largest >= SMALLEST)
    levels = torch.full_like(largest, most)
    # By tensors: a scalar over a tensor is computed as a product with the rounded reciprocal.
    factor = levels / torch.where(plain, largest, 1.0)
    values = torch.where(plain, wide * factor, 0.0)
    scale = torch.where(plain, largest / levels, 0.0)
    return values, torch.where(torch.isfinite(largest), scale, torch.nan)
