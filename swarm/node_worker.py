"""A node's own worker: what it says goes to whom it concerns, and a wedged one is replaced."""

from __future__ import annotations

from swarm.config import Config
from swarm.effects import Effect, ToWorker
from swarm.hosting import Hosting
from swarm.messages import End, FailureCode, Message, Ran, RunFailed
from swarm.routing.relay import Relay
from swarm.routing.worker_watch import TRIAL, WorkerWatch
from swarm.terms import ModelId


class WorkerCare:
    def __init__(self, config: Config, hosting: Hosting, relay: Relay) -> None:
        self._hosting = hosting
        self._relay = relay
        self._watch = WorkerWatch(
            config.routing,
            config.shard,
            hosting.speed_of,
            lambda load: hosting.weight_bytes_of(load.model_id),
        )
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._watch.next_deadline()

    # ------------------------------------------------------------ facts in

    def sent(self, order: Message, now: float) -> None:
        """An order has gone to the worker."""
        self._watch.sent(order, now)

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
                self._hosting.worker_message(message, now)
                return True
        return False

    def lost(self, reason: str, now: float) -> None:
        self._gone(self._hosting.worker_lost(reason, now), reason)

    def stalled(self, lag_s: float) -> None:
        """The own loop stood still and heard nothing meanwhile."""
        self._watch.stalled(lag_s)

    def tick(self, now: float) -> bool:
        """Judge the worker; True when it was given up."""
        if (reason := self._watch.verdict(now)) is not None:
            self._gone(self._hosting.worker_stuck(reason, now), reason)
            return True
        if self._watch.wants_trial:
            self._watch.wants_trial = False
            self._effects += map(ToWorker, self._hosting.trial(TRIAL) or ())
        return False

    def _gone(self, models: tuple[ModelId, ...], reason: str) -> None:
        for model_id in models:
            self._relay.withdraw(model_id, FailureCode.WORKER_LOST, reason)
        self._watch.lost()
