"""When this node leaves: at once, or at a time that is announced and may be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm.asks import Announce
from swarm.errors import RequestError, SwarmError
from swarm.node_port import NodePort
from swarm.notes import Level, NoteSink, note
from swarm.waiting_io import end

NOTICE_MAX_S = 7 * 24 * 3600.0
"""Further ahead nobody prepares for a departure."""


class DepartureDesk:
    """Runs on the node's loop, for whoever may send the node away."""

    def __init__(
        self, node: NodePort, grace_s: float, refuse_new: Callable[[], None], notes: NoteSink
    ) -> None:
        """`grace_s`: what running sessions are given. `refuse_new`: called when it begins."""
        self._node = node
        self._grace_s = grace_s
        self._refuse_new = refuse_new
        self._notes = notes
        self._notice: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def notice(self) -> object | None:
        """The one that is announced, as `leave_in` returned it."""
        return self._notice

    async def close(self) -> None:
        for task in (self._notice, self._leaving):
            if task is not None:
                await end(task)

    def leave(self) -> None:
        """Begin now. Once it has begun, asking again changes nothing."""
        if self._leaving is None:
            self._drop_notice()
            self._refuse_new()
            self._leaving = asyncio.create_task(self._depart())

    def leave_in(self, in_s: float) -> object:
        """Serve on until then, and tell others. A later notice takes the place of an earlier one.

        Raises RequestError where it is no such time, or the node leaves already.
        """
        if not 0.0 < in_s <= NOTICE_MAX_S:
            days = NOTICE_MAX_S / 86400
            text = f"a departure is announced for at most {days:.0f} days ahead, and not for now"
            raise RequestError(text, param="in_s")
        self._check_here()
        self._drop_notice()
        self._notice = asyncio.create_task(self._leave_then(in_s))
        self._node.asked(Announce(in_s))
        return self._notice

    def stay(self) -> None:
        """Take the notice back. Raises RequestError where there is none."""
        self._check_here()
        if self._notice is None:
            raise RequestError("no departure is announced", status=409)
        self._drop_notice()
        self._node.asked(Announce(None))

    def _check_here(self) -> None:
        if self._leaving is not None:
            raise RequestError("the node leaves already", status=409)

    def _drop_notice(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

    async def _leave_then(self, in_s: float) -> None:
        await asyncio.sleep(in_s)
        self._notice = None
        self.leave()

    async def _depart(self) -> None:
        try:
            await self._node.leave(self._grace_s)
        except SwarmError as error:
            self._notes(note("gateway.leave_failed", Level.ERROR, error=str(error)))
