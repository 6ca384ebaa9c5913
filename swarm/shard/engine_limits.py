"""How much an engine may take on, from what its owner allows and what its stage is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarm.config import ShardConfig
from swarm.kernels.tiles import TILE_ROWS
from swarm.shard import checkpoint
from swarm.shard.batch import PIECE_TOKENS
from swarm.shard.scheduler import StepLimits
from swarm.shard.stage import Stage
from swarm.worker_messages import KV_BLOCK_TOKENS

PLAIN_STEPS = StepLimits(sessions=1, rows=16, tile=1, piece=0, turns=8)
"""Without blocks one session runs at a time: a waiting chunk lets a few tokens pass, and a rebuild
is sliced so that others are looked at."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    queue_max: int
    kv_capacity_bytes: int
    kv_bytes_per_token_layer: int
    step: StepLimits = PLAIN_STEPS


def engine_limits(config: ShardConfig, stage: Stage, model: Any, spare_bytes: int) -> EngineLimits:
    """`model`: the checkpoint's config; `spare_bytes`: for KV that is not made yet."""
    if stage.kv is None:
        per_token = checkpoint.kv_bytes_per_token_layer(model.to_dict(), stage.dtype.itemsize)
        return EngineLimits(config.queue_max, spare_bytes, per_token)
    per_token = stage.kv.block_bytes // (KV_BLOCK_TOKENS * len(stage.part.layers))
    return EngineLimits(
        queue_max=config.queue_max,
        kv_capacity_bytes=stage.kv.blocks * stage.kv.block_bytes,
        kv_bytes_per_token_layer=per_token,
        step=step_limits(config),
    )


def step_limits(config: ShardConfig) -> StepLimits:
    return StepLimits(
        sessions=config.max_num_seqs,
        rows=config.max_num_batched_tokens,
        tile=TILE_ROWS,
        piece=min(PIECE_TOKENS, config.max_num_batched_tokens),
    )
