"""A run in the terminal while it is played, as fast as life or by any other measure.

The run does not know that it is watched: frames are drawn between two of its moments, and nothing
of its time or of its draws is used for them.
"""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sims.phrases import Chorus, Event, Words
from sims.runner import Spectator
from sims.scene import scene
from sims.world import LogLine, World

FRAMES_PER_S = 20.0
EVENTS_KEPT = 100
SAME_MOMENT_S = 0.1
"""What several machines do alike within this time is one event."""


class Watch(Spectator):
    """`speed`: virtual seconds per real one."""

    def __init__(self, console: Console, title: str, speed: float) -> None:
        self._console = console
        self._title = f"{title}, {speed:g} times as fast as life"
        self._speed = speed
        self._live = Live(Text(), console=console, screen=True, auto_refresh=False)
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._chorus = Chorus(self._events.append)
        self._world: World | None = None
        self._words: Words | None = None
        self._frame_s = 0.0
        """When the next frame is due, in virtual time."""
        self._due = 0.0
        """The same in real time."""

    def __enter__(self) -> Watch:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begins(self, world: World) -> None:
        self._world, self._words = world, Words(world)
        self._frame_s, self._due = world.now_s, time.monotonic()
        world.listeners.append(self._heard)

    def at_rest(self) -> None:
        world = self._world
        assert world is not None
        while self._frame_s <= world.now_s:
            self._chorus.flush(world.now_s - SAME_MOMENT_S)
            self._draw(world)
            self._frame_s += self._speed / FRAMES_PER_S
            self._due += 1.0 / FRAMES_PER_S
            self._wait()

    def _wait(self) -> None:
        """A machine too slow for the wished speed shows each frame and takes longer."""
        left_s = self._due - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        else:
            self._due -= left_s

    def _draw(self, world: World) -> None:
        width, height = self._console.size
        frame = scene(world, self._title, list(self._events), width, height)
        self._live.update(frame, refresh=True)

    def _heard(self, line: LogLine) -> None:
        assert self._words is not None
        event = self._words.of(line)
        if event is not None:
            self._chorus.add(event)
