"""Does the own worker get on with what it was given? A wedged one takes orders and answers none.

Only silence over work counts: a worker without work may be silent for ever, one that answers
anything is alive. When the sessions of a wedged worker leave, they take the evidence along, so
that a row of this node's own is put in their place: a worker that is well answers it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.config import RoutingConfig, ShardConfig
from swarm.messages import (
    Begin,
    End,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    Ran,
    Run,
    RunFailed,
    StepKind,
    WorkerFailed,
)
from swarm.terms import ModelId, SessionId, ShardSpeed

TRIAL = SessionId("0" * 16)
"""The session of the row that proves the worker; those of others count from 1."""


@dataclass(slots=True)
class _Job:
    begin: Begin
    given: int = 0
    """Positions given to the worker, as `done` are those that came back."""
    done: int = 0


@dataclass(slots=True)
class _Long:
    """An inspection or a load under way."""

    what: str
    model_id: ModelId | None
    """Of a load."""
    patience_s: float


PATIENCE_DOUBLINGS_MAX = 3
"""Some quarter of an hour, by the usual config, for a worker that was given up three times."""


@dataclass(slots=True)
class _Wait:
    """Steps are under way, and none was finished since then."""

    since: float
    predicted_s: float = 0.0
    """Of the longest of them."""
    sessions: set[SessionId] = field(default_factory=set)


class WorkerWatch:
    """`speed_of`: the measured speed of a shard. `load_bytes_of`: the weights of a load."""

    def __init__(
        self,
        routing: RoutingConfig,
        shard: ShardConfig,
        speed_of: Callable[[ModelId], ShardSpeed | None],
        load_bytes_of: Callable[[Load], int],
    ) -> None:
        self._routing = routing
        self._shard = shard
        self._speed_of = speed_of
        self._load_bytes_of = load_bytes_of
        self._jobs: dict[SessionId, _Job] = {}
        self._long: dict[str, _Long] = {}
        self._lost_long = 0
        """Workers in a row that were lost over something long."""
        self._heard_at = 0.0
        """When a worker with something long in hand was given it, or last spoke of it."""
        self._wait: _Wait | None = None
        self._owes_steps = False
        """Something long was ordered behind steps, which the worker finishes first."""
        self._is_up = False
        """The present worker has said something."""
        self._is_unheard = False
        """Something long was ordered from a worker that is up and had nothing else of the kind: it
        says at once that it takes it up."""
        self._busy_until = 0.0
        """A step whose session was taken from it may keep it until then."""
        self.wants_trial = False
        """The work that was waited for is gone: somebody should `try` the worker."""

    # ------------------------------------------------------------ facts

    def sent(self, message: Message, now: float) -> None:
        """An order goes to the worker."""
        match message:
            case Begin():
                self._forget(message.session, now)
                self._jobs[message.session] = _Job(message)
            case Run():
                self._run(message, now)
            case End():
                self._forget(message.session, now)
                self._jobs.pop(message.session, None)
            case Inspect():
                what = f"inspecting {message.path}"
                self._begin_long(message.path, _Long(what, None, self._shard.load_quiet_s), now)
            case Load():
                bytes_s = self._load_bytes_of(message) / self._shard.load_floor_bytes_s
                patience_s = self._shard.load_quiet_s + bytes_s
                load = _Long(f"loading {message.path}", message.model_id, patience_s)
                self._begin_long(message.path, load, now)
            case _:
                pass

    def answered(self, message: Message, now: float) -> None:
        self._is_up = True
        match message:
            case Ran():
                self._done(message.session, message.generation, message.position + message.count)
            case RunFailed():
                self._done(message.session, message.generation, None)
            case LoadProgress():
                self._owes_steps = self._is_unheard = False
            case Inspected() | WorkerFailed():
                self._is_unheard = False
                self._long.pop(message.path, None)
                self._lost_long = 0
            case Loaded():
                loads = self._long.items()
                self._long = {p: long for p, long in loads if long.model_id != message.model_id}
            case _:
                return
        self._heard_at = now
        self.wants_trial = False
        if self._wait is not None:
            self._wait.since = now
            if not self._wait.sessions:
                self._end_wait()

    def lost(self) -> None:
        """The worker ended, and all it had with it."""
        self._lost_long = self._lost_long + 1 if self._long else 0
        self._jobs.clear()
        self._long.clear()
        self._is_up = self._is_unheard = False
        self._busy_until = 0.0
        self._end_wait()
        self.wants_trial = False

    def stalled(self, lag_s: float) -> None:
        """This node's own loop stood still and heard nothing meanwhile."""
        if self._wait is not None:
            self._wait.since += lag_s
        self._heard_at += lag_s

    # ------------------------------------------------------------ judgement

    def next_deadline(self) -> float | None:
        if self._is_at_long:
            return self._heard_at + self._long_patience_s()
        return None if self._wait is None else self._wait.since + self._patience_s(self._wait)

    def verdict(self, now: float) -> str | None:
        """Why the worker is wedged, in plain words, or None."""
        if self._is_at_long:
            if now < self._heard_at + self._long_patience_s():
                return None
            first = next(iter(self._long.values()))
            return f"it said nothing for {now - self._heard_at:.0f} s of {first.what}"
        wait = self._wait
        if wait is None or now < wait.since + self._patience_s(wait):
            return None
        return f"it has work and finished no step for {now - wait.since:.1f} s"

    # ------------------------------------------------------------ inner moves

    @property
    def _is_at_long(self) -> bool:
        """Its silence may be that of an inspection or a load."""
        return bool(self._long) and not self._owes_steps

    def _end_wait(self) -> None:
        self._wait, self._owes_steps = None, False

    def _begin_long(self, path: str, long: _Long, now: float) -> None:
        if not self._long:
            self._heard_at = now
            self._owes_steps = self._wait is not None
            self._is_unheard = self._is_up
        self._long[path] = long

    def _long_patience_s(self) -> float:
        """They are done one after the other, so that the longest is waited for. A machine that
        does much else may need longer than that for Python's start alone, and must not begin again
        and again: each time it may take twice as long."""
        if self._is_unheard:
            return max(0.0, self._busy_until - self._heard_at) + self._shard.first_word_s
        longest_s = max(long.patience_s for long in self._long.values())
        return longest_s * float(2 ** min(self._lost_long, PATIENCE_DOUBLINGS_MAX))

    def _patience_s(self, wait: _Wait) -> float:
        by_speed = self._routing.stuck_factor * wait.predicted_s
        return max(self._shard.worker_stuck_min_s, by_speed)

    def _run(self, run: Run, now: float) -> None:
        job = self._jobs.get(run.session)
        if job is None or job.begin.generation != run.generation:
            return
        job.given = run.position + run.count
        if self._wait is None:
            self._wait = _Wait(now)
        self._wait.sessions.add(run.session)
        self._wait.predicted_s = max(self._wait.predicted_s, self._predicted_s(run, job.begin))

    def _done(self, session: SessionId, generation: int, stop: int | None) -> None:
        """Rows up to `stop` came back; None: no more will come."""
        job = self._jobs.get(session)
        if job is None or job.begin.generation != generation:
            return
        job.done = job.given if stop is None else stop
        if self._wait is not None and job.done >= job.given:
            self._wait.sessions.discard(session)

    def _forget(self, session: SessionId, now: float) -> None:
        """The worker drops what it had of the session; had it long enough to have answered?"""
        wait = self._wait
        if wait is None or session not in wait.sessions:
            return
        wait.sessions.discard(session)
        if wait.sessions:
            return
        self._busy_until = wait.since + self._patience_s(wait)
        slow_s = max(self._routing.slow_min_s, self._routing.slow_factor * wait.predicted_s)
        if now - wait.since >= slow_s and session != TRIAL:
            self.wants_trial = True
        else:
            self._end_wait()

    def _predicted_s(self, run: Run, begin: Begin) -> float:
        speed = self._speed_of(begin.model_id)
        if speed is None:
            return 0.0
        is_prefill = run.kind is StepKind.PREFILL
        per_row = speed.prefill_s_per_token_layer if is_prefill else speed.decode_s_per_layer
        return len(begin.layers) * run.count * per_row + (speed.head_s if begin.head else 0.0)
