"""The KV blocks of a shard: found out from the model itself, made once at load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from swarm.errors import ShardError
from swarm.kernels.attention import KvPool, block_bytes, new_pool
from swarm.shard.batch import SCRATCH_BLOCKS
from swarm.shard.cut import Part
from swarm.shard.paged import LayerKind
from swarm.worker_messages import KV_BLOCK_TOKENS

PROBE_ERRORS = (
    RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError,
    NotImplementedError, ShardError,
)  # fmt: skip
"""What a model that needs more than keys and values raises when it gets no more."""


@dataclass(frozen=True, slots=True)
class PagedKv:
    """`blocks` blocks of each layer, and the scratch blocks behind them."""

    blocks: int
    kinds: Mapping[int, LayerKind]
    pools: Mapping[int, KvPool]
    dtype: torch.dtype
    """Of keys and values as they are kept."""

    @property
    def scratch_block(self) -> int:
        return self.blocks

    @property
    def byte_count(self) -> int:
        """Scratch blocks included."""
        return sum(pool.byte_count for pool in self.pools.values())

    @property
    def block_bytes(self) -> int:
        """Of one block, all layers together."""
        return bytes_per_block(self.kinds, self.dtype)


def bytes_per_block(kinds: Mapping[int, LayerKind], dtype: torch.dtype) -> int:
    """Of all layers together."""
    return sum(block_bytes(KV_BLOCK_TOKENS, kind.heads, dtype) for kind in kinds.values())


def make_paged_kv(
    kinds: Mapping[int, LayerKind], blocks: int, dtype: torch.dtype, device: torch.device
) -> PagedKv:
    """Pools that take no memory, on a CPU, until they are written to."""
    pools = {
        index: new_pool(blocks + SCRATCH_BLOCKS, KV_BLOCK_TOKENS, kind.heads, dtype, device)
        for index, kind in kinds.items()
    }
    return PagedKv(blocks, kinds, pools, dtype)


def choose_kv_dtype(asked: str, own: torch.dtype, quantization: str = "none") -> torch.dtype:
    """`auto` keeps the rows' own, but halves of float32 where the weights are integers: these round
    far more coarsely. Raises ShardError for what the kernels cannot read."""
    if asked == "auto":
        halves = own is torch.float32 and quantization != "none"
        return torch.float16 if halves else own
    if asked == "int8":
        return torch.int8
    raise ShardError(f"KV in {asked} is not served by this device's kernels; use auto or int8")


def missing_layers(kinds: Mapping[int, LayerKind], part: Part) -> list[int]:
    """Layers of a part that keep something else than keys and values."""
    return [index for index in range(part.layers.start, part.layers.stop) if index not in kinds]
