"""A session's room on a hop: KV blocks promised, shared, grown into, and left for others to find.

The pools themselves are `shard.kv_blocks`. A hop never trusts what a hash says of another member's
rows: blocks are found again only by the origin whose session filled them.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from swarm.messages import KV_BLOCK_TOKENS, PREFIX_HASH_BYTES, Open
from swarm.terms import ModelId, NodeId, PoolKind, SessionId


class Blocks(Protocol):
    """The pool of one model; `shard.kv_blocks.KvBlocks` is the real one."""

    @property
    def kind(self) -> PoolKind: ...

    def match(self, scope: Hashable, hashes: Sequence[bytes]) -> int: ...

    def reserve(
        self,
        session: SessionId,
        positions: int,
        scope: Hashable = None,
        hashes: Sequence[bytes] = (),
    ) -> None: ...

    def table(self, session: SessionId) -> tuple[int, ...]: ...

    def keep(self, session: SessionId, positions: int) -> None: ...

    def grow(self, session: SessionId, length: int) -> tuple[int, ...]: ...

    def filled(self, session: SessionId, length: int) -> None: ...

    def seal(self, session: SessionId, scope: Hashable, hashes: Sequence[bytes]) -> None: ...

    def spoil(self, session: SessionId) -> None: ...

    def release(self, session: SessionId) -> None: ...


class Pools(Protocol):
    """`shard.kv_blocks.KvPools` is the real one."""

    def pool(self, model_id: ModelId) -> Blocks | None: ...


def admitted(length: int, position_limit: int, growth: int) -> int:
    """Positions that a sequence of this length must find room for."""
    return min(position_limit, length + growth)


def hashes_in(chain: bytes) -> tuple[bytes, ...]:
    size = PREFIX_HASH_BYTES
    return tuple(chain[at : at + size] for at in range(0, len(chain), size))


def packed(blocks: Sequence[int]) -> bytes:
    """As `Begin` and `Run` carry them."""
    return struct.pack(f"<{len(blocks)}i", *blocks)


class Room:
    """Of one session, on the pool of its model."""

    def __init__(self, session: SessionId, origin: NodeId, blocks: Blocks, growth: int) -> None:
        """`session`: as the worker knows it. `growth`: tokens to be admitted for."""
        self._session = session
        self._origin = origin
        self.blocks = blocks
        self._growth = growth
        self._scope: Hashable = None
        self._hashes: tuple[bytes, ...] = ()
        self._reusable = 0
        """Positions of the sequence, counted from 0, whose blocks may serve others."""
        self.offered = 0
        """Positions of the prompt that are in the KV before the session has begun."""

    @property
    def unit(self) -> int:
        return self.blocks.kind.prefix_unit

    def reserve(self, order: Open) -> None:
        """Raises KvExhausted, and changes nothing."""
        kind, layers = self.blocks.kind, order.layers
        scope = (self._origin, layers.start, layers.stop, order.embed)
        hashes = hashes_in(order.prefix) if kind.prefix_unit else ()
        hashes = hashes[: self._reusable_of(order) // KV_BLOCK_TOKENS]
        offered = self.blocks.match(scope, hashes) * KV_BLOCK_TOKENS
        offered -= offered % kind.prefix_unit if kind.prefix_unit else 0
        length = max(order.prompt_count, order.length)
        self.blocks.reserve(
            self._session,
            admitted(length, order.position_limit, self._growth),
            scope,
            hashes[: offered // KV_BLOCK_TOKENS],
        )
        self._scope, self.offered = scope, offered
        self.follow(order)

    def follow(self, order: Open) -> None:
        """Whose hashes name what is filled from now on."""
        kind = self.blocks.kind
        self._hashes = hashes_in(order.prefix) if kind.prefix_unit else ()
        self._reusable = self._reusable_of(order)

    def _reusable_of(self, order: Open) -> int:
        """Where generated rows have other bits than a prompt's, only whole pieces of the prompt may
        come from others or go to them: a rebuild must give what was there."""
        kind = self.blocks.kind
        whole = order.prompt_count - order.prompt_count % max(1, kind.prefix_unit)
        return order.position_limit if kind.reuses_generated else whole

    def can_begin(self, kv_length: int) -> bool:
        """Whether a session that holds nothing may start there."""
        return not kv_length or (kv_length <= self.offered and kv_length % self.unit == 0)

    def begin(self, kv_length: int) -> bytes:
        """The session's first blocks. Raises KvExhausted."""
        self.offered = 0
        self.blocks.keep(self._session, kv_length)
        return self._told(self.blocks.table(self._session))

    def grow(self, length: int) -> bytes:
        """Blocks added for rows below `length`. Raises KvExhausted, and changes nothing."""
        return self._told(self.blocks.grow(self._session, length))

    def ran(self, length: int, prompt_count: int) -> None:
        """All rows below `length` are in the KV; those of the prompt others may have."""
        self.blocks.filled(self._session, length)
        if self._hashes and length <= prompt_count:
            self._seal(self._hashes)

    def spoil(self) -> None:
        """A step failed: what was computed before it is not to be had by others any more."""
        self.blocks.spoil(self._session)

    def leave(self, chain: bytes = b"") -> None:
        """The end. `chain`: hashes of the whole sequence."""
        if chain and self.unit:
            self._seal(hashes_in(chain))
        self.blocks.release(self._session)

    def _seal(self, hashes: Sequence[bytes]) -> None:
        self.blocks.seal(self._session, self._scope, hashes[: self._reusable // KV_BLOCK_TOKENS])

    def _told(self, blocks: Sequence[int]) -> bytes:
        return packed(blocks) if self.blocks.kind.is_paged else b""


class Aged(Protocol):
    """A session, as far as it matters to who goes first."""

    @property
    def worker_id(self) -> SessionId: ...

    @property
    def room(self) -> Room: ...

    @property
    def stands_by(self) -> bool: ...


S = TypeVar("S", bound=Aged)


def first_to_go(sessions: Iterable[S], blocks: Blocks) -> S:
    """Of those on one pool: whoever only stands by, else who came last. It has the least to lose,
    and the oldest goes on."""
    return max(
        (s for s in sessions if s.room.blocks is blocks), key=lambda s: (s.stands_by, s.worker_id)
    )


def a_standby(sessions: Iterable[S], blocks: Blocks) -> S | None:
    """The youngest session on a pool that only stands by."""
    idle = [s for s in sessions if s.stands_by and s.room.blocks is blocks]
    return max(idle, key=lambda s: s.worker_id, default=None)
