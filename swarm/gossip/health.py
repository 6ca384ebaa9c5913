"""How far this node may trust its own evidence: a score from 0 (well) up (Lifeguard)."""

from __future__ import annotations

SILENCED_ABOVE = 2
"""A node less well than this accuses nobody in public."""
LAG_MIN_S = 0.1
LAG_STEP_S = 0.5
RECOVERY_S = 1.0
"""One point is forgiven after each second without a fault."""


class LocalHealth:
    """Raised by unanswered probes, by having to refute, and by lag of the own loop."""

    def __init__(self, score_max: int) -> None:
        self._score_max = score_max
        self._score = 0
        self._recover_at: float | None = None

    @property
    def score(self) -> int:
        return self._score

    @property
    def factor(self) -> float:
        """What the patience with others is multiplied by."""
        return 1.0 + self._score

    @property
    def may_accuse(self) -> bool:
        return self._score <= SILENCED_ABOVE

    def fault(self, now: float, points: int = 1) -> None:
        self._score = min(self._score_max, self._score + points)
        self._recover_at = now + RECOVERY_S

    def lagged(self, lag_s: float, now: float) -> None:
        if lag_s >= LAG_MIN_S:
            self.fault(now, 1 + int(lag_s / LAG_STEP_S))

    def tick(self, now: float) -> None:
        while self._score and self._recover_at is not None and now >= self._recover_at:
            self._score -= 1
            self._recover_at += RECOVERY_S

    def next_deadline(self) -> float | None:
        return self._recover_at if self._score else None
