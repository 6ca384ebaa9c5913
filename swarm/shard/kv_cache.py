"""One session's KV, as the cache object that transformers' layers write to and read from.

It holds only the layers the session uses. The others are ghosts: they store nothing but know how
many positions have passed, since models size their attention masks by any layer of a kind. Nothing
here truncates: a session either goes on from its length, or is dropped whole.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    LinearAttentionCacheLayerMixin,
)

from swarm.shard.cut import Part


class ReservedLayer(DynamicLayer):  # type: ignore[misc]
    """Full attention in a buffer for all positions of the session, reserved at the first write.

    keys, values  [S, G, positions so far, D], views of [S, G, capacity, D]
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self._capacity = capacity
        self._length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self._key_buffer = self._buffer(key_states)
            self._value_buffer = self._buffer(value_states)
            self.dtype, self.device = key_states.dtype, key_states.device
            self.is_initialized = True
        start, self._length = self._length, self._length + key_states.shape[-2]
        self._key_buffer[:, :, start : self._length] = key_states
        self._value_buffer[:, :, start : self._length] = value_states
        self.keys = self._key_buffer[:, :, : self._length]
        self.values = self._value_buffer[:, :, : self._length]
        return self.keys, self.values

    def _buffer(self, states: torch.Tensor) -> torch.Tensor:
        sessions, heads, _, size = states.shape
        return states.new_empty((sessions, heads, self._capacity, size))

    def get_seq_length(self) -> int:
        return self._length


class GhostLayer(DynamicLayer):  # type: ignore[misc]
    """Full attention of a layer that runs elsewhere."""

    length = 0

    def get_seq_length(self) -> int:
        return self.length


class SessionCache(DynamicCache):  # type: ignore[misc]
    """KV of one session for the layers of `part`."""

    def __init__(self, config: Any, part: Part, position_limit: int) -> None:
        """`position_limit`: positions that will ever be written."""
        super().__init__(config=config)
        self.part = part
        self.position_limit = position_limit
        self.length = 0
        for index, layer in enumerate(self.layers):
            if index not in part.layers:
                self.layers[index] = _ghost_of(layer)
            elif type(layer) is DynamicLayer:
                self.layers[index] = ReservedLayer(position_limit)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Also for models without any attention layer, where transformers refuses."""
        layer = self.layers[layer_idx]
        if isinstance(layer, CacheLayerMixin):
            return int(layer.get_seq_length())
        return self.length

    def advance(self, count: int) -> None:
        """Every layer of the part has taken `count` more positions: so have the ghosts."""
        self.length += count
        for index, layer in enumerate(self.layers):
            if index in self.part.layers:
                continue
            if isinstance(layer, GhostLayer):
                layer.length = self.length
            elif hasattr(layer, "cumulative_length"):
                layer.cumulative_length = self.length
            if isinstance(layer, LinearAttentionCacheLayerMixin):
                layer.has_previous_state = dict.fromkeys(layer.has_previous_state, True)

    @property
    def byte_count(self) -> int:
        """Bytes held now, reserved positions included."""
        storages = {
            storage.data_ptr(): storage.nbytes()
            for layer in self.layers
            for value in vars(layer).values()
            for storage in _storages(value)
        }
        return sum(storages.values())


def _ghost_of(layer: Any) -> Any:
    """Layers with a window or a recurrent state are their own: `advance` sets their count."""
    grows = isinstance(layer, DynamicLayer) and not hasattr(layer, "cumulative_length")
    return (
        GhostLayer() if grows and not isinstance(layer, LinearAttentionCacheLayerMixin) else layer
    )


def _storages(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage()]
    if isinstance(value, dict):
        return [storage for item in value.values() for storage in _storages(item)]
    return []
