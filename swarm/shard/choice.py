"""How a session's tokens are chosen where logits alone do not say it: its history, its guide."""

from __future__ import annotations

from collections.abc import Callable

from swarm.guides import Matcher
from swarm.kernels.history import NO_PAST, Past, TokenHistory
from swarm.messages import Begin, Recall
from swarm.terms import Guide, SampledToken, SessionId

GuideMaker = Callable[[SessionId, int, Guide], None]
"""Has a guide compiled for a session and its generation; the matcher comes later."""


class Choice:
    """Of one session on a head, from one beginning to the next."""

    def __init__(self, begin: Begin) -> None:
        sampling = begin.sampling
        self._history = TokenHistory(sampling, begin.prompt_count)
        self._needs_history = sampling.needs_history
        self._kind = sampling.guide
        self._is_ordered = False
        self._matcher: Matcher | None = None

    @property
    def is_waiting(self) -> bool:
        """For the guide: no row can be sampled yet."""
        return self._kind is not None and self._matcher is None

    def recall(self, message: Recall) -> Guide | None:
        """What the origin tells. Gives the guide, the first time, to be compiled.

        Raises ShardError where it cannot be right.
        """
        payload = bytes(message.payload)
        source, ids = payload[: message.guide_bytes], payload[message.guide_bytes :]
        self._history.recall(message.position, ids)
        if self._kind is None or self._is_ordered or not source:
            return None
        self._is_ordered = True
        return Guide(self._kind, source.decode("utf-8", "replace"))

    def follow(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def past(self, position: int) -> Past:
        """Of the token at `position`. Raises ShardError when it is not known, GuideError."""
        if not self._needs_history:
            return NO_PAST
        past = self._history.before(position)
        if self._matcher is None:
            return past
        return Past(past.prompt, past.generated, self._matcher.allowed(past.generated))

    def chosen(self, token: SampledToken) -> None:
        if self._needs_history:
            self._history.chosen(token)
