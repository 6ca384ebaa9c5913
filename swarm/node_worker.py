"""A node's own workers: what they say goes to whom it concerns, a wedged one is replaced, and a
node that has no model may get one of the swarm's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
from swarm.crew import Crew, Deal, Surveyed, Told
from swarm.departure import Departure
from swarm.devices import device_names
from swarm.effects import Effect, ToWorker
from swarm.fetch_facts import Fact
from swarm.hosted import Market, trial_orders
from swarm.hosting import Hosting, Wish
from swarm.hub_wants import HubWants
from swarm.messages import Begin, End, FailureCode, Load, Loaded, Message, Ran, Run, RunFailed
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
        count = hosting.device_count
        self._crew = Crew(device_names(config.shard), hosting.parts_of) if count > 1 else None
        self._watches = [self._watch_over(config, device) for device in range(count)]
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

    def _watch_over(self, config: Config, device: int) -> WorkerWatch:
        hosting, crew = self._hosting, self._crew
        speed_of = partial(crew.speed_of, device) if crew is not None else hosting.speed_of
        return WorkerWatch(
            config.routing,
            config.shard,
            speed_of,
            lambda load: hosting.weight_bytes_of(load.model_id),
        )

    @property
    def has_effects(self) -> bool:
        return bool(self._effects) or any(part.has_effects for part in self._parts)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects + [effect for part in self._parts for effect in part.take_effects()]

    def next_deadline(self) -> float | None:
        dues = [watch.next_deadline() for watch in self._watches]
        dues += [part.next_deadline() for part in self._parts]
        moments = [due for due in dues if due is not None]
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
                is_dropped = self._yielding.forget(name) or self._hub.cancel(name)
                if not is_dropped or self._hosting.has(name):
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

    def somebody_silent(self, now: float) -> None:
        """Nothing comes from a peer any more."""
        self._mover.somebody_silent(now)

    def orders(self, effect: ToWorker, now: float) -> list[Effect]:
        """What goes to which worker, now, for an order of the core."""
        message = effect.message
        if isinstance(message, Load) and (self._crew is None or effect.device is None):
            self._loading[message.model_id] = now
        if self._crew is None or effect.device is not None:
            self._watches[effect.device or 0].sent(message, now)
            return [effect]
        return self._dealt(self._crew.order(message), now)

    def _dealt(self, deal: Deal, now: float) -> list[Effect]:
        for device, message in deal.orders:
            self._watches[device].sent(message, now)
        return [ToWorker(message, device) for device, message in deal.orders]

    def message(self, message: Message, now: float, device: int = 0) -> bool:
        """Whether what this node serves may have changed by it."""
        self._watches[device].answered(message, now)
        if isinstance(message, Ran | RunFailed) and message.session == TRIAL:
            self._order(End(TRIAL), device)
            return False
        if self._crew is None:
            return self._told(message, now)
        deal = self._crew.answered(device, message)
        for other, order in deal.orders:
            self._order(order, other)
        told = [self._told(word, now) for word in deal.told]
        return any(told)

    def _told(self, word: Told, now: float) -> bool:
        match word:
            case Ran():
                self._relay.ran(word, now)
                return False
            case RunFailed():
                self._relay.run_failed(word)
                return False
            case Surveyed(found):
                self._hosting.inspected(found, now)
            case Loaded():
                if word.model_id in self._loading:
                    took_s = now - self._loading.pop(word.model_id)
                    self._hosting.load_took(word.model_id, took_s)
                self._hosting.worker_message(word, now)
            case _:
                self._hosting.worker_message(word, now)
        self._replace_given_up(now)
        self._hub.news(now)
        if isinstance(word, Loaded):
            self._mover.news(now)
        return True

    def lost(self, reason: str, now: float, device: int = 0) -> None:
        self._gone(self._hosting.worker_lost(reason, now, device), reason, device)

    def stalled(self, lag_s: float) -> None:
        """The own loop stood still and heard nothing meanwhile."""
        for watch in self._watches:
            watch.stalled(lag_s)

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
            for device in range(len(self._watches)):
                self._lose(device)
        given_up = [self._judge(device, watch, now) for device, watch in enumerate(self._watches)]
        return any(given_up) or self._hosting.changed

    def _replace_given_up(self, now: float) -> None:
        for model_id in self._hosting.take_given_up():
            if not self._hub.given_up(model_id, now):
                self._adoption.given_up(model_id, now)

    def _judge(self, device: int, watch: WorkerWatch, now: float) -> bool:
        if (reason := watch.verdict(now)) is not None:
            self._gone(self._hosting.worker_stuck(reason, now, device), reason, device)
            return True
        if watch.wants_trial:
            watch.wants_trial = False
            for order in self._trial_on(device) or ():
                self._order(order, device)
        return False

    def _order(self, order: Message, device: int) -> None:
        self._effects.append(ToWorker(order, None if self._crew is None else device))

    def _trial_on(self, device: int) -> tuple[Begin, Run] | None:
        if self._crew is None:
            return self._hosting.trial(TRIAL)
        loaded = self._crew.served_on(device)
        h = None if loaded is None else self._hosting.of(loaded.model_id)
        if loaded is None or h is None or h.inspected is None:
            return None
        return trial_orders(h.inspected, loaded, TRIAL)

    def _gone(self, models: tuple[ModelId, ...], reason: str, device: int) -> None:
        for model_id in models:
            self._relay.withdraw(model_id, FailureCode.WORKER_LOST, reason)
        self._lose(device)

    def _lose(self, device: int) -> None:
        if self._crew is not None:
            self._crew.lost(device)
        self._watches[device].lost()
