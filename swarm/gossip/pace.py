"""When a node's changing figures are worth a new dynamic record."""

from __future__ import annotations

from random import Random

from swarm.config import GossipConfig
from swarm.gossip.records import DynamicRecord
from swarm.terms import LinkSpeed, ShardSpeed

NODES_PER_S = 10.0
"""The whole swarm writes at most this many dynamic records a second."""
TIME_FLOOR_S = 0.0005
"""Queues and round trips that differ by less are the same, whatever their ratio."""
HEALTH_STEP = 2
STRETCH_MAX = 0.25
_FIGURES = tuple(name for name in ShardSpeed.__slots__ if name not in ("model_id", "queue_s"))


def differs(old: DynamicRecord, new: DynamicRecord, change: float) -> bool:
    """Whether a figure moved by more than the part `change` of the larger of the two values."""
    if abs(old.local_health - new.local_health) >= HEALTH_STEP:
        return True
    if [s.model_id for s in old.speeds] != [s.model_id for s in new.speeds]:
        return True
    if [link.peer for link in old.links] != [link.peer for link in new.links]:
        return True
    speeds = any(_speed_differs(a, b, change) for a, b in zip(old.speeds, new.speeds, strict=True))
    return speeds or any(
        _link_differs(a, b, change) for a, b in zip(old.links, new.links, strict=True)
    )


def _speed_differs(old: ShardSpeed, new: ShardSpeed, change: float) -> bool:
    if abs(old.queue_s - new.queue_s) > max(TIME_FLOOR_S, change * max(old.queue_s, new.queue_s)):
        return True
    return any(_moved(getattr(old, name), getattr(new, name), change) for name in _FIGURES)


def _link_differs(old: LinkSpeed, new: LinkSpeed, change: float) -> bool:
    rtt_moved = abs(old.rtt_s - new.rtt_s) > TIME_FLOOR_S and _moved(old.rtt_s, new.rtt_s, change)
    return rtt_moved or _moved(old.goodput_bytes_s, new.goodput_bytes_s, change)


def _moved(old: float, new: float, change: float) -> bool:
    return abs(old - new) > change * max(abs(old), abs(new))


class DynamicPace:
    """Holds the latest figures back until they may, and should, be written."""

    def __init__(self, config: GossipConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._stretch = 1.0
        """Of the pause before equal figures are written again: nodes that started together, after
        a power cut, do not all speak at once for ever."""
        self._wanted: DynamicRecord | None = None
        self._written: DynamicRecord | None = None
        self._written_at = 0.0
        self._is_news = False
        """Whether `_wanted` differs enough from `_written`; deadlines are asked for far more often
        than figures are offered."""
        self._is_urgent = False
        """A model is served whose speed nobody knows: without it no route is planned over it."""

    def offer(self, record: DynamicRecord) -> None:
        if record == self._wanted:
            return
        self._wanted = record
        change = self._config.dynamic_change
        if self._written is not None:
            self._is_news = differs(self._written, record, change)
            known = {speed.model_id for speed in self._written.speeds}
            self._is_urgent = any(speed.model_id not in known for speed in record.speeds)

    def due(self, now: float, member_count: int) -> DynamicRecord | None:
        """The record to write now, if any; it counts as written."""
        at = self.next_deadline(member_count)
        if at is None or now < at:
            return None
        self._written, self._written_at = self._wanted, now
        self._is_news = self._is_urgent = False
        self._stretch = 1.0 + STRETCH_MAX * self._rng.random()
        return self._wanted

    def next_deadline(self, member_count: int) -> float | None:
        """When the figures at hand are to be written; in the past means now."""
        if self._wanted is None:
            return None
        if self._written is None or self._is_urgent:
            return self._written_at
        soon_s = max(self._config.dynamic_interval_s, member_count / NODES_PER_S)
        if self._is_news:
            return self._written_at + soon_s
        is_crowd = soon_s > self._config.dynamic_interval_s
        stretch = self._stretch if is_crowd else 1.0
        return self._written_at + max(soon_s, self._config.dynamic_refresh_s) * stretch
