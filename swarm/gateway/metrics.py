"""What a gateway tells Prometheus: counted from sessions and notes, or read off a snapshot.

Labels are bounded: models the swarm knows, causes and states from closed lists, routes of the
gateway's own table. Never a session, a node, a key or an address.
"""

from __future__ import annotations

import re
from collections import Counter as Tallies
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from swarm.effects import Failed, Finished, Generated, SessionEvent, Stalled, Started
from swarm.messages import FailureCode
from swarm.notes import Note
from swarm.snapshot import LegView, ModelView, Snapshot, Vitals
from swarm.terms import LAYERS_MAX, LinkKind, MemberState, ModelId, ShardState

Samples = Sequence[tuple[tuple[str, ...], float]]
"""Label values and a value each."""

MODELS_MAX = 64
"""Models told apart; what comes after them is counted as `OTHER`."""
OTHER = "other"
RUNNING = "running"
"""The phase of a session that has a route."""
TTFT_BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 30.0, 60.0)
ITL_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4, 0.8, 1.6)
STALL_BUCKETS_S = (0.05, 0.1, 0.2, 0.3, 0.45, 0.7, 1.0, 2.0, 5.0, 10.0, 20.0)
REROUTE_CAUSES = (
    *(code.name.lower().replace("_", " ") for code in FailureCode),
    "lost its place",
    "nothing comes through",
    "no answer to open",
)
WORKER_CAUSES = ("ended", "stuck")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric, as it is documented and made. `kind`: counter, gauge or histogram."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()


_MODEL = ("model",)
FAMILIES = {
    family.name: family
    for family in (
        Family("swarm_requests", "counter", "Sessions that ended.", ("model", "outcome")),
        Family("swarm_tokens", "counter", "Tokens of sessions.", ("model", "kind")),
        Family("swarm_ttft_seconds", "histogram", "From a request to its first token.", _MODEL),
        Family("swarm_itl_seconds", "histogram", "Between two tokens, without stalls.", _MODEL),
        Family("swarm_stall_seconds", "histogram", "Pauses that new routes caused.", _MODEL),
        Family("swarm_reroutes", "counter", "Changes of route in mid-answer.", ("cause",)),
        Family("swarm_worker_losses", "counter", "Workers that ended or hung.", ("cause",)),
        Family("swarm_http_requests", "counter", "Answered requests.", ("route", "status")),
        Family("swarm_build_info", "gauge", "Always 1.", ("version",)),
        Family("swarm_members", "gauge", "Nodes known here.", ("state",)),
        Family("swarm_links", "gauge", "Nodes linked to this one."),
        Family("swarm_links_measured", "gauge", "Own links, by how they go.", ("kind",)),
        Family("swarm_model_covered", "gauge", "1 while all of a model is served.", _MODEL),
        Family("swarm_model_layers_missing", "gauge", "Layers that nobody serves.", _MODEL),
        Family("swarm_model_replicas_min", "gauge", "Servers of the rarest layer.", _MODEL),
        Family("swarm_sessions_running", "gauge", "Own sessions with a route.", _MODEL),
        Family("swarm_sessions_waiting", "gauge", "Own sessions that seek one.", _MODEL),
        Family("swarm_hop_sessions", "gauge", "Sessions of all origins that run here."),
        Family("swarm_queue_seconds", "gauge", "Predicted wait before a step here.", _MODEL),
        Family(
            "swarm_step_seconds",
            "gauge",
            "One token's step on one hop, mean of sessions that run or ended lately.",
            ("model", "part"),
        ),
        Family("swarm_wire_bytes", "counter", "Bytes on links.", ("direction", "kind")),
        Family("swarm_loop_stalls", "counter", "Times that the node's loop was late."),
        Family("swarm_loop_stall_seconds", "counter", "How late it was in all."),
        Family("swarm_kv_used_bytes", "gauge", "KV memory in use here."),
        Family("swarm_kv_capacity_bytes", "gauge", "KV memory here."),
    )
}
"""All there are. What is counted is made here once; gauges are read off a snapshot when asked."""
_SAMPLE = re.compile(r"(.+?)(_total|_bucket|_sum|_count|_created)?")


def family_of(sample: str) -> Family | None:
    """The family that a sample, such as `swarm_itl_seconds_bucket`, belongs to."""
    match = _SAMPLE.fullmatch(sample)
    return FAMILIES.get(sample) or (FAMILIES.get(match[1]) if match else None)


class Models:
    """Gives each model its label; the first `MODELS_MAX` have their own."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= MODELS_MAX:
            return OTHER
        self._known.add(name)
        return name


class Meter:
    """One gateway's metrics, in a registry of their own."""

    def __init__(self, clock: Callable[[], float], snapshot: Callable[[], Snapshot]) -> None:
        # A series more for each, that says when it was first counted, is of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._clock = clock
        self._models = Models()
        self.requests = self._counter("swarm_requests")
        self.tokens = self._counter("swarm_tokens")
        self.ttft = self._histogram("swarm_ttft_seconds", TTFT_BUCKETS_S)
        self.itl = self._histogram("swarm_itl_seconds", ITL_BUCKETS_S)
        self.stall = self._histogram("swarm_stall_seconds", STALL_BUCKETS_S)
        self.reroutes = self._counter("swarm_reroutes")
        self.worker_losses = self._counter("swarm_worker_losses")
        self.http = self._counter("swarm_http_requests")
        for cause in (*REROUTE_CAUSES, OTHER):
            self.reroutes.labels(cause)
        for cause in WORKER_CAUSES:
            self.worker_losses.labels(cause)
        self.registry.register(StateCollector(snapshot, self._models))

    def observe(self, model: str, prompt_tokens: int, began: float | None) -> SessionMeter:
        """The observer of a session that begins now; its request came in at `began`."""
        began = self._clock() if began is None else began
        return SessionMeter(self, self._models.label(model), prompt_tokens, self._clock, began)

    def note(self, entry: Note) -> None:
        """A note of the node: some are worth a count."""
        match entry.event:
            case "session.reroute":
                self.reroutes.labels(reroute_cause(str(entry.get("cause")))).inc()
            case "session.preempted":
                self.reroutes.labels("preempted").inc()
            case "worker.lost":
                self.worker_losses.labels("ended").inc()
            case "worker.stuck":
                self.worker_losses.labels("stuck").inc()
            case _:
                pass

    def answered(self, route: str, status: int) -> None:
        self.http.labels(route, str(status)).inc()

    def _counter(self, name: str) -> Counter:
        family = FAMILIES[name]
        return Counter(name, family.text, family.labels, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        family = FAMILIES[name]
        return Histogram(name, family.text, family.labels, buckets=buckets, registry=self.registry)


class SessionMeter:
    """Turns one session's events into observations, as they are read."""

    def __init__(
        self,
        meter: Meter,
        model: str,
        prompt_tokens: int,
        clock: Callable[[], float],
        began: float,
    ) -> None:
        self._clock = clock
        self._began = began
        self._prompt_tokens = prompt_tokens
        self._prompt = meter.tokens.labels(model, "prompt")
        self._last: float | None = None
        self._is_stalled = False
        self._outcome = "gone"
        self._requests, self._model = meter.requests, model
        self._ttft, self._itl = meter.ttft.labels(model), meter.itl.labels(model)
        self._stall = meter.stall.labels(model)
        self._completion = meter.tokens.labels(model, "completion")
        self._cached = meter.tokens.labels(model, "cached")

    def see(self, event: SessionEvent) -> None:
        match event:
            case Generated():
                self._token(self._clock())
            case Stalled():
                self._is_stalled = True
            case Finished():
                self._outcome = "finished"
            case Failed():
                self._outcome = "failed"
            case Started():
                if self._prompt_tokens:
                    self._prompt.inc(self._prompt_tokens)
                    self._cached.inc(event.cached_tokens)
                self._prompt_tokens = 0

    def over(self) -> None:
        self._requests.labels(self._model, self._outcome).inc()

    def _token(self, now: float) -> None:
        self._completion.inc()
        if self._last is None:
            self._ttft.observe(now - self._began)
        elif self._is_stalled:
            self._stall.observe(now - self._last)
        else:
            self._itl.observe(now - self._last)
        self._last, self._is_stalled = now, False


class StateCollector(Collector):
    """Gauges that are read off a snapshot whenever somebody asks."""

    def __init__(self, snapshot: Callable[[], Snapshot], models: Models) -> None:
        self._snapshot = snapshot
        self._models = models

    def describe(self) -> Iterable[Metric]:
        """None ahead of time, or registering would take a snapshot."""
        return ()

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield from self._members(snapshot)
        yield from self._cover(snapshot)
        yield from self._work(snapshot)
        yield _samples("swarm_step_seconds", step_times(snapshot, self._models))
        yield from self._vitals(snapshot.vitals)

    def _vitals(self, vitals: Vitals) -> Iterator[Metric]:
        yield _samples(
            "swarm_wire_bytes",
            [
                ((direction, kind), count)
                for direction, counts in (("in", vitals.received_bytes), ("out", vitals.sent_bytes))
                for kind, count in counts
            ],
        )
        yield _samples("swarm_loop_stalls", [((), vitals.loop_stalls)])
        yield _samples("swarm_loop_stall_seconds", [((), vitals.loop_stall_s)])

    def _members(self, snapshot: Snapshot) -> Iterator[Metric]:
        states = Tallies(view.state for view in snapshot.nodes)
        yield _samples("swarm_members", [((state.value,), states[state]) for state in MemberState])
        yield _samples("swarm_links", [((), sum(view.linked for view in snapshot.nodes))])
        ways = Tallies(view.kind for view in snapshot.links if snapshot.node == view.node)
        yield _samples("swarm_links_measured", [((kind.text,), ways[kind]) for kind in LinkKind])
        yield _samples("swarm_build_info", [((snapshot.version,), 1)])

    def _cover(self, snapshot: Snapshot) -> Iterator[Metric]:
        known: dict[str, list[ModelView]] = {}
        for view in snapshot.models:
            known.setdefault(self._models.label(view.spec.name), []).append(view)
        yield _samples(
            "swarm_model_covered",
            [((label,), min(view.covered for view in views)) for label, views in known.items()],
        )
        yield _samples(
            "swarm_model_layers_missing",
            [
                ((label,), sum(len(layers) for view in views for layers in view.missing))
                for label, views in known.items()
            ],
        )
        replicas = _replicas(snapshot)
        yield _samples(
            "swarm_model_replicas_min",
            [
                ((label,), min(_rarest(view, replicas) for view in views))
                for label, views in known.items()
            ],
        )

    def _work(self, snapshot: Snapshot) -> Iterator[Metric]:
        running = Tallies({self._models.label(view.spec.name): 0 for view in snapshot.models})
        waiting = running.copy()
        for session in snapshot.sessions:
            label = self._models.label(session.model_name)
            (running if session.phase == RUNNING else waiting)[label] += 1
        for name, counts in (("running", running), ("waiting", waiting)):
            samples = [((label,), count) for label, count in counts.items()]
            yield _samples(f"swarm_sessions_{name}", samples)
        yield _samples("swarm_hop_sessions", [((), len(snapshot.hops))])
        yield _samples("swarm_queue_seconds", self._queue(snapshot))
        yield _samples("swarm_kv_used_bytes", [((), snapshot.kv_used_bytes)])
        yield _samples("swarm_kv_capacity_bytes", [((), snapshot.kv_capacity_bytes)])

    def _queue(self, snapshot: Snapshot) -> Samples:
        names = {view.spec.model_id: view.spec.name for view in snapshot.models}
        waits: dict[str, float] = {}
        for shard in (shard for node in snapshot.nodes if node.is_self for shard in node.shards):
            if shard.speed is not None:
                label = self._models.label(names.get(shard.info.model_id, OTHER))
                waits[label] = max(waits.get(label, 0.0), shard.speed.queue_s)
        return [((label,), wait_s) for label, wait_s in waits.items()]


def reroute_cause(text: str) -> str:
    """One of `REROUTE_CAUSES`, from what a session says; `OTHER` for what is none of them."""
    return next((cause for cause in REROUTE_CAUSES if cause in text), OTHER)


def _replicas(snapshot: Snapshot) -> Tallies[tuple[ModelId, int]]:
    """How many living nodes serve each layer of each model."""
    served: Tallies[tuple[ModelId, int]] = Tallies()
    for node in snapshot.nodes:
        for shard in node.shards if node.state is MemberState.ALIVE else ():
            info = shard.info
            if info.state is ShardState.SERVING:
                layers = range(info.layers.start, min(info.layers.stop, LAYERS_MAX))
                served.update((info.model_id, layer) for layer in layers)
    return served


def _rarest(view: ModelView, replicas: Tallies[tuple[ModelId, int]]) -> int:
    count = min(view.spec.layer_count, LAYERS_MAX)
    return min((replicas[view.spec.model_id, layer] for layer in range(count)), default=0)


@dataclass(slots=True)
class _StepSums:
    """Over hops and tokens."""

    steps: int = 0
    wait_s: float = 0.0
    compute_s: float = 0.0
    wire_steps: int = 0
    wire_s: float = 0.0

    def add(self, leg: LegView) -> None:
        for hop in leg.hops:
            self.steps += hop.tokens.rows
            self.wait_s += hop.tokens.wait_s
            self.compute_s += hop.tokens.compute_s
        if leg.wire_s is not None:
            self.wire_steps += leg.token_count * len(leg.route.hops)
            self.wire_s += leg.wire_s * leg.token_count


def step_times(snapshot: Snapshot, models: Models) -> Samples:
    """Where the time of a decode step goes on one hop: waiting, computing, on the wire."""
    sums: dict[str, _StepSums] = {}
    for session in (*snapshot.recent, *snapshot.sessions):
        of_model = sums.setdefault(models.label(session.model_name), _StepSums())
        for leg in session.legs:
            of_model.add(leg)
    found: list[tuple[tuple[str, ...], float]] = []
    for label, of_model in sums.items():
        if of_model.steps:
            found.append(((label, "wait"), of_model.wait_s / of_model.steps))
            found.append(((label, "compute"), of_model.compute_s / of_model.steps))
        if of_model.wire_steps:
            found.append(((label, "wire"), of_model.wire_s / of_model.wire_steps))
    return found


def _samples(name: str, samples: Samples) -> Metric:
    family = FAMILIES[name]
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = kind(name, family.text, labels=family.labels)
    for labels, value in samples:
        made.add_metric(labels, float(value))
    return made
