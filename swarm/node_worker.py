"""A node's own worker: what it says goes to whom it concerns, a wedged one is replaced, and one
that has no model may get one of the swarm's.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.adoption import Adoption
from swarm.asks import (
    Announce,
    Ask,
    ComeBack,
    GiveWay,
    LoadModel,
    TakePart,
    UnloadModel,
    WantOfHub,
)
from swarm.config import Config
from swarm.departure import Departure
from swarm.effects import Effect, ToWorker
from swarm.fetch_facts import Fact
from swarm.hosted import Market
from swarm.hosting import Hosting, Wish
from swarm.hub_wants import HubWants
from swarm.messages import End, FailureCode, Load, Loaded, Message, Ran, RunFailed
from swarm.mover import Mover
from swarm.routing.relay import Relay
from swarm.routing.worker_watch import TRIAL, WorkerWatch
from swarm.terms import ModelId, NodeId
from swarm.unloading import Unloading
from swarm.yielding import Yielding


class WorkerCare:
    def __init__(
        self,
        me: NodeId,
        config: Config,
        hosting: Hosting,
        relay: Relay,
        market: Callable[[], Market],
    ) -> None:
        self._market = market
        self._adoption = Adoption(hosting, config.weights, config.shard.settle_s)
        self._hub = HubWants(me, hosting, config.weights, config.shard.settle_s)
        self._hosting = hosting
        self._relay = relay
        self._watch = WorkerWatch(
            config.routing,
            config.shard,
            hosting.speed_of,
            lambda load: hosting.weight_bytes_of(load.model_id),
        )
        hand_over_s = config.routing.hand_over_max_s
        self._mover = Mover(me, hosting, relay, config.moves, hand_over_s)
        self._unloading = Unloading(hosting, relay, hand_over_s)
        self._departure = Departure(hosting)
        self._yielding = Yielding(hosting, self._adoption, self._hub, self._unloading)
        self._parts = (
            self._adoption, self._hub, self._mover, self._unloading, self._departure,
            self._yielding,
        )  # fmt: skip
        self._loading: dict[ModelId, float] = {}
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects) or any(part.has_effects for part in self._parts)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects + [effect for part in self._parts for effect in part.take_effects()]

    def next_deadline(self) -> float | None:
        parts = (self._watch, *self._parts)
        moments = [moment for part in parts if (moment := part.next_deadline()) is not None]
        return min(moments, default=None)

    # ------------------------------------------------------------ facts in

    def asked(self, ask: Ask, now: float) -> None:
        """What the owner wants. Raises RequestError for what cannot be."""
        match ask:
            case TakePart(cached):
                self._adoption.start(cached, now)
            case LoadModel(path, name, layers):
                self._hosting.load(Wish(path, name, layers))
            case WantOfHub():
                self._hub.want(ask, now)
            case UnloadModel(name):
                if not self._hub.cancel(name):
                    self._unloading.begin(name, now, self._market().rivals)
            case Announce(in_s):
                self._departure.announce(in_s, now)
            case GiveWay(reason):
                self._yielding.give_way(reason, now)
            case ComeBack():
                self._yielding.come_back(now)

    def fetch_fact(self, fact: Fact, now: float) -> None:
        if not self._hub.fact(fact, now):
            self._adoption.fact(fact, now)
        self._replace_given_up(now)
        self._hub.news(now)
        self._mover.news(now)

    def news(self, now: float) -> None:
        """What others serve, or whether they are there, has changed."""
        self._mover.news(now)
        self._hub.news(now)

    def sent(self, order: Message, now: float) -> None:
        """An order has gone to the worker."""
        self._watch.sent(order, now)
        if isinstance(order, Load):
            self._loading[order.model_id] = now

    def message(self, message: Message, now: float) -> bool:
        """Whether what this node serves may have changed by it."""
        self._watch.answered(message, now)
        match message:
            case Ran() | RunFailed() if message.session == TRIAL:
                self._effects.append(ToWorker(End(TRIAL)))
            case Ran():
                self._relay.ran(message, now)
            case RunFailed():
                self._relay.run_failed(message)
            case _:
                if isinstance(message, Loaded) and message.model_id in self._loading:
                    took_s = now - self._loading.pop(message.model_id)
                    self._hosting.load_took(message.model_id, took_s)
                self._hosting.worker_message(message, now)
                self._replace_given_up(now)
                self._hub.news(now)
                if isinstance(message, Loaded):
                    self._mover.news(now)
                return True
        return False

    def lost(self, reason: str, now: float) -> None:
        self._gone(self._hosting.worker_lost(reason, now), reason)

    def stalled(self, lag_s: float) -> None:
        """The own loop stood still and heard nothing meanwhile."""
        self._watch.stalled(lag_s)

    def tick(self, now: float) -> bool:
        """Judge the worker; True when it was given up."""
        self._replace_given_up(now)
        due = self._hub.next_deadline()
        if due is not None and now >= due:
            self._hub.tick(self._market().hub_shares, now)
        due = self._adoption.next_deadline()
        if due is not None and now >= due:
            market = self._market()
            self._adoption.tick(market.specs, market.rivals, now)
        due = self._mover.next_deadline()
        if due is not None and now >= due:
            self._mover.tick(self._market().rivals, now)
        self._departure.tick(now)
        due = self._unloading.next_deadline()
        if due is not None and now >= due:
            self._unloading.tick(now)
        if self._yielding.tick(now):
            self._watch.lost()
        if (reason := self._watch.verdict(now)) is not None:
            self._gone(self._hosting.worker_stuck(reason, now), reason)
            return True
        if self._watch.wants_trial:
            self._watch.wants_trial = False
            self._effects += map(ToWorker, self._hosting.trial(TRIAL) or ())
        return self._hosting.changed

    def _replace_given_up(self, now: float) -> None:
        for model_id in self._hosting.take_given_up():
            if not self._hub.given_up(model_id, now):
                self._adoption.given_up(model_id, now)

    def _gone(self, models: tuple[ModelId, ...], reason: str) -> None:
        for model_id in models:
            self._relay.withdraw(model_id, FailureCode.WORKER_LOST, reason)
        self._watch.lost()
