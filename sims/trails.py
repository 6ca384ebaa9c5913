"""With whom each request had to do: which faults may explain what its client saw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from swarm.notes import Note
from swarm.terms import SHORT_ID_LENGTH, short

if TYPE_CHECKING:
    from sims.node import SimNode
    from sims.request import Request
    from sims.world import World

SHORT_ID = re.compile(rf"(?<![\w.]){'[a-z2-7]' * SHORT_ID_LENGTH}(?![\w.])")

LATE = "no answer to open"
"""How the cause of a reroute begins where a hop was asked in vain."""
OUT_OF_REACH = "session.out_of_reach"
OPENED, GIVEN_UP = "session.route", "session.reroute"


class Trails:
    """Reads what nodes note of sessions: the hops of each route, and who refused, failed, was late
    or out of reach when one was sought."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parties: dict[str, set[int]] = {}
        """Per session, by the short id that notes carry, the numbers of machines."""
        self._vain: dict[str, set[float]] = {}
        """Per session when a route was given up that had not been opened in time."""
        self._open: set[str] = set()
        """Sessions whose present route was opened."""

    def noted(self, node: SimNode, entry: Note) -> None:
        session = entry.get("session")
        if session is None:
            return
        parties = self._parties.setdefault(str(session), set())
        parties.add(node.number)
        for name, value in entry.fields:
            if name != "session" and isinstance(value, str):
                parties.update(self._numbers(value))
        if entry.event == OPENED:
            self._open.add(str(session))
        elif entry.event in (OUT_OF_REACH, GIVEN_UP):
            is_late = str(session) not in self._open or str(entry.get("cause")).startswith(LATE)
            if entry.event == OUT_OF_REACH or is_late:
                self._vain.setdefault(str(session), set()).add(self._world.now_s)
            self._open.discard(str(session))

    def of(self, request: Request) -> set[int]:
        """Machines by number: its origin, the hops of its routes, and all it tried to use."""
        session = request.session
        named = self._parties.get(short(session), set()) if session is not None else set()
        return {request.origin.number, *named}

    def vain_openings(self, request: Request, start_s: float, stop_s: float) -> int:
        """Routes that were tried in this time, and waited for as long as that is allowed."""
        session = request.session
        moments = self._vain.get(short(session), set()) if session is not None else []
        return sum(start_s <= at <= stop_s for at in moments)

    def _numbers(self, text: str) -> list[int]:
        found = (self._world.node_called(short_id) for short_id in SHORT_ID.findall(text))
        return [node.number for node in found if node is not None]
