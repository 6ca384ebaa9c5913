"""The rows a sender keeps for resending, and what of them is in flight.

`Outbox` holds rows of one session by position; `Feed` decides which of them go out next under a
window of credits. The origin feeds ids, a hop feeds hidden rows, both by the same rules.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import LocalProtocolError
from swarm.messages import RowType, Step, StepKind
from swarm.terms import Epoch, NodeId, SessionId

DECODE_BUNDLE = 16
"""Generated rows in one step of a rebuild: enough to amortise, few enough to overlap."""
CHUNKS_PER_HOP = 4
"""Chunks of a prompt for each hop of its route: with more, the fixed cost of a step shows."""
CHUNK_UNIT = 64
"""Positions; a worker's pieces are no larger on CPU, and the kernels like whole ones."""
NO_ORIGIN = NodeId("")
"""In a message whose sender, or receiver, is the session's origin."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for positions [position, position + count), as one step carries them."""

    position: int
    count: int
    kind: StepKind
    row_type: RowType
    payload: bytes | memoryview

    @property
    def stop(self) -> int:
        return self.position + self.count

    def from_position(self, position: int) -> Rows:
        """The part at and after `position`."""
        if position <= self.position:
            return self
        skipped = position - self.position
        row_bytes = len(self.payload) // self.count
        rest = memoryview(self.payload)[skipped * row_bytes :]
        return Rows(position, self.count - skipped, self.kind, self.row_type, rest)

    def before(self, position: int) -> Rows | None:
        """The part before `position`; None where there is none."""
        count = min(self.count, position - self.position)
        if count <= 0:
            return None
        part = memoryview(self.payload)[: count * (len(self.payload) // self.count)]
        return Rows(self.position, count, self.kind, self.row_type, part)


def prompt_rows(ids: Sequence[int], chunk: int) -> list[Rows]:
    """Token ids cut at fixed boundaries."""
    return [
        Rows(
            position,
            len(part := ids[position : position + chunk]),
            StepKind.PREFILL,
            RowType.IDS,
            struct.pack(f"<{len(part)}i", *part),
        )
        for position in range(0, len(ids), chunk)
    ]


def prefill_chunk(count: int, hops: int, most: int) -> int:
    """Rows of one step of a prompt: few enough that all hops of a route work side by side for most
    of the time, and whole pieces. The last hop begins after hops - 1 chunks."""
    if hops == 1:
        return most
    even = -(-count // (CHUNKS_PER_HOP * hops))
    return min(most, -(-even // CHUNK_UNIT) * CHUNK_UNIT)


def prompt_in_chunks(ids: Sequence[int], hop_count: int, most: int) -> list[Rows]:
    """By the length of the first route: a rebuild must meet the same chunks."""
    return prompt_rows(ids, prefill_chunk(len(ids), hop_count, most))


def decode_row(position: int, token_id: int) -> Rows:
    return Rows(position, 1, StepKind.DECODE, RowType.IDS, struct.pack("<i", token_id))


def step_of(session: SessionId, epoch: Epoch, rows: Rows, origin: NodeId = NO_ORIGIN) -> Step:
    """`origin`: of the session, where the sender is not the origin itself."""
    return Step(
        session=session,
        epoch=epoch,
        position=rows.position,
        count=rows.count,
        kind=rows.kind,
        row_type=rows.row_type,
        payload=rows.payload,
        origin=origin,
    )


class Outbox:
    """Rows [start, stop) of one session, appended in order, dropped only from the front."""

    def __init__(self) -> None:
        self._entries: list[Rows] = []
        self._starts: list[int] = []
        self._stop = 0
        self.byte_count = 0

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else self._stop

    @property
    def stop(self) -> int:
        return self._stop

    def append(self, rows: Rows) -> None:
        if rows.position != self._stop:
            raise LocalProtocolError(f"outbox ends at {self._stop}, got rows at {rows.position}")
        self._entries.append(rows)
        self._starts.append(rows.position)
        self._stop = rows.stop
        self.byte_count += len(rows.payload)

    def restart(self, position: int) -> None:
        """Forget everything: the next rows are those of this position."""
        self._entries.clear()
        self._starts.clear()
        self._stop = position
        self.byte_count = 0

    def drop_before(self, position: int) -> None:
        """Forget whole entries that end at or before `position`."""
        keep = next((i for i, rows in enumerate(self._entries) if rows.stop > position), None)
        keep = len(self._entries) if keep is None else keep
        self.byte_count -= sum(len(rows.payload) for rows in self._entries[:keep])
        del self._entries[:keep], self._starts[:keep]

    def next_rows(self, position: int) -> Rows | None:
        """What a step at `position` carries: one chunk, or up to a bundle of decode rows."""
        if not self.start <= position < self._stop:
            return None
        index = bisect_right(self._starts, position) - 1
        first = self._entries[index].from_position(position)
        if first.kind is StepKind.PREFILL:
            return first
        return _bundle(first, self._entries[index + 1 :])


def _bundle(first: Rows, following: Sequence[Rows]) -> Rows:
    parts, count = [first.payload], first.count
    for rows in following:
        joinable = rows.kind is StepKind.DECODE and rows.row_type is first.row_type
        if not joinable or count + rows.count > DECODE_BUNDLE:
            break
        parts.append(rows.payload)
        count += rows.count
    if len(parts) == 1:
        return first
    return Rows(first.position, count, first.kind, first.row_type, b"".join(parts))


@dataclass(frozen=True, slots=True)
class _InFlight:
    stop: int
    byte_count: int


class Feed:
    """Which rows of an outbox go to the next hop, and when.

    At most `window` steps are unacknowledged. A single decode row needs no credit: the origin
    never has more than one of those under way. `next_position` is where the next step begins.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._in_flight: list[_InFlight] = []
        self.next_position = 0

    @property
    def in_flight_bytes(self) -> int:
        return sum(entry.byte_count for entry in self._in_flight)

    def restart(self, position: int) -> None:
        """A new epoch: nothing is in flight, sending begins at `position`."""
        self._in_flight.clear()
        self.next_position = position

    def acknowledged(self, kv_length: int) -> None:
        self._in_flight = [entry for entry in self._in_flight if entry.stop > kv_length]

    def take(self, outbox: Outbox, byte_budget: int) -> Rows | None:
        """The next step to send now, or None. A step larger than the budget goes out alone."""
        rows = outbox.next_rows(self.next_position)
        if rows is None:
            return None
        if needs_credit(rows):
            if len(self._in_flight) >= self._window:
                return None
            if self._in_flight and len(rows.payload) > byte_budget:
                return None
            self._in_flight.append(_InFlight(rows.stop, len(rows.payload)))
        self.next_position = rows.stop
        return rows


def needs_credit(rows: Rows) -> bool:
    return rows.kind is StepKind.PREFILL or rows.count > 1
