"""A node's memory of how long its peers stay: of what membership shows, kept on its disk. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swarm.effects import Effect, SaveStays
from swarm.routing.stays import StayBook
from swarm.terms import NodeId

SAVE_INTERVAL_S = 600.0
"""What is lost with a crash; each time writes some hundred KiB at most."""


class StayKeeper:
    """Knows nothing, and tells nothing, until it is begun."""

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._book: StayBook | None = None
        self._wall_offset_s = 0.0
        self._save_at: float | None = None
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._save_at

    def begin(self, data: bytes, wall_s: float, now: float) -> None:
        """`data`: what was saved last. `wall_s`: the time of day and week, which is now."""
        self._book = StayBook.read(data)
        self._wall_offset_s = wall_s - now
        self._save_at = now + SAVE_INTERVAL_S

    def seen(self, node: NodeId, *, is_here: bool, now: float) -> None:
        if self._book is None or node == self._me:
            return
        if is_here:
            self._book.here(node, now + self._wall_offset_s)
        else:
            self._book.gone(node, now + self._wall_offset_s)

    def rates(self, notices: Mapping[NodeId, float], now: float) -> dict[NodeId, float]:
        """Departures a second to be expected of others.

        notices  per node how soon it has said that it will leave; 0: it has said nothing. That is
                 the only word of a node about itself that counts, since it costs none but itself
        """
        rates = {} if self._book is None else self._used_to(notices, now)
        for node, in_s in notices.items():
            if in_s > 0.0 and node != self._me:
                rates[node] = max(rates.get(node, 0.0), 1.0 / in_s)
        return rates

    def _used_to(self, nodes: Iterable[NodeId], now: float) -> dict[NodeId, float]:
        assert self._book is not None
        wall = now + self._wall_offset_s
        return {node: self._book.rate(node, wall) for node in nodes if node != self._me}

    def tick(self, now: float) -> None:
        if self._book is not None:
            self._save_at = now + SAVE_INTERVAL_S
            self._effects.append(SaveStays(self._book.dump(now + self._wall_offset_s)))

    def depart(self, now: float) -> None:
        """The node goes: what it knows is written."""
        self.tick(now)
