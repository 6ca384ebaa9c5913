"""Which block of a worker's KV pool belongs to whom. Integers only; the blocks lie in the worker.

A block is in tables, or free, or free and *cached*: what was computed in it is still known by the
hash of everything up to its end, and serves the next session that begins alike. Cached blocks are
given away last, the one that was used longest ago first.

A block gets its hash only when all its positions were acknowledged by the worker, and is never
written again while it has one: a session that starts from a prefix starts behind whole blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from swarm.errors import KvExhausted, LocalProtocolError
from swarm.messages import KV_BLOCK_TOKENS
from swarm.terms import ModelId, PoolKind, SessionId

NOT_PAGED = PoolKind()

Key = tuple[Hashable, int, bytes]
"""Whose prefix of which layers, which of its blocks, and the hash of all ids up to its end: what
makes two blocks the same."""


def blocks_for(positions: int) -> int:
    return -(-positions // KV_BLOCK_TOKENS)


@dataclass(slots=True)
class _Holder:
    promised: int
    """Blocks that it may have without asking who else needs them."""
    table: list[int] = field(default_factory=list)
    acknowledged: int = 0
    """Positions whose rows the worker says it has run."""

    @property
    def owed(self) -> int:
        return max(0, self.promised - len(self.table))


class KvBlocks:
    """The pool of one served model: blocks 0 to `capacity` - 1."""

    def __init__(self, capacity: int, kind: PoolKind = NOT_PAGED) -> None:
        if capacity < 0:
            raise ValueError(f"a pool of {capacity} blocks")
        self.kind = kind
        self._capacity = capacity
        self._free = list(range(capacity))
        self._holders: dict[SessionId, _Holder] = {}
        self._uses: Counter[int] = Counter()
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._cached: dict[int, None] = {}
        """Blocks with a hash that are in no table, the one used longest ago first."""
        self._owed = 0

    # ------------------------------------------------------------ views

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def used(self) -> int:
        """Blocks in tables."""
        return len(self._uses)

    @property
    def spoken_for(self) -> int:
        """Blocks in tables, or promised."""
        return len(self._uses) + self._owed

    @property
    def room(self) -> int:
        """Blocks that nobody has or was promised; may be negative after the pool has shrunk."""
        return len(self._free) + len(self._cached) - self._owed

    @property
    def session_count(self) -> int:
        return len(self._holders)

    def table(self, session: SessionId) -> tuple[int, ...]:
        return tuple(self._holders[session].table)

    def match(self, scope: Hashable, hashes: Sequence[bytes]) -> int:
        """Of a prompt with these chain hashes, how many whole blocks are here."""
        for index, name in enumerate(hashes):
            if (scope, index, name) not in self._block_of:
                return index
        return len(hashes)

    # ------------------------------------------------------------ sessions

    def reserve(
        self,
        session: SessionId,
        positions: int,
        scope: Hashable = None,
        hashes: Sequence[bytes] = (),
    ) -> None:
        """Promise room for `positions`, the first blocks being those of `hashes`, all of which
        must match. A session that is here begins anew.

        Raises KvExhausted, and changes nothing, when others hold or were promised too much.
        """
        shared = [self._block_of[(scope, index, name)] for index, name in enumerate(hashes)]
        known = self._holders.get(session)
        promised = blocks_for(positions)
        freed = {b for b in known.table if self._uses[b] == 1} if known else set()
        owed = known.owed if known else 0
        taken = sum(b in self._cached or b in freed for b in shared)
        room = self.room + owed + len(freed) - taken
        if max(0, promised - len(shared)) > room:
            needed = f"the session needs {promised} KV blocks of {KV_BLOCK_TOKENS} tokens"
            raise KvExhausted(f"{needed}, {max(0, room)} are free")
        for block in shared:
            self._take(block)
        self.release(session)
        self._holders[session] = _Holder(promised, shared, len(shared) * KV_BLOCK_TOKENS)
        self._owed += self._holders[session].owed

    def keep(self, session: SessionId, positions: int) -> None:
        """Give back all blocks but those of the first `positions`, which were acknowledged.

        Raises KvExhausted when what others share of them is lost to the promise: the session then
        holds what it holds, and should end.
        """
        holder = self._holders[session]
        count, rest = divmod(positions, KV_BLOCK_TOKENS)
        if rest or positions > holder.acknowledged:
            raise LocalProtocolError(
                f"{positions} of {holder.acknowledged} positions are no prefix"
            )
        dropped = holder.table[count:]
        self._change(holder, holder.table[:count])
        holder.acknowledged = positions
        self._drop(dropped)
        if self.room < 0 < holder.owed:
            raise KvExhausted("blocks that were shared are missing now")

    def grow(self, session: SessionId, length: int) -> tuple[int, ...]:
        """Append the blocks that positions below `length` need; returns these.

        Raises KvExhausted, and changes nothing, when there are too few beyond what was promised.
        """
        holder = self._holders[session]
        needed = blocks_for(length) - len(holder.table)
        if needed <= 0:
            return ()
        is_there = needed <= len(self._free) + len(self._cached)
        if needed - holder.owed > max(0, self.room) or not is_there:
            raise KvExhausted(f"{needed} more KV blocks are needed, {max(0, self.room)} are free")
        fresh = tuple(self._fresh() for _ in range(needed))
        self._change(holder, holder.table + list(fresh))
        return fresh

    def filled(self, session: SessionId, length: int) -> None:
        """The worker has run all rows below `length`."""
        holder = self._holders[session]
        if length > len(holder.table) * KV_BLOCK_TOKENS:
            raise LocalProtocolError(f"{length} positions in {len(holder.table)} blocks")
        holder.acknowledged = max(holder.acknowledged, length)

    def seal(self, session: SessionId, scope: Hashable, hashes: Sequence[bytes]) -> None:
        """Name the session's first blocks, as far as they are full, so that others find them."""
        holder = self._holders[session]
        full = holder.acknowledged // KV_BLOCK_TOKENS
        for index, (block, name) in enumerate(zip(holder.table[:full], hashes, strict=False)):
            key = (scope, index, name)
            if key not in self._block_of and block not in self._key_of:
                self._block_of[key] = block
                self._key_of[block] = key

    def spoil(self, session: SessionId) -> None:
        """Nobody finds the session's blocks any more; who shares them goes on."""
        for block in self._holders[session].table:
            self._forget(block)

    def release(self, session: SessionId) -> None:
        """Give back what a session holds. Safe to repeat."""
        holder = self._holders.pop(session, None)
        if holder is not None:
            self._owed -= holder.owed
            self._drop(holder.table)

    def resize(self, capacity: int) -> None:
        """Of a pool without blocks of its own. What is in tables stays, even where it is now too
        much; no new block lies beyond."""
        if capacity == self._capacity:
            return
        self._capacity = capacity
        for block in [b for b in self._cached if b >= capacity]:
            self._forget(block)
        self._free = [
            b for b in range(capacity) if b not in self._uses and b not in self._cached
        ]  # fmt: skip
        heapify(self._free)

    # ------------------------------------------------------------ blocks

    def _fresh(self) -> int:
        """A block for one session alone. Low numbers first: memory never touched costs nothing."""
        if self._free:
            block = heappop(self._free)
        else:
            block = next(iter(self._cached))
            self._forget(block)
        self._uses[block] = 1
        return block

    def _take(self, block: int) -> None:
        """One more table has a block with a hash."""
        self._cached.pop(block, None)
        self._uses[block] += 1

    def _drop(self, blocks: Sequence[int]) -> None:
        """Last first, so that of a prefix its end is given away before its beginning."""
        for block in reversed(blocks):
            self._uses[block] -= 1
            if self._uses[block]:
                continue
            del self._uses[block]
            if block >= self._capacity:
                self._forget(block)
            elif block in self._key_of:
                self._cached[block] = None
            else:
                heappush(self._free, block)

    def _forget(self, block: int) -> None:
        """What was computed in it is not wanted any more."""
        self._cached.pop(block, None)
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]

    def _change(self, holder: _Holder, table: list[int]) -> None:
        self._owed -= holder.owed
        holder.table = table
        self._owed += holder.owed


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What a served model's pool is made of."""

    model_id: ModelId
    load: int
    """Which loading of the model it belongs to: the worker's blocks are gone with the last one."""
    capacity: int
    block_bytes: int
    kind: PoolKind


class KvPools:
    """Of all models that a node serves, in bytes where people or planners ask."""

    def __init__(self) -> None:
        self._pools: dict[ModelId, tuple[PoolShape, KvBlocks]] = {}

    def serve(self, shapes: Iterable[PoolShape]) -> None:
        """These and no others. A pool that is known keeps what it holds."""
        known, self._pools = self._pools, {}
        for shape in shapes:
            old, blocks = known.get(shape.model_id, (None, None))
            if old is None or blocks is None or (old.load, old.kind) != (shape.load, shape.kind):
                blocks = KvBlocks(shape.capacity, shape.kind)
            blocks.resize(shape.capacity)
            self._pools[shape.model_id] = shape, blocks

    def pool(self, model_id: ModelId) -> KvBlocks | None:
        entry = self._pools.get(model_id)
        return None if entry is None else entry[1]

    # ------------------------------------------------------------ views

    def room_bytes(self, model_id: ModelId) -> int:
        """What is left for new sessions of a model."""
        if model_id not in self._pools:
            return 0
        shape, blocks = self._pools[model_id]
        return max(0, blocks.room) * shape.block_bytes

    @property
    def rooms(self) -> tuple[int, ...]:
        """Changes when there is more or less room."""
        return tuple(blocks.room for _, blocks in self._pools.values())

    @property
    def used_bytes(self) -> int:
        """Of blocks that sessions have or were promised."""
        return sum(blocks.spoken_for * s.block_bytes for s, blocks in self._pools.values())

    @property
    def capacity_bytes(self) -> int:
        return sum(blocks.capacity * s.block_bytes for s, blocks in self._pools.values())
