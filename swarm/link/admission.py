"""What a listener lets in: half-open connections, handshake rate, replays, and log lines. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MEMBER_RATE_FACTOR = 10
"""Handshakes that hold the swarm key and come to nothing, against those that do not hold it."""
REPLAY_CACHE_MAX = 4096
REPLAY_CACHE_S = 120.0
"""Ephemeral keys of accepted first messages that are remembered: more, or for longer, costs only
memory; a replay that outlives them still fails, at the third message."""


class Bucket:
    """A token bucket: `rate` a second, `burst` at once."""

    __slots__ = ("_burst", "_level", "_rate", "_updated")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._updated: float | None = None

    def take(self, now: float) -> bool:
        if self.is_empty(now):
            return False
        self._level -= 1.0
        return True

    def is_empty(self, now: float) -> bool:
        if self._updated is not None:
            self._level += max(0.0, now - self._updated) * self._rate
        self._level = min(self._burst, self._level)
        self._updated = now
        return self._level < 1.0

    def give_back(self) -> None:
        self._level += 1.0


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a new connection may begin its handshake, and which one must go for it."""

    admitted: bool
    evicted: int | None = None


class HandshakeGate:
    """Bounds accepted connections that have not authenticated.

    The rate is for strangers: a connection that shows the swarm key gets its token back, so that
    many members may come at once, by many addresses each, while a flood of strangers is cut. It
    then counts against a rate that is higher, since it makes us do Diffie-Hellman; what completes
    costs nothing. When all half-open places are taken, the oldest connection that has not shown
    the swarm key makes room.
    """

    def __init__(self, half_open_max: int, handshakes_per_second: int) -> None:
        self._half_open_max = half_open_max
        self._strangers = Bucket(handshakes_per_second, handshakes_per_second)
        members = handshakes_per_second * MEMBER_RATE_FACTOR
        self._members = Bucket(members, members)
        self._unproven: dict[int, None] = {}
        self._proven: dict[int, None] = {}

    @property
    def half_open(self) -> int:
        return len(self._unproven) + len(self._proven)

    def admit(self, connection: int, now: float) -> Admission:
        if self._members.is_empty(now) or not self._strangers.take(now):
            return Admission(admitted=False)
        evicted = None
        if self.half_open >= self._half_open_max:
            evicted = next(iter(self._unproven), None)
            if evicted is None:
                return Admission(admitted=False)
            del self._unproven[evicted]
        self._unproven[connection] = None
        return Admission(admitted=True, evicted=evicted)

    def proven(self, connection: int, now: float) -> None:
        """It holds the swarm key: its first message opened."""
        if connection in self._unproven:
            del self._unproven[connection]
            self._proven[connection] = None
            self._strangers.give_back()
            self._members.take(now)

    def authenticated(self, connection: int) -> None:
        if connection in self._proven:
            del self._proven[connection]
            self._members.give_back()

    def gone(self, connection: int) -> None:
        self._unproven.pop(connection, None)
        self._proven.pop(connection, None)


class ReplayCache:
    """Ephemeral keys seen in first messages; a second sight is a replay."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def is_fresh(self, ephemeral: bytes, now: float) -> bool:
        """True once per key; remembers it."""
        while self._seen and now - next(iter(self._seen.values())) > REPLAY_CACHE_S:
            self._seen.popitem(last=False)
        if ephemeral in self._seen:
            return False
        self._seen[ephemeral] = now
        if len(self._seen) > REPLAY_CACHE_MAX:
            self._seen.popitem(last=False)
        return True


class NoteBudget:
    """Lets a bounded number of notes through, so that a flood cannot fill the log."""

    def __init__(self, rate: float, burst: float) -> None:
        self._bucket = Bucket(rate, burst)
        self._suppressed = 0

    def take(self, now: float) -> int | None:
        """How many were kept back since the last that went through; None: keep this one back."""
        if not self._bucket.take(now):
            self._suppressed += 1
            return None
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
