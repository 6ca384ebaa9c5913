"""Matrix products in tiles of a fixed number of rows.

A float product gives a row other last bits when it has other rows beside it, since libraries choose
another order of sums for another shape. In one shape, filled up with zeros, a row's bits depend
neither on the other rows nor on its place among them.

Legend: `R` rows, `K` chosen experts of a row, `E` hidden size, `M` inner size.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch.nn import functional

TILE_ROWS = 16
"""The largest count for which a float matrix product was found about as cheap as for one row."""


class Company(Enum):
    """Which forward passes give a row bits that do not depend on its company."""

    ANY = "free"
    """Passes of any number of rows: integer products, say."""
    TILE = "tile16"
    """Passes of exactly `TILE_ROWS` rows, filled up. Passes of up to as many are no substitute:
    libraries take another kernel for a single row, which shows only now and then in half
    precision."""
    NONE = "loose"
    """None, or nobody asked: passes of any number of rows."""

    @property
    def rows_max(self) -> int | None:
        return TILE_ROWS if self is Company.TILE else None

    @property
    def padding(self) -> int:
        """Rows are filled up to a multiple of it."""
        return TILE_ROWS if self is Company.TILE else 1


def tiled_experts(
    experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, real: slice
) -> torch.Tensor:
    """A mixture of experts in which each expert's rows run in whole tiles.

    experts  a module of transformers' experts interface: its weights, and how it gates
    hidden   [R, E]
    chosen   [R, K] int64, and `weights` [R, K]: of each row's experts
    real     the rows that count; the others become zero and cost nothing
    returns  [R, E]
    """
    output = torch.zeros_like(hidden)
    rows, count = hidden[real], chosen.shape[1]
    owners = chosen[real].reshape(-1)
    order = owners.argsort(stable=True)
    given = hidden.new_empty((len(owners), hidden.shape[1]))
    start = 0
    sizes = torch.bincount(owners, minlength=experts.num_experts).tolist()
    for index, size in enumerate(sizes):
        for first in range(start, start + size, TILE_ROWS):
            pairs = order[first : min(first + TILE_ROWS, start + size)]
            tile = hidden.new_zeros((TILE_ROWS, hidden.shape[1]))
            tile[: len(pairs)] = rows[pairs // count]
            given[pairs] = _expert(experts, index, tile)[: len(pairs)]
        start += size
    given *= weights[real].reshape(-1, 1)
    output[real] = given.view(-1, count, hidden.shape[1]).sum(dim=1)
    return output


def _expert(experts: Any, index: int, rows: torch.Tensor) -> torch.Tensor:
    """[TILE_ROWS, E] -> [TILE_ROWS, E] through one expert"""
    if experts.has_gate:
        inner = experts._apply_gate(_product(experts, "gate_up_proj", index, rows))
    else:
        inner = experts.act_fn(_product(experts, "up_proj", index, rows))
    given = _product(experts, "down_proj", index, inner)
    return experts.post_expert_norm(given) if experts.has_post_expert_norm else given


def _product(experts: Any, name: str, index: int, rows: torch.Tensor) -> torch.Tensor:
    weight = getattr(experts, name)[index]
    bias = getattr(experts, f"{name}_bias")[index] if experts.has_bias else None
    return functional.linear(rows, weight.t() if experts.is_transposed else weight, bias)
