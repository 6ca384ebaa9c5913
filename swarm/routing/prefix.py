"""Chain hashes of a sequence's whole blocks, by which hops find again what they have computed.

    hash 0 = H(model, ids of block 0)      hash i = H(hash i-1, ids of block i)

So a hash names everything up to its block's end, in one model. What a hop keeps for some ids also
depends on which kernels made the rows that came to it: each hop gets the chain under a salt of its
own, made of the numeric classes of all layers up to its last one. How a route is cut changes no
rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

from swarm.messages import KV_BLOCK_TOKENS, PREFIX_HASH_BYTES
from swarm.terms import LayerRange, ModelId, NodeId, NumericClass, Route

CHAIN_BLOCKS_MAX = 3584
"""Of one message, 56 KiB: with the rest of `Open` it fits a frame of 64 KiB. What lies behind is
not reused: it is the last part of a prompt of more than 114,000 tokens."""
MEMORY_BLOCKS_MAX = 16384
"""Hashes whose holders an origin remembers: half a million tokens, some MB."""

_BLOCK = struct.Struct(f"<{KV_BLOCK_TOKENS}i")


class PrefixChain:
    """Of one sequence, as it grows."""

    def __init__(self, model_id: ModelId, ids: list[int]) -> None:
        """`ids`: of the sequence; its owner appends to it."""
        self._root = model_id.encode()
        self._ids = ids
        self._chain = bytearray()

    def whole(self) -> bytes:
        """Of all positions that have rows: the last id was sampled and never run."""
        return self._first(len(self._ids) - 1)

    def _first(self, positions: int) -> bytes:
        count = min(positions // KV_BLOCK_TOKENS, CHAIN_BLOCKS_MAX)
        while (known := len(self._chain) // PREFIX_HASH_BYTES) < count:
            ids = self._ids[known * KV_BLOCK_TOKENS : (known + 1) * KV_BLOCK_TOKENS]
            last = bytes(self._chain[-PREFIX_HASH_BYTES:]) or self._root
            self._chain += blake2b(last + _BLOCK.pack(*ids), digest_size=PREFIX_HASH_BYTES).digest()
        return bytes(self._chain[: count * PREFIX_HASH_BYTES])


def salted(chain: bytes, salt: bytes) -> bytes:
    """Each hash of the chain, for one hop."""
    if not chain:
        return b""
    mask = int.from_bytes(salt * (len(chain) // len(salt)), "little")
    return (int.from_bytes(chain, "little") ^ mask).to_bytes(len(chain), "little")


def salts_of(route: Route) -> tuple[bytes, ...]:
    """Per hop what its rows depend on beside the ids."""
    classes: list[tuple[int, NumericClass]] = []
    salts = []
    for hop in route.hops:
        if classes and classes[-1][1] == hop.numeric_class:
            classes.pop()
        classes.append((hop.layers.stop, hop.numeric_class))
        facts = repr((hop.layers.start, hop.embed, classes)).encode()
        salts.append(blake2b(facts, digest_size=PREFIX_HASH_BYTES).digest())
    return tuple(salts)


class PrefixMemory:
    """Which nodes held what lately, so that a next turn goes where its past is. Never binding."""

    def __init__(self) -> None:
        self._holders: dict[bytes, tuple[tuple[NodeId, LayerRange], ...]] = {}

    def remember(self, chain: bytes, route: Route) -> None:
        holders = tuple((hop.node, hop.layers) for hop in route.hops)
        for name in _hashes(chain):
            self._holders.pop(name, None)
            self._holders[name] = holders
        while len(self._holders) > MEMORY_BLOCKS_MAX:
            del self._holders[next(iter(self._holders))]

    def depths(self, chain: bytes) -> tuple[tuple[NodeId, LayerRange, int], ...]:
        """Per node and its layers, how many positions of a prompt it may hold."""
        found: dict[tuple[NodeId, LayerRange], int] = {}
        for index, name in enumerate(_hashes(chain)):
            holders = self._holders.get(name)
            if holders is None:
                break
            for holder in holders:
                found[holder] = (index + 1) * KV_BLOCK_TOKENS
        return tuple((node, layers, depth) for (node, layers), depth in found.items())


def _hashes(chain: bytes) -> Iterable[bytes]:
    size = PREFIX_HASH_BYTES
    return (chain[at : at + size] for at in range(0, len(chain), size))
