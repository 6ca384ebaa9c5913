"""A second reader of a session's rows: the feeder of a hop sends them to the hop's standby too.

The standby gets what the hop got, later and in larger steps, and never the newest row: a head that
stands by must not have run a row whose token nobody has seen, since it gave none.
"""

from __future__ import annotations

from swarm.messages import StepKind
from swarm.routing.outbox import Outbox, Rows
from swarm.terms import NodeId

MIRROR_STEPS = 2
"""Under way at once: one that runs and one that waits."""
MIRROR_ROWS = 8
"""Generated rows that go together, at least. A batch of them costs a fraction of as many single
ones; with more, more is left to run when the standby is needed."""


class Mirror:
    """To one standby, under one epoch."""

    def __init__(self, to: NodeId, position: int) -> None:
        """`position`: the first row that the standby lacks."""
        self.to = to
        self.position = position
        """The next row to be sent."""
        self._under_way: list[int] = []
        """Where the steps end that are not in the standby's KV yet."""

    def acknowledged(self, kv_length: int) -> None:
        self._under_way = [stop for stop in self._under_way if stop > kv_length]

    def is_cut_off(self, outbox: Outbox) -> bool:
        """The rows that the standby needs next are gone."""
        return self.position < outbox.start

    def take(self, outbox: Outbox) -> Rows | None:
        """The next step for the standby, if it is due: a chunk of the prompt, or some rows."""
        if len(self._under_way) >= MIRROR_STEPS:
            return None
        rows = outbox.next_rows(self.position)
        if rows is None or (rows.kind is StepKind.PREFILL and rows.stop >= outbox.stop):
            return None
        if rows.kind is StepKind.DECODE:
            rows = rows.before(outbox.stop - 1)
            if rows is None or rows.count < MIRROR_ROWS:
                return None
        self._under_way.append(rows.stop)
        self.position = rows.stop
        return rows
