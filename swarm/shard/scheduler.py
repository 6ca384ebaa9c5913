"""Which rows run next. First come, first served within a session; in turn between sessions.

A step is a batch of decode rows, one of every session that has one ready, or one piece of one
prompt. Where both wait they alternate, or, where no row's bits depend on its company, run together:
no prompt, however long, delays a token by more than a piece, and no number of tokens starves a
prompt. A long run of decode rows (a rebuild) fills the room that single rows leave.

What runs in the background (rows for a standby's KV) goes only when nothing else waits.

On a route of several hops a batch takes no more than the sessions' share of this hop, so that the
other hops have the rest to work on meanwhile.

Rows that come one after the other would run in batches of a few, each of which reads all weights:
where more are likely to come it is worth a moment to gather them (`lacks_rows`).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.errors import CapacityError
from swarm.messages import Run, StepKind
from swarm.terms import SessionId

REBUILD_ROWS = 64
"""Decode rows of rebuilds that run without looking at what else has come."""
ROOM_LEAST = 4
"""Rows of prompts in a step that has some: fewer would make them wait too long."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What one step may take.

    sessions  whose decode rows run together
    rows      of one step
    tile      decode rows that cost as much as one: rebuilds fill up to a multiple of it
    piece     positions at whose multiples a prompt is cut; 0: it is not
    turns     batches of decode rows that may go before a waiting piece
    """

    sessions: int
    rows: int
    tile: int
    piece: int
    turns: int = 1


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [first, first + count) of a run, counted within the run."""

    run: Run
    first: int
    count: int

    @property
    def is_last(self) -> bool:
        return self.first + self.count == self.run.count

    @property
    def position(self) -> int:
        return self.run.position + self.first


@dataclass(slots=True)
class _Waiting:
    run: Run
    done: int = 0

    @property
    def is_decode(self) -> bool:
        return self.run.kind is StepKind.DECODE

    @property
    def rest(self) -> int:
        return self.run.count - self.done


class Scheduler:
    def __init__(self, queue_max: int, limits: StepLimits) -> None:
        """`queue_max`: runs of one session that may wait, so that nobody fills up for others."""
        self._queue_max = queue_max
        self._limits = limits
        self._queues: OrderedDict[SessionId, deque[_Waiting]] = OrderedDict()
        self._shares: dict[SessionId, float] = {}
        """Of the sessions that decode: one by the number of their route's hops."""
        self._hops: dict[SessionId, int] = {}
        self._missed: set[SessionId] = set()
        """Of those with a share: waited for in vain, and not again until they come."""
        self._count = 0
        self._overtakes = 0

    def __len__(self) -> int:
        """Runs that wait, the one being sliced included."""
        return self._count

    @property
    def batch_rows(self) -> int:
        """Single decode rows that run together when every session that decodes has one ready."""
        return self._together(self._shares)

    def lacks_rows(self, *, mixes: bool) -> bool:
        """Whether decode rows of more sessions are likely to come than are there.

        mixes  rows of prompts run with them, so these too had better wait
        """
        awaited = self._shares.keys() - self._missed
        if not self._queues or not awaited:
            return False
        fronts = [queue[0] for queue in self._queues.values()]
        if not mixes and any(not front.is_decode for front in fronts):
            return False
        ready = sum(front.is_decode and not front.run.is_background for front in fronts)
        return ready < self._together(awaited)

    def give_up(self) -> None:
        """Sessions that have no row ready now are not waited for until they have one again."""
        self._missed |= self._shares.keys() - self._queues.keys()

    def _together(self, sessions: Iterable[SessionId]) -> int:
        """Rows of these that make one batch, the other hops' share left out."""
        share = math.ceil(sum(self._shares[key] for key in sessions) - 1e-9)
        return min(self._limits.sessions, self._limits.rows, max(1, share))

    def waiting(self) -> list[Slice]:
        """What is still to be run, for predicting how long it takes."""
        return [
            Slice(entry.run, entry.done, entry.rest)
            for queue in self._queues.values()
            for entry in queue
        ]

    def begin(self, session: SessionId, hop_count: int) -> None:
        """A session of a route of so many hops is there; its runs may come."""
        self._hops[session] = max(1, hop_count)

    def add(self, run: Run) -> None:
        """Raises CapacityError when too many runs of its session wait."""
        waiting = len(self._queues.get(run.session, ()))
        if waiting >= self._queue_max:
            raise CapacityError(f"{waiting} steps of the session wait already")
        self._queues.setdefault(run.session, deque()).append(_Waiting(run))
        self._count += 1
        self._missed.discard(run.session)
        if run.is_background:
            self._shares.pop(run.session, None)
        elif run.kind is StepKind.DECODE:
            self._shares[run.session] = 1.0 / self._hops.get(run.session, 1)

    def drop(self, session: SessionId) -> int:
        """Forget a session and all that waits of it; says how many runs that were."""
        dropped = len(self._queues.pop(session, ()))
        self._count -= dropped
        self._shares.pop(session, None)
        self._hops.pop(session, None)
        self._missed.discard(session)
        return dropped

    def next(self, most: int | None = None) -> tuple[Slice, ...]:
        """The slices to run together, each of another session; their sessions go to the back of
        the line.

        most    rows of a step of both kinds; None: prompts run alone
        """
        keys = self._in_front()
        decoding = [key for key in keys if self._queues[key][0].is_decode]
        prompts = [key for key in keys if not self._queues[key][0].is_decode]
        if most is not None:
            return self._mixed(decoding, prompts, most)
        if prompts and (not decoding or self._overtakes >= self._limits.turns):
            self._overtakes = 0
            return (self._take(prompts[0], self._piece(prompts[0])),)
        self._overtakes = self._overtakes + 1 if prompts else 0
        return self._decode(decoding)

    def _mixed(
        self, decoding: Sequence[SessionId], prompts: Sequence[SessionId], most: int
    ) -> tuple[Slice, ...]:
        """Decode rows, and rows of prompts up to `most` in all."""
        slices = list(self._decode(decoding))
        if not prompts:
            return tuple(slices)
        if not decoding and not self._shares:
            slices.append(self._take(prompts[0], self._piece(prompts[0])))
            prompts, room = prompts[1:], self._limits.piece - slices[0].count
        else:
            rows = sum(part.count for part in slices)
            room = min(max(most - rows, ROOM_LEAST), self._limits.rows - rows)
        for key in prompts:
            if room <= 0:
                break
            count = min(room, self._queues[key][0].rest)
            slices.append(self._take(key, count))
            room -= count
        return tuple(slices)

    def _in_front(self) -> list[SessionId]:
        """Sessions whose next rows somebody waits for; all where nobody does."""
        front = [key for key, queue in self._queues.items() if not queue[0].run.is_background]
        return front or list(self._queues)

    def _decode(self, keys: Iterable[SessionId]) -> tuple[Slice, ...]:
        """One row of each session that has one, then rows of rebuilds where there is room."""
        chosen = list(keys)[: self.batch_rows]
        singles = [key for key in chosen if self._queues[key][0].rest == 1]
        rebuilds = [key for key in chosen if self._queues[key][0].rest > 1]
        slices = [self._take(key, 1) for key in singles]
        free = self._free_rows(len(singles))
        for index, key in enumerate(rebuilds):
            fair = -(-free // (len(rebuilds) - index))
            count = min(fair, self._queues[key][0].rest)
            if count:
                slices.append(self._take(key, count))
            free -= count
        return tuple(slices)

    def _free_rows(self, singles: int) -> int:
        """What rebuilds may add to a batch: beside others' tokens only what costs them nothing
        much, a batch of their own else."""
        tile, rows = self._limits.tile, self._limits.rows
        if singles == 0:
            return min(rows, REBUILD_ROWS)
        return max(0, min(tile - singles % tile, rows - singles))

    def _piece(self, key: SessionId) -> int:
        entry = self._queues[key][0]
        piece = self._limits.piece
        if not piece:
            return entry.rest
        position = entry.run.position + entry.done
        return min(entry.rest, piece - position % piece)

    def _take(self, key: SessionId, count: int) -> Slice:
        queue = self._queues[key]
        entry = queue[0]
        given = Slice(entry.run, entry.done, count)
        entry.done += count
        if given.is_last:
            queue.popleft()
            self._count -= 1
        if queue:
            self._queues.move_to_end(key)
        else:
            del self._queues[key]
        return given
