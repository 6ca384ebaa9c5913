"""The stub worker's KV pool: blocks that remember what was computed in them, and by whom.

The worker obeys; it is the daemon that says which block belongs to whom. So the pool holds the
daemon to it: a row outside its table, a block that two live sessions write, or a prefix whose
blocks do not follow from each other is a fault, and a prefix of other ids gives other tokens.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from swarm.messages import KV_BLOCK_TOKENS
from swarm.terms import LayerRange, SessionId

State = tuple[int, ...]
"""The running value of each layer: all that the stub model keeps of the past."""


class BlockFault(AssertionError):
    """The daemon gave a block wrongly."""


@dataclass(slots=True)
class _Block:
    writer: SessionId
    layers: LayerRange
    before: State
    after: State | None = None
    """Once it is full."""


class BlockStore:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: dict[int, _Block] = {}
        self._tables: dict[SessionId, list[int]] = {}

    @property
    def free_count(self) -> int:
        """Blocks in no table."""
        return self._capacity - len({b for table in self._tables.values() for b in table})

    def begin(
        self, session: SessionId, blocks: bytes, kv_length: int, layers: LayerRange
    ) -> State | None:
        """What the session starts from; None: from nothing."""
        self.end(session)
        table = self._tables[session] = self._numbers(blocks)
        count, rest = divmod(kv_length, KV_BLOCK_TOKENS)
        if rest or count != len(table):
            raise BlockFault(f"{kv_length} positions in {len(table)} blocks")
        state: State | None = None
        for number in table:
            block = self._blocks.get(number)
            if block is None or block.after is None or block.layers != layers:
                raise BlockFault(f"block {number} is not whole, or of other layers")
            if state is not None and block.before != state:
                raise BlockFault(f"block {number} does not follow from the one before")
            state = block.after
        return state

    def append(self, session: SessionId, blocks: bytes) -> None:
        self._tables[session] += self._numbers(blocks)

    def end(self, session: SessionId) -> None:
        self._tables.pop(session, None)

    def row(self, session: SessionId, position: int, layers: LayerRange, kv: list[int]) -> _Block:
        """The block of a row that is about to run, with `kv` as the past."""
        table = self._tables[session]
        index, offset = divmod(position, KV_BLOCK_TOKENS)
        if index >= len(table):
            raise BlockFault(f"position {position} is beyond {len(table)} blocks")
        number = table[index]
        if offset:
            return self._blocks[number]
        sharers = [s for s, other in self._tables.items() if number in other and s != session]
        if sharers or table.count(number) > 1:
            raise BlockFault(f"block {number} is written while others have it")
        block = self._blocks[number] = _Block(session, layers, tuple(kv))
        return block

    def ran(self, block: _Block, session: SessionId, position: int, kv: list[int]) -> None:
        """The row has run, and `kv` is what it left."""
        if block.writer != session or block.after is not None:
            raise BlockFault(f"position {position} is in a block that another session wrote")
        if (position + 1) % KV_BLOCK_TOKENS == 0:
            block.after = tuple(kv)

    def _numbers(self, blocks: bytes) -> list[int]:
        numbers = list(struct.unpack(f"<{len(blocks) // 4}i", blocks))
        if any(not 0 <= number < self._capacity for number in numbers):
            raise BlockFault(f"blocks {numbers} of a pool of {self._capacity}")
        return numbers
