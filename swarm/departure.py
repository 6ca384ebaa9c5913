"""A departure that is announced: the machine stays for a while yet, and others may prepare. Pure.

Until it goes the node serves on. Others price it as one that will be gone by then: new answers keep
to other nodes where those serve the same, running ones get their standbys for it first, and layers
that only it holds are loaded elsewhere while it is still there.
"""

from __future__ import annotations

from swarm.effects import Effect, Tell
from swarm.hosted import DEPARTS_SOON_S
from swarm.hosting import Hosting
from swarm.notes import Level, note

TOLD_AGAIN_SHARE = 0.5
"""Others are told again when so much of the time told last is left: what they know is at most twice
what is true, and a day's notice takes some ten words."""
TOLD_MIN_S = 5.0
"""Nearer than this it is told no more: the departure itself follows."""


class Departure:
    """Owned by whoever publishes `hosting`; the shell goes when the time has come."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._at: float | None = None
        self._tell_at: float | None = None
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._tell_at

    def announce(self, in_s: float | None, now: float) -> None:
        """None: it stays, after all."""
        if in_s is not None:
            self._effects.append(Tell(note("node.departs", Level.INFO, in_s=round(in_s))))
        elif self._at is not None:
            self._effects.append(Tell(note("node.stays", Level.INFO)))
        self._at = None if in_s is None else now + in_s
        self._tell_at = now

    def tick(self, now: float) -> None:
        """Say what is left, where it is time to."""
        if self._tell_at is None or now < self._tell_at:
            return
        self._tell_at = None
        if self._at is None:
            self._say(0.0)
            return
        left_s = max(TOLD_MIN_S, self._at - now)
        self._say(left_s)
        if left_s * TOLD_AGAIN_SHARE >= TOLD_MIN_S:
            self._tell_at = now + left_s * (1.0 - TOLD_AGAIN_SHARE)
            if now < self._at - DEPARTS_SOON_S:  # from when on others act on it
                self._tell_at = min(self._tell_at, self._at - DEPARTS_SOON_S)

    def _say(self, left_s: float) -> None:
        told = float(f"{left_s:.2g}")
        if told != self._hosting.departs_in_s:
            self._hosting.departs_in_s = told
            self._hosting.changed = True
