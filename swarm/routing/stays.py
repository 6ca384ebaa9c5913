"""How long others have stayed, by the hour of the week, and how likely they leave soon. Pure.

Each node keeps this of its peers, from what it sees of them; what a node says of itself counts for
nothing. Per node and hour of the week: for how long it was here, and how often it left; old weeks
count half after four. A rate is drawn towards a coarser one where little is known: that of an hour
towards the node's own, that towards one departure a day.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from swarm.terms import NodeId

HOUR_S = 3600.0
WEEK_HOURS = 168
HALF_LIFE_S = 28 * 24 * HOUR_S
PRIOR_S = 24 * HOUR_S
"""Of a node that nothing is known of: one departure in this time."""
PRIOR_WEIGHT_S = HOUR_S
"""A node that was here for so long is judged half by that."""
HOUR_WEIGHT_S = 4 * HOUR_S
"""An hour of the week in which it was here for so long is judged half by that hour alone."""
NODES_MAX = 512
"""Those seen last are kept; about 3 KiB each where all hours were seen."""
DUMP_BYTES_MAX = 4 << 20
ALONE_S = 5.0
"""Who seems to leave is told from a fault of our own by others that are here so much later."""


@dataclass(slots=True)
class _Hour:
    here_s: float = 0.0
    left: float = 0.0


@dataclass(slots=True)
class _History:
    """`at`: until when it is counted; `here`: the node is here since then."""

    at: float
    here: bool = False
    hours: dict[int, _Hour] = field(default_factory=dict)
    here_s: float = 0.0
    left: float = 0.0

    def advance(self, now: float) -> None:
        """Count the time up to now, and let the past fade."""
        passed = now - self.at
        if passed <= 0.0:
            return
        fade = 0.5 ** (passed / HALF_LIFE_S)
        self.here_s, self.left = self.here_s * fade, self.left * fade
        for hour in self.hours.values():
            hour.here_s, hour.left = hour.here_s * fade, hour.left * fade
        if self.here:
            start = max(self.at, now - WEEK_HOURS * HOUR_S)
            while start < now:
                stop = min(now, (math.floor(start / HOUR_S) + 1) * HOUR_S)
                self._hour(start).here_s += stop - start
                self.here_s += stop - start
                start = stop
        self.at = now

    def departed(self, now: float) -> None:
        self._hour(now).left += 1.0
        self.left += 1.0

    def rate(self, now: float) -> float:
        """Departures a second, at this hour."""
        own = (self.left + PRIOR_WEIGHT_S / PRIOR_S) / (self.here_s + PRIOR_WEIGHT_S)
        hour = self.hours.get(_hour_of(now), _Hour())
        return (hour.left + own * HOUR_WEIGHT_S) / (hour.here_s + HOUR_WEIGHT_S)

    def _hour(self, at: float) -> _Hour:
        return self.hours.setdefault(_hour_of(at), _Hour())


class StayBook:
    """Times are seconds of the wall clock."""

    def __init__(self) -> None:
        self._histories: dict[NodeId, _History] = {}
        self._going: dict[NodeId, float] = {}
        """Who seems to have left, and when."""

    def __len__(self) -> int:
        return len(self._histories)

    # ------------------------------------------------------------ facts in

    def here(self, node: NodeId, now: float) -> None:
        history = self._histories.get(node)
        if history is None:
            history = self._histories[node] = _History(now)
            self._make_room()
        self._settle(now)
        if node in self._going:
            self._left(node, self._going.pop(node))
        history.advance(now)
        history.here = True

    def gone(self, node: NodeId, now: float) -> None:
        history = self._histories.get(node)
        if history is not None and history.here and node not in self._going:
            self._going[node] = now

    def _settle(self, now: float) -> None:
        """Departures are believed once others have been here for a while after them. Where all are
        gone it is this node that was cut off: that counts as nobody's."""
        is_alone = all(
            node in self._going for node, history in self._histories.items() if history.here
        )
        for node, at in list(self._going.items()):
            if now >= at + ALONE_S:
                del self._going[node]
                if is_alone:
                    self._histories[node].advance(at)
                    self._histories[node].here = False
                else:
                    self._left(node, at)

    def _left(self, node: NodeId, at: float) -> None:
        history = self._histories[node]
        history.advance(at)
        history.departed(at)
        history.here = False

    # ------------------------------------------------------------ views

    def rate(self, node: NodeId, now: float) -> float:
        """Departures a second that are to be expected of the node now."""
        self._settle(now)
        history = self._histories.get(node)
        if history is None:
            return 1.0 / PRIOR_S
        history.advance(now)
        return history.rate(now)

    def dump(self, now: float) -> bytes:
        """For the disk."""
        self._settle(now)
        nodes = {}
        for node, history in self._histories.items():
            history.advance(now)
            nodes[node] = [history.at, history.here_s, history.left, [
                [number, round(hour.here_s, 1), round(hour.left, 4)]
                for number, hour in sorted(history.hours.items())
                if hour.here_s >= 1.0
            ]]  # fmt: skip
        return json.dumps({"stays": nodes}).encode()

    @staticmethod
    def read(data: bytes) -> StayBook:
        """What `dump` wrote; empty where that is damaged: it is learned again."""
        book = StayBook()
        try:
            for node, (at, here_s, left, hours) in _entries(data).items():
                found = {
                    int(hour) % WEEK_HOURS: _Hour(_figure(here), _figure(gone))
                    for hour, here, gone in hours
                }
                book._histories[NodeId(str(node))] = _History(
                    _figure(at), False, found, _figure(here_s), _figure(left)
                )
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return StayBook()
        book._make_room()
        return book

    def _make_room(self) -> None:
        surplus = len(self._histories) - NODES_MAX
        if surplus > 0:
            absent = [node for node, history in self._histories.items() if not history.here]
            oldest = sorted(absent, key=lambda node: (self._histories[node].at, node))
            for node in oldest[:surplus]:
                del self._histories[node]


def _entries(data: bytes) -> dict[str, Any]:
    if len(data) > DUMP_BYTES_MAX:
        raise ValueError("too long")
    found: dict[str, Any] = json.loads(data)["stays"]
    return found


def _figure(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a figure")
    if not 0.0 <= value < 1e12:
        raise ValueError("out of bounds")
    return float(value)


def _hour_of(at: float) -> int:
    return int(at // HOUR_S) % WEEK_HOURS
