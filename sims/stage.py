"""The stub model: a hidden state that is a hash over everything that made it.

Each layer keeps one running value, its "KV". A row's value after a layer is a mix of (layer,
position, the row that came in, the layer's value so far), so a position that is missing, doubled,
out of order, or computed from another past gives other tokens from there on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from swarm.kernels.history import NO_PAST, Past
from swarm.terms import LayerRange, ModelId, ModelSpec, NumericClass, Order, SampledToken, Sampling

VOCABULARY = 997
ROW_BYTES = 8
ROW = struct.Struct("<Q")
REFERENCE_CLASS = NumericClass("stub")
_MASK = (1 << 64) - 1
_A, _B, _C = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


def stub_model(layer_count: int, name: str = "stub") -> ModelSpec:
    """`eos_ids` (0,) is never sampled: answers end at their length."""
    model_id = ModelId(f"{layer_count:032x}")
    return ModelSpec(model_id, name, layer_count, 2, VOCABULARY, 1 << 16, (0,), False)


SIDE_MODEL = stub_model(3, "side")
"""A second one that machines may serve beside that which stories are about."""


def mix(a: int, b: int) -> int:
    """64 bits in which every bit depends on all of both (after the finalizer of MurmurHash3)."""
    value = (a * _A + b * _B + _C) & _MASK
    value = ((value ^ (value >> 33)) * _B) & _MASK
    return value ^ (value >> 29)


class Chain:
    """The stub model over some layers, for one session. Rows are integers of 64 bits."""

    def __init__(self, layers: LayerRange, salt: int = 0) -> None:
        """`salt`: of the numeric class; other classes give other rows."""
        self.layers = layers
        self.length = 0
        self._first = layers.start
        self.kv = [0] * len(layers)
        self._salt = salt

    def run(self, position: int, row: int) -> int:
        """One position through all layers."""
        at = mix(position, self._salt)
        kv = self.kv
        for index in range(len(kv)):
            kv[index] = row = mix(mix(at + self._first + index, row), kv[index])
        self.length += 1
        return row


def salt_of(numeric_class: NumericClass) -> int:
    """Of the reference class 0."""
    if numeric_class == REFERENCE_CLASS:
        return 0
    return int.from_bytes(numeric_class.encode()[-8:], "little")


def embed(token_id: int) -> int:
    return mix(token_id, 1)


def sample(row: int, position: int, sampling: Sampling, past: Past = NO_PAST) -> SampledToken:
    """With penalties every id before, and its place, counts: one lost or doubled shows at once."""
    number = mix(mix(row, position), sampling.seed)
    if sampling.needs_history:
        for token_id in (*past.prompt, *past.generated):
            number = mix(number, token_id)
    return SampledToken(position, 1 + number % (VOCABULARY - 1))


def oracle(order: Order, classes: Sequence[tuple[LayerRange, NumericClass]]) -> list[int]:
    """The tokens of an undisturbed run, each range of layers in its numeric class."""
    chains = [Chain(layers, salt_of(name)) for layers, name in classes]
    ids, result = list(order.prompt_ids), []
    for position in range(len(order.prompt_ids) + order.max_tokens - 1):
        row = embed(ids[position])
        for chain in chains:
            row = chain.run(position, row)
        if position >= len(order.prompt_ids) - 1:
            seen = ids[: len(order.prompt_ids)] if order.sampling.needs_prompt else ()
            past = Past(seen, ids[len(order.prompt_ids) :])
            token = sample(row, position + 1, order.sampling, past).token_id
            ids.append(token)
            result.append(token)
    return result
