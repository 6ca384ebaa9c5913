"""What one run gives to a figure. Each function runs in a process of the pool, by job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from sims import endurance
from sims.cafe_hours import CafeHours, Tally
from sims.gossip_only import GossipNode, GossipWorld
from sims.invariants import Invariant, NoFaults
from sims.invariants_answers import EveryAnswer, HonestEnd, OnceInOrder, OracleIds
from sims.pool import Job, play
from sims.progress import Milestones
from sims.runner import Options, Result, Spectator, run
from sims.world import LogLine, World
from swarm.gossip.records import StaticRecord
from swarm.terms import LayerRange, NodeId

RIGHT_ANSWERS: tuple[type[Invariant], ...] = (
    OracleIds, OnceInOrder, HonestEnd, EveryAnswer, NoFaults,
)  # fmt: skip
FAULT_EVENTS = ("host.killed", "host.vanished", "worker.crash", "worker.wedge")
SETTLE_S = 60.0
"""Until a partial mesh has its links and has closed those it does not want."""
COUNTED_S = 60.0
CHANGE_PAUSE_S = 0.5
CHANGE_LIMIT_S = 30.0
MOVED_PAUSE_S = 2.0


@dataclass(slots=True)
class IdleClock(Spectator):
    """Virtual seconds per real one in the later half of a run, when all have joined."""

    half_s: float
    _world: World | None = None
    _from: tuple[float, float] | None = None

    def begins(self, world: World) -> None:
        self._world = world

    def at_rest(self) -> None:
        if self._from is None and self._world is not None:
            now_s = self._world.now_s
            if now_s >= self._world.began_s + self.half_s:
                self._from = now_s, time.perf_counter()

    def rate(self) -> float:
        """Once the run is over."""
        assert self._from is not None and self._world is not None
        virtual_s, real_s = self._from
        return (self._world.now_s - virtual_s) / (time.perf_counter() - real_s)


def idle_rate(job: Job) -> tuple[float, Result]:
    assert job.options.minutes is not None
    clock = IdleClock(30.0 * job.options.minutes)
    result = play(job, clock)
    return clock.rate(), result


@dataclass(slots=True)
class Loss(Spectator):
    """What one loss in a failover scenario cost. Milliseconds."""

    stalls_ms: list[float] = field(default_factory=list)
    detections_ms: list[float] = field(default_factory=list)
    """From the last loss before it to each reroute."""
    fault_count: int = 0
    reroute_count: int = 0
    passed: bool = True
    _fault_s: float | None = None

    def begins(self, world: World) -> None:
        world.listeners.append(self._heard)

    def _heard(self, line: LogLine) -> None:
        event = line.entry.event
        if event in FAULT_EVENTS:
            self.fault_count += 1
            self._fault_s = line.at_s
        elif event == "session.reroute":
            self.reroute_count += 1
            if self._fault_s is not None:
                self.detections_ms.append(1000 * (line.at_s - self._fault_s))
        elif event == "session.recovered":
            self.stalls_ms.append(float(str(line.entry.get("stall_ms"))))


def loss_of(job: Job) -> tuple[Job, Loss]:
    loss = Loss()
    loss.passed = play(job, loss).passed
    return job, loss


@dataclass(frozen=True, slots=True)
class Weather:
    """One world of `rough_weather`."""

    seed: int
    count: int
    loss: float
    minutes: float


def false_deaths(weather: Weather) -> tuple[Weather, Result]:
    story = endurance.rough_weather(weather.count, weather.loss, weather.minutes)
    told = Milestones(f"{weather.loss:.0%} lost, seed {weather.seed}")
    return weather, run("rough weather", story, weather.seed, Options(), (NoFaults,), told)


@dataclass(frozen=True, slots=True)
class Steady:
    """One world of `steady_answers`."""

    seed: int
    minutes: float
    wifi: bool


def false_cut_overs(steady: Steady) -> tuple[Steady, Result]:
    story = endurance.steady_answers(steady.minutes, wifi=steady.wifi)
    told = Milestones(f"{'Wi-Fi' if steady.wifi else 'wired'}, seed {steady.seed}")
    return steady, run("steady answers", story, steady.seed, Options(), RIGHT_ANSWERS, told)


@dataclass(frozen=True, slots=True)
class CafeDay:
    """One of `cafe_hours`."""

    seed: int
    knows: bool


def cafe_day(wished: CafeDay) -> tuple[CafeDay, Tally]:
    return wished, CafeHours(wished.seed, knows=wished.knows).run()


@dataclass(frozen=True, slots=True)
class Parting:
    seed: int
    count: int


def heal_seconds(parting: Parting) -> tuple[Parting, float]:
    seconds: list[float] = []
    run("healing", endurance.healing(parting.count, seconds), parting.seed, Options(), ())
    return parting, seconds[0] if seconds else float("inf")


# ---------------------------------------------------------------- gossip alone


@dataclass(frozen=True, slots=True)
class GossipJob:
    """`changes`: layer ranges that are changed one after the other, under `loss`."""

    seed: int
    count: int
    changes: int
    loss: float


@dataclass(frozen=True, slots=True)
class GossipMeasure:
    """Bytes a second that one node sends, idle and while everybody's figures move all the time;
    seconds until each change was known everywhere; real seconds that it all took."""

    job: GossipJob
    joined_s: float
    idle_bytes_s: float
    busy_bytes_s: float
    changes_s: tuple[float, ...]
    deaths: int
    virtual_s: float
    real_s: float


def gossip_measure(job: GossipJob) -> GossipMeasure:
    began, world = time.perf_counter(), GossipWorld(job.count, job.seed)
    start_s = world.now_s
    joined_s = world.run_until(world.is_one_view, 300.0, 0.5)
    world.run(SETTLE_S)
    idle = _bytes_s(world, COUNTED_S)
    _move_figures(world)
    world.run(COUNTED_S / 2)
    busy = _bytes_s(world, COUNTED_S)
    world.loss = job.loss
    changes = [_change_s(world, index) for index in range(job.changes)]
    return GossipMeasure(
        job=job,
        joined_s=joined_s,
        idle_bytes_s=idle,
        busy_bytes_s=busy,
        changes_s=tuple(changes),
        deaths=sum(node.deaths for node in world.nodes),
        virtual_s=world.now_s - start_s,
        real_s=time.perf_counter() - began,
    )


def _bytes_s(world: GossipWorld, duration_s: float) -> float:
    before = sum(node.bytes_sent for node in world.nodes)
    world.run(duration_s)
    sent = sum(node.bytes_sent for node in world.nodes) - before
    return sent / duration_s / len(world.nodes)


def _move_figures(world: GossipWorld) -> None:
    """From now on every node's figures move every two seconds, each in its own step."""
    rng = Random(world.seed)

    def move(node: GossipNode) -> None:
        node.measure()
        node.settle()
        world.at(world.now_s + MOVED_PAUSE_S, move, node)

    for node in world.nodes:
        world.at(world.now_s + rng.random() * MOVED_PAUSE_S, move, node)


def _change_s(world: GossipWorld, index: int) -> float:
    """One node serves other layers; seconds until the last of the others knows."""
    author = world.nodes[Random(f"{world.seed} {index}").randrange(len(world.nodes))]
    began_s = last_s = world.now_s
    missing = {node.id for node in world.nodes} - {author.id}
    before = author.static.shards[0].layers

    def learned(node: GossipNode, of: NodeId, record: StaticRecord) -> None:
        nonlocal last_s
        if of == author.id and record.shards[0].layers != before and node.id in missing:
            missing.discard(node.id)
            last_s = world.now_s

    world.on_learned = learned
    wider = endurance.layers_of(index)
    author.serve(wider if wider != before else LayerRange(0, 12))
    took_s = world.run_until(lambda: not missing, CHANGE_LIMIT_S, 0.05)
    world.run(CHANGE_PAUSE_S)
    return last_s - began_s if took_s < float("inf") else took_s


def events_of(results: Sequence[Result]) -> Counter[str]:
    total: Counter[str] = Counter()
    for result in results:
        total += result.events
    return total
