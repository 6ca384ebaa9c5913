"""The ids of one sequence as far as its sampler asks for them: integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from swarm.errors import ShardError
from swarm.terms import SampledToken, Sampling


@dataclass(frozen=True, slots=True)
class Past:
    """What a token depends on beside seed, position and logits.

    prompt     ids of the prompt, where the sampling asks for them
    generated  ids of all generated tokens before this one, where the sampling asks for them
    allowed    a bit for each id, the lowest first: what the guide lets come next; None: anything
    """

    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()
    allowed: bytes | None = None


NO_PAST = Past()


class TokenHistory:
    """Grows by what the origin tells and by what is sampled here; an id never changes."""

    def __init__(self, sampling: Sampling, prompt_count: int) -> None:
        self._prompt_count = prompt_count
        self._first = 0 if sampling.needs_prompt else prompt_count
        self._ids: list[int] = []

    @property
    def stop(self) -> int:
        """Position of the first id that is not known."""
        return self._first + len(self._ids)

    def recall(self, position: int, ids: bytes) -> None:
        """Ids [count] int32 from `position` on, as the origin has them; it may know fewer.

        Raises ShardError where they cannot be: they start elsewhere, or others are known.
        """
        if position != self._first or len(ids) % 4:
            raise ShardError(f"{len(ids)} bytes of ids from {position} are not what was asked for")
        told = numpy.frombuffer(ids, dtype="<i4").tolist()
        known = min(len(told), len(self._ids))
        if told[:known] != self._ids[:known]:
            raise ShardError("the origin tells other tokens than were sampled here")
        self._ids += told[known:]

    def before(self, position: int) -> Past:
        """Of the token at `position`. Raises ShardError when ids before it are not known: then no
        token is better than a wrong one."""
        if not self._prompt_count <= position <= self.stop:
            raise ShardError(f"the ids before {position} are known to {self.stop} only")
        prompt_stop = self._prompt_count - self._first
        return Past(self._ids[:prompt_stop], self._ids[prompt_stop : position - self._first])

    def chosen(self, token: SampledToken) -> None:
        """One that is sampled again changes nothing."""
        if token.position == self.stop:
            self._ids.append(token.token_id)
