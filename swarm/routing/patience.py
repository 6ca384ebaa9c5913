"""How often and how long a session tries before it gives up."""

from __future__ import annotations

from swarm.config import RoutingConfig


class Patience:
    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self.reroutes = 0
        """Hops lost."""
        self.preemptions = 0
        """Times that it had to make room for another session."""
        self._refusals = 0
        """Routes that could not be opened, since one could."""
        self._weary_at: float | None = None
        """When those became too many to go on at full pace."""
        self._cover_lost_at: float | None = None
        self._room_lost_at: float | None = None
        """Since when no route has had room for it; also while some seem to have."""

    def rerouted(self) -> bool:
        """A hop was lost; whether that may happen once more."""
        self.reroutes += 1
        return self.reroutes <= self._config.reroutes_max

    def preempted(self, now: float) -> bool:
        self.preemptions += 1
        self._lose_room(now)
        return self.preemptions <= self._config.preemptions_max

    def refused(self, now: float, *, is_full: bool) -> bool:
        """Whether to ask elsewhere at once. `is_full`: for want of room in mid-answer, which is
        waited for."""
        if is_full:
            self._lose_room(now)
            return now < self.give_up_at()
        self._refusals += 1
        if self._refusals <= self._config.reroutes_max:
            return True
        if self._weary_at is None:
            self._weary_at = now
        return False

    def cover_lost(self, now: float) -> bool:
        """There is no route now; whether that is news."""
        is_news = self._cover_lost_at is None
        if self._cover_lost_at is None:
            self._cover_lost_at = now
        return is_news

    def cover_found(self) -> None:
        self._cover_lost_at = None

    def resumed(self) -> None:
        """A route is open."""
        self._refusals = 0
        self._cover_lost_at = self._room_lost_at = self._weary_at = None

    def give_up_at(self) -> float:
        since = (self._cover_lost_at, self._room_lost_at, self._weary_at)
        lost_at = min((at for at in since if at is not None), default=float("inf"))
        return lost_at + self._config.cover_wait_s

    def _lose_room(self, now: float) -> None:
        if self._room_lost_at is None:
            self._room_lost_at = now
