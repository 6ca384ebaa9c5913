"""The losses of `scripts/bench_detection` in simulated time, and how they compare with real ones.

What real hosts have and a simulation cannot know (layers, measured speeds, how long the kernel
takes over a killed process, and daemons beside it over a broken link) is given to it as a
`Setting`. The story is then told as there: the
last hop of an answer is killed or unplugged, and an idle host is unplugged; the time runs from the
loss to the note of whoever notices.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sims.loop import SimHandle, SimLoop
from sims.machine import SECOND_NS, Process
from sims.node import SimNode
from sims.request import Outcome
from sims.wire import Profile
from sims.worker import Speed
from sims.world import LogLine, World
from swarm.config import sim
from swarm.terms import short

KILLED = "process killed"
UNPLUGGED = "host unplugged"
SUSPECTED = "idle: suspect"
BURIED = "idle: dead"
CASES = (KILLED, UNPLUGGED, SUSPECTED, BURIED)
"""The first two in mid-answer, to the origin's reroute; the others to each survivor's verdict."""
TOLERANCE = 0.15
"""Medians agree within this part of the real one."""

TOKENS = 24
TOKENS_BEFORE_LOSS = 6
PHASE_S = 0.05
"""A loss comes up to so long after a token: at any moment of a step."""
IDLE_S = 3.0
"""An idle swarm is left alone this long, and up to `BEAT_S` more, before a host is unplugged: at
any moment between two heartbeats."""
BEAT_S = 0.5
NOTICE_LIMIT_S = 30.0
STORY_LIMIT_S = 4 * 3600.0
LOOK_S = 0.001
BRIDGE = Profile(
    "bridge", ((0.0, 15e-6), (0.5, 25e-6), (0.95, 60e-6), (0.999, 200e-6), (1.0, 500e-6)), 1.25e9
)
"""Between network namespaces of one machine, one way."""

Samples = dict[str, list[float]]
"""Milliseconds by case."""


@dataclass(frozen=True, slots=True)
class Host:
    """`layers` None: it serves nothing. The first host of a setting is the origin."""

    name: str
    layers: tuple[int, int] | None = None
    speed: Speed = Speed()


@dataclass(frozen=True, slots=True)
class Setting:
    """`teardowns_s`: measured times from SIGKILL until the process's sockets were closed.

    `reactions_s`: measured times from then until others than the origin had noticed: what waking
    takes beside the remains. `victims`: names of hosts, which idle losses go over in turn.
    """

    layer_count: int
    hosts: tuple[Host, ...]
    victims: tuple[str, ...]
    teardowns_s: tuple[float, ...]
    reactions_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case on both sides, milliseconds."""

    case: str
    real: tuple[float, ...]
    simulated: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Of the medians, simulated to real."""
        return statistics.median(self.simulated) / statistics.median(self.real)

    @property
    def quartile_ratios(self) -> tuple[float, ...]:
        pairs = zip(quartiles(self.simulated), quartiles(self.real), strict=True)
        return tuple(simulated / real for simulated, real in pairs)

    @property
    def agrees(self) -> bool:
        return abs(self.ratio - 1.0) <= TOLERANCE


def compare(
    real: Mapping[str, Sequence[float]], simulated: Mapping[str, Sequence[float]]
) -> list[Comparison]:
    return [Comparison(case, tuple(real[case]), tuple(simulated[case])) for case in CASES]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Of a single value, that value thrice."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def simulate(setting: Setting, runs: int, seed: int) -> Samples:
    """`runs` losses of each kind in one swarm. Raises AssertionError where an answer is lost."""
    loop = WakingLoop(seed)
    world = World(seed, config=sim(), layer_count=setting.layer_count, loop=loop)
    world.net.profile = BRIDGE
    story = _Story(world, loop, setting)
    whole = world.loop.spawn(world.loop.world, story.tell(runs))
    try:
        is_over = world.loop.run_until(whole.done, STORY_LIMIT_S)
        assert is_over, "the story does not end"
        whole.result()
    finally:
        world.close()
    return story.samples


class WakingLoop(SimLoop):
    """A process that rested runs one of `lags_s` after something is there for it; none: at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lags_s: tuple[float, ...] = ()
        self._draw = self.random("lags")

    def _come_due(self, handle: SimHandle) -> None:
        process = handle.process
        rested = self.lags_s and process is not self.world and not process.is_queued
        super()._come_due(handle)
        if rested and process.is_queued:
            last = self._runnable.pop()
            assert last is process
            lag_ns = int(self._draw.choice(self.lags_s) * SECOND_NS)
            self.post(self.now_ns + lag_ns, self.world, self._wake, process)

    def _wake(self, process: Process) -> None:
        process.is_queued = False
        self._enqueue(process)


@dataclass(slots=True)
class _Story:
    world: World
    loop: WakingLoop
    setting: Setting
    samples: Samples = field(default_factory=lambda: {case: [] for case in CASES})
    _lines: list[LogLine] = field(default_factory=list)
    _nodes: dict[str, SimNode] = field(default_factory=dict)

    async def tell(self, runs: int) -> None:
        self.world.listeners.append(self._hear)
        for host in self.setting.hosts:
            spec = self.world.serving(host.layers, speed=host.speed)
            if host.layers is None:
                spec = type(spec)()
            self._nodes[host.name] = self.world.add(spec, name=host.name)
            self.world.start(self._nodes[host.name])
        await self.world.settled()
        for _ in range(runs):
            self.samples[KILLED].append(await self._in_use(self._kill))
        for _ in range(runs):
            self.samples[UNPLUGGED].append(await self._in_use(self._unplug))
        for run in range(runs):
            victims = self.setting.victims
            await self._idle(self._nodes[victims[run % len(victims)]])

    async def _in_use(self, lose: Callable[[SimNode], Awaitable[None]]) -> float:
        world, origin = self.world, self._nodes[self.setting.hosts[0].name]
        request = world.ask(origin, world.order(1, TOKENS))
        await request.reached(TOKENS_BEFORE_LOSS)
        victim = world.node_of(request.hops[-1])
        await world.sleep(world.rng.random() * PHASE_S)
        moment_s = world.now_s
        await lose(victim)
        told_s = await self._noted("session.reroute", origin, moment_s)
        self.loop.lags_s = ()
        await request.over()
        assert request.outcome is Outcome.FINISHED, request
        await self._back(victim)
        return 1000 * (told_s - moment_s)

    async def _idle(self, victim: SimNode) -> None:
        world = self.world
        await world.sleep(IDLE_S + world.rng.random() * BEAT_S)
        survivors = [node for node in world.running() if node is not victim]
        moment_s = world.now_s
        await self._unplug(victim)
        for case, event in ((SUSPECTED, "member.suspect"), (BURIED, "member.dead")):
            for node in survivors:
                told_s = await self._noted(event, node, moment_s, of=victim)
                self.samples[case].append(1000 * (told_s - moment_s))
        world.heal_all()
        await world.settled()

    # ------------------------------------------------------------ small parts

    async def _kill(self, victim: SimNode) -> None:
        """The cores are busy with the remains until somebody has acted on it."""
        self.loop.lags_s = self.setting.reactions_s
        self.world.kill(victim, teardown_s=self.world.rng.choice(self.setting.teardowns_s))

    async def _unplug(self, victim: SimNode) -> None:
        others = [node for node in self.world.nodes if node is not victim]
        self.world.partition([victim], others)

    async def _back(self, victim: SimNode) -> None:
        """A new incarnation, as there."""
        self.world.kill(victim)
        self.world.heal_all()
        await self.world.sleep(0.2)
        self.world.restart(victim)
        await self.world.settled()

    def _hear(self, line: LogLine) -> None:
        if line.entry.event in ("session.reroute", "member.suspect", "member.dead"):
            self._lines.append(line)

    async def _noted(
        self, event: str, by: SimNode, since_s: float, of: SimNode | None = None
    ) -> float:
        """When `by` first said so since then, of `of` where one is given."""

        def look() -> list[float]:
            return [
                line.at_s
                for line in self._lines
                if line.at_s >= since_s
                and line.who == by.machine.name
                and line.entry.event == event
                and (of is None or line.entry.get("node") == short(of.id))
            ]

        found = await self.world.until(lambda: bool(look()), NOTICE_LIMIT_S, LOOK_S)
        assert found, f"{by} did not say {event}"
        return look()[0]
