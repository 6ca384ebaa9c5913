"""Is a hop silent, is it stuck, and how long did a pause last. Three small pure clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from swarm.config import RoutingConfig
from swarm.terms import NodeId, Route, SessionId


class Alarm(Enum):
    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class SlowHop:
    """The hop that holds a session up."""

    session: SessionId
    node: NodeId
    feeder: NodeId
    """Who sends it rows; of a head that has done all, the head itself."""
    has_work: bool
    """Rows wait for its worker. If none do, they, or its token, are lost on the way."""
    alarm: Alarm


class SilenceWatch:
    """Silence of one peer on a link in use, corrected for our own stalls.

    Both sides send at least every `progress_interval_s`; thresholds are in `RoutingConfig`.
    """

    def __init__(self, config: RoutingConfig, now: float) -> None:
        self._config = config
        self._heard_at = now
        self._gap_seen_at: float | None = None

    def heard(self, now: float) -> None:
        if now - self._heard_at > self._config.silence_soft_s:
            self._gap_seen_at = now
        self._heard_at = max(self._heard_at, now)

    def begin(self, now: float) -> None:
        """The link is in use again: what was silent before does not count."""
        self._heard_at = now

    def stalled(self, lag_s: float, now: float) -> None:
        """Our own loop stood still for `lag_s`: that time is not the peer's silence."""
        self._heard_at = min(now, self._heard_at + lag_s)

    def alarm(self, now: float) -> Alarm:
        silence = now - self._heard_at
        soft, hard = self._thresholds(now)
        if silence >= hard:
            return Alarm.HARD
        return Alarm.SOFT if silence >= soft else Alarm.NONE

    def silence_s(self, now: float) -> float:
        return now - self._heard_at

    def _thresholds(self, now: float) -> tuple[float, float]:
        config = self._config
        gappy = self._gap_seen_at is not None and now - self._gap_seen_at < config.gappy_memory_s
        if gappy:
            return config.silence_soft_gappy_s, config.silence_hard_gappy_s
        return config.silence_soft_s, config.silence_hard_s


class ProgressWatch:
    """Which hop of a route holds a session up although it is alive."""

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._kv_lengths: dict[NodeId, int] = {}
        self._busy: dict[NodeId, bool] = {}
        self.moved_at = 0.0

    def restart(self, nodes: Sequence[NodeId], kv_lengths: Sequence[int], now: float) -> None:
        self._kv_lengths = dict(zip(nodes, kv_lengths, strict=True))
        self._busy.clear()
        self.moved_at = now

    def moved(self, now: float) -> None:
        self.moved_at = max(self.moved_at, now)

    def stalled(self, lag_s: float) -> None:
        self.moved_at += lag_s

    def has_work(self, node: NodeId) -> bool:
        """Whether the hop said last that rows wait for its worker."""
        return self._busy.get(node, False)

    def busy(self, node: NodeId, is_busy: bool) -> None:
        self._busy[node] = is_busy

    def hop_at(self, node: NodeId, kv_length: int, now: float) -> None:
        if kv_length > self._kv_lengths.get(node, kv_length):
            self._kv_lengths[node] = kv_length
            self.moved(now)

    def alarm(self, predicted_s: float, busy_at: float, now: float) -> Alarm:
        """How long nothing moved, against the prediction for one step.

        busy_at  when the worker of the hop in question last finished any step: a busy worker lets
                 sessions wait and is not stuck
        """
        config, predicted = self._config, predicted_s
        waited = now - max(self.moved_at, busy_at)
        if waited >= max(config.stuck_min_s, config.stuck_factor * predicted):
            return Alarm.HARD
        slow = max(config.slow_min_s, config.slow_factor * predicted)
        return Alarm.SOFT if waited >= slow else Alarm.NONE

    def culprit(self, route: Route, fed_position: int) -> NodeId:
        """The first hop that has not done what its predecessor gave it; else the head."""
        available = fed_position
        for hop in route.hops:
            length = self._kv_lengths.get(hop.node, 0)
            if length < available:
                return hop.node
            available = length
        return route.hops[-1].node


@dataclass(slots=True)
class _Pause:
    began: float
    verdict: float
    resumed: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """One finished pause of an answer and its parts, seconds."""

    whole_s: float
    detection_s: float
    planning_s: float
    replay_s: float

    def milliseconds(self) -> dict[str, float]:
        """The figures as a note tells them."""
        return {
            "stall_ms": round(self.whole_s * 1000, 3),
            "detection_ms": round(self.detection_s * 1000, 3),
            "planning_ms": round(self.planning_s * 1000, 3),
            "replay_ms": round(self.replay_s * 1000, 3),
        }


class StallClock:
    """Measures pauses: from the last sign of progress before a verdict to the next token."""

    def __init__(self) -> None:
        self._pause: _Pause | None = None
        self.stalls_s: list[float] = []

    @property
    def is_running(self) -> bool:
        return self._pause is not None

    def verdict(self, last_progress_at: float, now: float) -> None:
        if self._pause is None:
            self._pause = _Pause(last_progress_at, now)

    def resumed(self, now: float) -> None:
        if self._pause is not None:
            self._pause.resumed = now

    def token(self, now: float) -> Pause | None:
        """A token came; the pause that it ends, if there was one."""
        if self._pause is None:
            return None
        pause, self._pause = self._pause, None
        self.stalls_s.append(now - pause.began)
        return Pause(
            now - pause.began,
            pause.verdict - pause.began,
            pause.resumed - pause.verdict,
            now - pause.resumed,
        )
