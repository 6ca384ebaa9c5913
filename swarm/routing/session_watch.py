"""An origin's session in time: whether it moves, who holds it up, how long its pauses are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swarm.config import RoutingConfig
from swarm.effects import Stalled
from swarm.messages import HopTimes, SessionProgress
from swarm.notes import Level
from swarm.routing.history import histories
from swarm.routing.outbox import Feed
from swarm.routing.phases import Phase
from swarm.routing.session_voice import SessionVoice
from swarm.routing.trace import SessionTrace
from swarm.routing.watch import Alarm, ProgressWatch, SlowHop, StallClock
from swarm.terms import Epoch, NodeId, Order, Route, SessionId


class WatchedSession(SessionVoice):
    def __init__(self, session: SessionId, order: Order, me: NodeId, config: RoutingConfig) -> None:
        super().__init__(session)
        self.order = order
        self._me = me
        self._ids = list(order.prompt_ids)
        self.epoch = Epoch(0)
        self.route: Route | None = None
        self._feed = Feed(config.credit_steps)
        self._stalls = StallClock()
        self._progress = ProgressWatch(config)
        self.trace = SessionTrace()

    def _tell_head(self, node: NodeId) -> None:
        """What a head, or who stands by for it, must know before it starts."""
        for message in histories(self.session, self.epoch, self.order, self._ids):
            self._send(node, message)

    @property
    def generated_count(self) -> int:
        return len(self._ids) - len(self.order.prompt_ids)

    def hop_says(self, peer: NodeId, entry: SessionProgress, now: float) -> None:
        """How far a hop is with this session, and whether rows wait for its worker."""
        self._progress.busy(peer, entry.pending_count > 0)
        self._hop_at(peer, entry.kv_length, now)

    def _hop_at(self, peer: NodeId, kv_length: int, now: float) -> None:
        if self.phase is Phase.RUNNING:
            self._progress.hop_at(peer, min(kv_length, self._feed.next_position), now)

    def stalled(self, lag_s: float) -> None:
        """This node's own loop stood still: nobody else is to blame for that time."""
        self._progress.stalled(lag_s)

    def slow_hop(self, busy_at: Callable[[NodeId], float], now: float) -> SlowHop | None:
        """The hop that holds the session up, when one does.

        `busy_at` says when a node's worker last finished a step of any session.
        """
        if self.phase is not Phase.RUNNING or self.route is None:
            return None
        is_bulk = self._stalls.is_running or self.generated_count == 0
        predicted_s = self.route.slowest_step_s if is_bulk else self.route.predicted_token_s
        node = self._progress.culprit(self.route, self._feed.next_position)
        alarm = self._progress.alarm(predicted_s, busy_at(node), now)
        if alarm is Alarm.NONE:
            return None
        place = self.route.index_of(node) or 0
        feeder = self.route.hops[place - 1].node if place else self._me
        return SlowHop(self.session, node, feeder, self._progress.has_work(node), alarm)

    def _is_current(self, peer: NodeId, epoch: Epoch) -> bool:
        """Whether a hop of the present route speaks of it."""
        return (
            not self.is_done
            and epoch == self.epoch
            and self.route is not None
            and self.route.index_of(peer) is not None
        )

    def _tell_route(self, route: Route, held: Sequence[int]) -> None:
        """`held`: positions that each hop has already."""
        self._tell("session.route", Level.INFO, epoch=self.epoch, route=str(route),
                   held=",".join(map(str, held)),
                   predicted_ms=round(1000 * route.predicted_token_s, 3))  # fmt: skip

    def _begin_stall(self, cause: str, now: float) -> None:
        if not self._stalls.is_running:
            self._stalls.verdict(self._progress.moved_at, now)
            self._reply(Stalled(cause))

    def hop_took(self, peer: NodeId, times: HopTimes) -> None:
        """What the session's steps cost a hop so far."""
        self.trace.hop_said(peer, times)

    def tell_times(self) -> None:
        """The route is no longer used: where the time went on it."""
        for figures in self.trace.figures():
            self._tell("session.times", Level.DEBUG, **figures)

    def _resumed(self, route: Route, kv_lengths: list[int], now: float) -> None:
        """All hops are open and begin with so many positions."""
        self._progress.restart(route.nodes, kv_lengths, now)
        self._stalls.resumed(now)
        self.tell_times()
        self.trace.resumed(route, self.epoch, len(self._ids), now)

    def _token_came(self, now: float) -> None:
        self._progress.moved(now)
        self.trace.token(now)
        if (pause := self._stalls.token(now)) is not None:
            self._tell("session.recovered", Level.INFO, epoch=self.epoch, **pause.milliseconds())
