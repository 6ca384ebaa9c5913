"""The life of an origin's session: one table of moves, drawn at the head of `session`."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    WAITING = "waiting"
    OPENING = "opening"
    RUNNING = "running"
    DONE = "done"


MOVES: dict[Phase, tuple[Phase, ...]] = {
    Phase.WAITING: (Phase.WAITING, Phase.OPENING, Phase.DONE),
    Phase.OPENING: (Phase.WAITING, Phase.OPENING, Phase.RUNNING, Phase.DONE),
    Phase.RUNNING: (Phase.WAITING, Phase.OPENING, Phase.DONE),
    Phase.DONE: (),
}
