"""What was used: tokens by day, key and model, counted in memory and handed on in batches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarm.effects import Failed, Finished, Generated, SessionEvent, Stalled, Started

OTHERS = "(others)"
"""Takes the place of a model's name where more are counted than `rows_max` allows."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a count belongs to. `day`: days since 1970, UTC. `key`: its name; empty for none."""

    day: int
    key: str
    model: str


@dataclass(frozen=True, slots=True)
class Amount:
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's: those that no node had to run."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


Rows = tuple[tuple[Place, Amount], ...]


class Tally:
    """Counts that are not written down yet, and what each key has used today."""

    def __init__(self, rows_max: int) -> None:
        """`rows_max`: places that may wait to be written; beyond, models are lumped together."""
        self._rows_max = rows_max
        self._pending: dict[Place, Amount] = {}
        self._day = 0
        self._today: dict[str, int] = {}

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def begin_day(self, day: int, used: dict[str, int]) -> None:
        """What is known from before: tokens by key on `day`."""
        self._day, self._today = day, dict(used)

    def add(self, place: Place, amount: Amount) -> None:
        if place.day > self._day:
            self._day, self._today = place.day, {}
        if place.day == self._day:
            self._today[place.key] = self._today.get(place.key, 0) + amount.tokens
        self._put(place, amount)

    def used(self, key: str, day: int) -> int:
        """Tokens of a key on `day`, today or later."""
        return self._today.get(key, 0) if day == self._day else 0

    def take(self) -> Rows:
        """What is to be written; the caller gives it back with `put_back` where that fails."""
        rows, self._pending = tuple(self._pending.items()), {}
        return rows

    def put_back(self, rows: Rows) -> None:
        for place, amount in rows:
            self._put(place, amount)

    def pending(self) -> Rows:
        return tuple(self._pending.items())

    def _put(self, place: Place, amount: Amount) -> None:
        if place not in self._pending and len(self._pending) >= self._rows_max:
            place = replace(place, model=OTHERS)
        self._pending[place] = self._pending.get(place, Amount()) + amount


class Charge:
    """Turns the events of one session into amounts, as they happen."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._is_prompt_charged = False

    def of(self, event: SessionEvent) -> Amount | None:
        """What this event adds; None for nothing. A prompt counts once, however often it is run."""
        match event:
            case Started():
                if self._is_prompt_charged:
                    return None
                self._is_prompt_charged = True
                cached = min(event.cached_tokens, self._prompt_tokens)
                return Amount(1, self._prompt_tokens, cached_tokens=cached)
            case Generated():
                return Amount(completion_tokens=1)
            case Finished() | Failed() | Stalled():
                return None


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One line of `swarm usage`: a day's amount of a key and model, or a sum over days."""

    day: str
    key: str
    model: str
    amount: Amount


def totals(lines: Iterable[UsageLine]) -> tuple[UsageLine, ...]:
    """Sums over all days by key and model, in the order of these."""
    sums: dict[tuple[str, str], Amount] = {}
    for line in lines:
        place = (line.key, line.model)
        sums[place] = sums.get(place, Amount()) + line.amount
    return tuple(UsageLine("", key, model, sums[key, model]) for key, model in sorted(sums))
