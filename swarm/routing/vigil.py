"""Life on links in use: who must hear from us, and whose silence we must notice.

Only while a session uses a link. Idle links are the business of gossip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swarm.config import RoutingConfig
from swarm.messages import Progress, SessionProgress
from swarm.routing.watch import Alarm, SilenceWatch
from swarm.terms import NodeId

PROGRESS_ENTRIES_MAX = 256
"""Sessions told in one progress frame; more are told in the next ones by their own steps."""


class Vigil:
    """One node's watch over the peers that its sessions use."""

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._watches: dict[NodeId, SilenceWatch] = {}
        self._watched: dict[NodeId, Alarm] = {}
        self._sent_at: dict[NodeId, float] = {}
        self._heard_at: dict[NodeId, float] = {}

    def watch(self, peers: Iterable[NodeId], now: float) -> None:
        """These peers, and no others, are in use now."""
        wanted = dict.fromkeys(peers)
        for peer in wanted:
            if peer not in self._watched:
                self._watches.setdefault(peer, SilenceWatch(self._config, now)).begin(now)
                self._watched[peer] = Alarm.NONE
        for peer in [peer for peer in self._watched if peer not in wanted]:
            del self._watched[peer]

    def forget(self, peer: NodeId) -> None:
        """The link is gone; a new one starts with a clean memory."""
        self._watches.pop(peer, None)
        self._watched.pop(peer, None)
        self._sent_at.pop(peer, None)
        self._heard_at.pop(peer, None)

    def heard(self, peer: NodeId, now: float) -> None:
        self._heard_at[peer] = now
        if peer in self._watched:
            self._watches[peer].heard(now)
            self._watched[peer] = Alarm.NONE

    def sent(self, peer: NodeId, now: float) -> None:
        self._sent_at[peer] = now

    def stalled(self, lag_s: float, now: float) -> None:
        for peer in self._watched:
            self._watches[peer].stalled(lag_s, now)
        for peer, heard_at in self._heard_at.items():
            self._heard_at[peer] = min(now, heard_at + lag_s)

    def unheard_s(self, peer: NodeId, now: float) -> float:
        """Silence of any linked peer, watched or not."""
        return now - self._heard_at.get(peer, now)

    def silence_s(self, peer: NodeId, now: float) -> float:
        return self._watches[peer].silence_s(now) if peer in self._watched else 0.0

    def new_alarms(self, now: float) -> list[tuple[NodeId, Alarm]]:
        """Peers whose alarm has just risen."""
        risen: list[tuple[NodeId, Alarm]] = []
        for peer, known in self._watched.items():
            alarm = self._watches[peer].alarm(now)
            if alarm is not known and alarm is not Alarm.NONE and known is not Alarm.HARD:
                self._watched[peer] = alarm
                risen.append((peer, alarm))
        return risen

    def progress_due(
        self,
        audience: Mapping[NodeId, Sequence[SessionProgress]],
        steps_done: int,
        now: float,
    ) -> list[tuple[NodeId, Progress]]:
        """Frames for peers that heard nothing from us for an interval."""
        due = now - self._config.progress_interval_s + 0.001
        return [
            (peer, Progress(tuple(entries[:PROGRESS_ENTRIES_MAX]), steps_done))
            for peer, entries in audience.items()
            if self._sent_at.get(peer, 0.0) <= due
        ]

    @property
    def is_busy(self) -> bool:
        return bool(self._watched)
