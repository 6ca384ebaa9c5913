"""What a node does about links in use: says that it lives, notices who is silent or stuck.

Joins the watch (`vigil`), the penalties, and the sessions on both of their sides.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from swarm.config import RoutingConfig
from swarm.effects import Effect, Send, Tell
from swarm.messages import FailureCode, Progress, SessionProgress
from swarm.notes import Level, note
from swarm.routing.avoidance import Offence, PenaltyBox
from swarm.routing.origins import Origins
from swarm.routing.relay import Relay
from swarm.routing.vigil import Vigil
from swarm.routing.watch import Alarm
from swarm.terms import Incarnation, NodeId, short


class Sentinel:
    def __init__(
        self,
        me: NodeId,
        config: RoutingConfig,
        origins: Origins,
        relay: Relay,
        incarnation_of: Callable[[NodeId], Incarnation | None],
    ) -> None:
        self._me = me
        self._interval_s = config.progress_interval_s
        self._origin_silence_max_s = config.origin_silence_max_s
        self._origins = origins
        self._relay = relay
        self._incarnation_of = incarnation_of
        self._effects: list[Effect] = []
        self._due: float | None = None
        self.vigil = Vigil(config)
        self.penalties = PenaltyBox(config)

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._due

    def heard(self, peer: NodeId, now: float) -> None:
        self.vigil.heard(peer, now)
        self.penalties.heard(peer, now)

    def watch(self, linked: Container[NodeId], now: float) -> None:
        """Sessions or links changed: watch exactly the peers that are in use now."""
        peers = [*self._origins.monitored(), *(peer for _, peer in self._relay.neighbours())]
        self.vigil.watch([peer for peer in dict.fromkeys(peers) if peer in linked], now)
        if self._due is None and self._is_needed(linked):
            self._due = now + self._interval_s

    def tick(self, linked: Container[NodeId], now: float) -> list[NodeId]:
        """Every interval while links are in use. Returns peers that should be probed."""
        if self._due is None or now < self._due:
            return []
        steps_done = self._relay.steps_done
        for peer, progress in self.vigil.progress_due(self._audience(linked), steps_done, now):
            self._effects.append(Send(peer, progress))
        alarms = self.vigil.new_alarms(now)
        for peer, alarm in alarms:
            self._silent(peer, alarm, now)
        self._free_orphans(now)
        own = Progress(self._relay.own_progress(), steps_done)
        self._origins.progress(self._me, own, now)
        for slow in self._origins.slow_hops(now):
            if slow.alarm is Alarm.HARD:
                if slow.has_work:
                    self._punish(slow.node, Offence.STUCK, now)
                self._origins.hop_stuck(slow, now)
            else:
                self._origins.suspect(slow.node, now, slow.session)
        self._due = now + self._interval_s if self._is_needed(linked) else None
        return [peer for peer, _ in alarms]

    def _is_needed(self, linked: Container[NodeId]) -> bool:
        return bool(self._origins.session_count() or self.vigil.is_busy or self._audience(linked))

    def _audience(self, linked: Container[NodeId]) -> dict[NodeId, list[SessionProgress]]:
        audience = self._origins.audience()
        for peer, entries in self._relay.audience().items():
            audience.setdefault(peer, []).extend(entries)
        return {peer: entries for peer, entries in audience.items() if peer in linked}

    def _silent(self, peer: NodeId, alarm: Alarm, now: float) -> None:
        silence_ms = round(self.vigil.silence_s(peer, now) * 1000, 1)
        if alarm is Alarm.SOFT:
            self._tell("peer.quiet", Level.INFO, peer=short(peer), silence_ms=silence_ms)
            self._origins.suspect(peer, now)
            return
        if peer in self._origins.monitored():
            # A neighbour of a hop only may have been given another route: it owes us nothing.
            self._punish(peer, Offence.SILENT, now)
        detail = f"silent for {silence_ms} ms"
        self._origins.node_failed(peer, FailureCode.SILENT, detail, now)
        self._relay.neighbour_failed(peer, FailureCode.SILENT, detail)

    def _free_orphans(self, now: float) -> None:
        """An origin that lives says something to each of its hops all the time."""
        for origin in self._relay.origins():
            silence_s = self.vigil.unheard_s(origin, now)
            if silence_s >= self._origin_silence_max_s:
                detail = f"the origin was silent for {silence_s:.1f} s"
                self._relay.neighbour_failed(origin, FailureCode.UNREACHABLE, detail)

    def _punish(self, node: NodeId, offence: Offence, now: float) -> None:
        incarnation = self._incarnation_of(node)
        if incarnation is None or node == self._me:
            return
        length_s = self.penalties.punish(node, incarnation, offence, now)
        self._tell("peer.penalty", Level.WARNING, peer=short(node), cause=offence.value,
                   length_s=length_s)  # fmt: skip

    def _tell(self, event: str, level: Level, **fields: str | float) -> None:
        self._effects.append(Tell(note(event, level, **fields)))
