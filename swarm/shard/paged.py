"""How the layers of transformers write and read KV blocks, without knowing of them.

Models fetch their attention by the name in their config. Ours takes no mask: each row's place and
what it may see are in the call that is now running, since no argument of ours passes through the
model. The cache object is empty: it hands new keys and values on to the attention, which writes
them into the blocks and reads all it needs from there.

Legend: `S` sequences, `T` tokens, `H` query heads, `G` KV heads, `D` key size, `W` value size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from swarm.errors import ShardError
from swarm.kernels.attention import HeadSizes, KvPool, Places, Rule, attend
from swarm.kernels.tiles import tiled_experts

PAGED = "swarm_paged"
PAGED_LOOSE = "swarm_paged_loose"
"""The same attention; the name tells that rows may depend on their company elsewhere."""
PROBE = "swarm_probe"
TILED_EXPERTS = "swarm_tiled"
_FAR = 1_000_003
"""A position deep in a text, where a mask shows how far it looks back."""
_REACH = 1 << 17
"""Positions before it that are looked at: windows and chunks known are far below."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What one layer keeps of a position, and how it looks back."""

    heads: HeadSizes
    rule: Rule


@dataclass(frozen=True, slots=True)
class Call:
    """A forward pass that is running: where its rows are, and by layer the blocks and the rule."""

    places: Places
    layers: Mapping[int, tuple[KvPool, Rule]]
    real: slice
    """Of the rows: the others only pad."""


class _Running:
    """The call, and the probe, of this process: one thread runs models here."""

    call: Call | None = None
    found: dict[int, LayerKind] | None = None


@contextmanager
def running(call: Call) -> Iterator[None]:
    _Running.call = call
    try:
        yield
    finally:
        _Running.call = None


@contextmanager
def probing() -> Iterator[dict[int, LayerKind]]:
    """What the layers ask for while models with the attention `PROBE` run, by layer."""
    _Running.found = {}
    try:
        yield _Running.found
    finally:
        _Running.found = None


class EmptyCache(Cache):  # type: ignore[misc]
    """Hands new keys and values through: the attention keeps them."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def _paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [S, H, T, D], key [S, G, T, D], value [S, G, T, W]; returns [S, T, H, W]"""
    call = _Running.call
    assert call is not None
    pool, rule = call.layers[module.layer_idx]
    sequences, heads, tokens, _size = query.shape
    output = attend(_rows(query), _rows(key), _rows(value), pool, call.places, rule)
    return output.view(sequences, tokens, heads, -1), None


def _rows(states: torch.Tensor) -> torch.Tensor:
    """[S, heads, T, size] -> [S * T, heads, size]"""
    return states.transpose(1, 2).flatten(0, 1)


def _probe(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """As `_paged`, but only notes what is asked for, and gives zeros."""
    assert _Running.found is not None
    sequences, heads, tokens, size = query.shape
    index = module.layer_idx
    if index in _Running.found:
        raise ShardError(f"layer {index} attends twice")
    if key.shape[2] != tokens or heads % key.shape[1]:
        raise ShardError(f"layer {index} attends to more than its own keys")
    if attention_mask is not None and attention_mask.numel() != 1:
        raise ShardError(f"layer {index} has a mask of its own")
    scale = asked.get("scaling")
    window = 0 if attention_mask is None else int(attention_mask.flatten()[0])
    rule = Rule(
        scale=size**-0.5 if scale is None else float(scale),
        window=window,
        softcap=float(asked.get("softcap") or 0.0),
        sinks=asked.get("s_aux"),
    )
    sizes = HeadSizes(key.shape[1], size, value.shape[3])
    _Running.found[index] = LayerKind(sizes, rule)
    return query.new_zeros((sequences, tokens, heads, sizes.value_size)), None


def _probe_mask(*, mask_function: Any, device: torch.device, **_: Any) -> torch.Tensor:
    """[1, 1, 1, 1] int64, in place of a mask: how many positions a row deep in a text sees, its
    own included; 0 for all."""
    counts = {_seen(mask_function, far) for far in (_FAR, _FAR + 1)}
    if len(counts) != 1:
        raise ShardError("rows see neither all that came before nor a window of it")
    count = counts.pop()
    window = 0 if count == _REACH else count
    return torch.full((1, 1, 1, 1), window, dtype=torch.int64, device=device)


def _seen(mask_function: Any, far: int) -> int:
    """Of the last `_REACH` positions before `far` and itself, how many a row there sees."""
    zero = torch.zeros((), dtype=torch.int64)
    past = torch.arange(far + 1 - _REACH, far + 1)
    seen = mask_function(zero, zero, torch.tensor(far), past)
    seen = torch.as_tensor(seen).expand(past.shape)
    count = int(seen.sum())
    if count == 0 or not bool(seen[-count:].all()):
        raise ShardError("rows see other positions than the last ones")
    return count


def _tiled_experts(
    experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    call = _Running.call
    real = slice(None) if call is None else call.real
    return tiled_experts(experts, hidden, chosen, weights, real)


ALL_EXPERTS_FUNCTIONS.register(TILED_EXPERTS, _tiled_experts)
AttentionInterface.register(PAGED, _paged)
AttentionInterface.register(PAGED_LOOSE, _paged)
AttentionInterface.register(PROBE, _probe)
AttentionMaskInterface.register(PROBE, _probe_mask)
