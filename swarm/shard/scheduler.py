"""Which work runs next. First come, first served within a session; fair between sessions.

Decode steps go before prefill chunks, since one token is short and somebody reads along; but a
waiting chunk gets its turn after a few of them. A long run of decode rows (a rebuild) is given out
in slices and counts as long work too. One session per batch for now: the seam to real batches is
`Slice`, which then becomes a list of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from swarm.errors import CapacityError
from swarm.messages import Run, StepKind
from swarm.terms import SessionId

DECODES_PER_LONG_WORK = 8
"""Single decode steps that may overtake waiting long work before it gets a turn."""
DECODE_SLICE_ROWS = 16
"""Decode rows of one session that run without looking at the other sessions."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [first, first + count) of a run, counted within the run."""

    run: Run
    first: int
    count: int

    @property
    def is_last(self) -> bool:
        return self.first + self.count == self.run.count


@dataclass(slots=True)
class _Waiting:
    run: Run
    done: int = 0

    @property
    def is_short(self) -> bool:
        return self.run.kind is StepKind.DECODE and self.run.count - self.done == 1


class Scheduler:
    def __init__(self, queue_max: int) -> None:
        """`queue_max`: runs of one session that may wait, so that nobody fills up for others."""
        self._queue_max = queue_max
        self._queues: OrderedDict[SessionId, deque[_Waiting]] = OrderedDict()
        self._count = 0
        self._overtakes = 0

    def __len__(self) -> int:
        """Runs that wait, the one being sliced included."""
        return self._count

    def waiting(self) -> list[Slice]:
        """What is still to be run, for predicting how long it takes."""
        return [
            Slice(entry.run, entry.done, entry.run.count - entry.done)
            for queue in self._queues.values()
            for entry in queue
        ]

    def add(self, run: Run) -> None:
        """Raises CapacityError when too many runs of its session wait."""
        waiting = len(self._queues.get(run.session, ()))
        if waiting >= self._queue_max:
            raise CapacityError(f"{waiting} steps of the session wait already")
        self._queues.setdefault(run.session, deque()).append(_Waiting(run))
        self._count += 1

    def drop(self, session: SessionId) -> int:
        """Forget all that waits of a session; says how many runs that were."""
        dropped = len(self._queues.pop(session, ()))
        self._count -= dropped
        return dropped

    def next(self) -> Slice | None:
        """The next slice to run; its session goes to the back of the line."""
        session = self._pick()
        if session is None:
            return None
        queue = self._queues[session]
        entry = queue[0]
        rest = entry.run.count - entry.done
        count = rest if entry.run.kind is StepKind.PREFILL else min(rest, DECODE_SLICE_ROWS)
        given = Slice(entry.run, entry.done, count)
        entry.done += count
        if given.is_last:
            queue.popleft()
            self._count -= 1
        if queue:
            self._queues.move_to_end(session)
        else:
            del self._queues[session]
        return given

    def _pick(self) -> SessionId | None:
        shorts = (session for session, queue in self._queues.items() if queue[0].is_short)
        longs = (session for session, queue in self._queues.items() if not queue[0].is_short)
        short, long = next(shorts, None), next(longs, None)
        if short is None or long is None:
            self._overtakes = 0
            return short if long is None else long
        if self._overtakes >= DECODES_PER_LONG_WORK:
            self._overtakes = 0
            return long
        self._overtakes += 1
        return short
