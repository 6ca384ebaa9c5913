"""What a session's steps take on one hop, and when its origin should hear of it. Pure."""

from __future__ import annotations

from swarm.messages import StepKind
from swarm.terms import StepTimes

TOLD_TOKENS = 16
"""Tokens between two tellings: one small message a hop, and what a trace may lag behind."""
TOLD_S = 0.5
"""Slower tokens are told after this time, so that a map moves."""


class StepClock:
    """Sums of one epoch. A session's steps may overlap: the time of each moment counts once."""

    def __init__(self) -> None:
        self._times = dict.fromkeys(StepKind, StepTimes())
        self._since: float | None = None
        """Up to here time is accounted for; None while nothing of the session is under way."""
        self._told = (0, 0)
        self._told_at = 0.0

    @property
    def prompt(self) -> StepTimes:
        return self._times[StepKind.PREFILL]

    @property
    def tokens(self) -> StepTimes:
        return self._times[StepKind.DECODE]

    def arrived(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def done(self, kind: StepKind, rows: int, compute_s: float, now: float) -> None:
        """Rows came back from the worker."""
        held_s = 0.0 if self._since is None else now - self._since
        self._since = now
        so_far = self._times[kind]
        self._times[kind] = StepTimes(
            so_far.rows + rows, so_far.held_s + held_s, so_far.compute_s + compute_s
        )

    def rest(self) -> None:
        """Nothing of the session is under way any more."""
        self._since = None

    def is_worth_telling(self, now: float) -> bool:
        """When the prompt is through, at 1, 2, 4, 8, 16, 32, 48, ... tokens, and as time passes.

        True counts as told.
        """
        prompt, tokens = self.prompt.rows, self.tokens.rows
        told_prompt, told_tokens = self._told
        is_through = prompt > told_prompt and self._since is None
        has_grown = tokens - told_tokens >= min(TOLD_TOKENS, max(1, told_tokens))
        if is_through or has_grown or now - self._told_at >= TOLD_S:
            self._told, self._told_at = (prompt, tokens), now
            return True
        return False
