"""A run whose virtual time stands still for long is ended, and told as what it is: stuck."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from sims.runner import Spectator
from sims.world import World

LOOK_S = 5.0
STUCK_LOOKS = 4
"""So many looks without progress, by processor time: a busy machine changes nothing."""


class Stuck(KeyboardInterrupt):
    """Of this kind because event loops and tasks let nothing else through."""


class Watchdog(Spectator):
    """Looks from a signal handler, which also interrupts code that never returns.

    `companion`: another spectator of the same run.
    """

    def __init__(self, companion: Spectator | None = None) -> None:
        self._companion = companion or Spectator()
        self._world: Callable[[], World | None] = lambda: None
        """Held weakly: a world is freed when its run is over."""
        self._seen_ns = -1
        self._looks = 0

    @property
    def at_s(self) -> float:
        world = self._world()
        return world.now_s if world is not None else 0.0

    @property
    def looks_at_rest(self) -> bool:
        return self._companion.looks_at_rest

    def begins(self, world: World) -> None:
        self._world = weakref.ref(world)
        self._companion.begins(world)

    def at_rest(self) -> None:
        self._companion.at_rest()

    @contextmanager
    def on_guard(self) -> Iterator[None]:
        """Raises Stuck inside. Signals exist in the main thread alone: elsewhere it only yields."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGVTALRM, self._look)
        signal.setitimer(signal.ITIMER_VIRTUAL, LOOK_S, LOOK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)

    def _look(self, number: int, frame: FrameType | None) -> None:
        world = self._world()
        now_ns = world.loop.now_ns if world is not None else -1
        self._looks = self._looks + 1 if now_ns == self._seen_ns else 0
        self._seen_ns = now_ns
        if self._looks >= STUCK_LOOKS:
            self._looks = 0
            where = frame.f_code if frame is not None else None
            place = f"{where.co_filename.rsplit('/', 1)[-1]}:{where.co_name}" if where else "?"
            seconds = LOOK_S * STUCK_LOOKS
            raise Stuck(f"time stood still for {seconds:.0f} s of computing, last in {place}")
