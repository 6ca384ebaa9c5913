"""The mixed scenario: a small swarm, a handful of requests, and whatever the seed thinks of.

First safety, while faults come one after the other; then all faults stop and every request must
end. Half of the seeds run on cables, the others have machines on Wi-Fi or a lossy network.
"""

from __future__ import annotations

from collections.abc import Callable

from sims import wire
from sims.node import SimNode
from sims.request import Outcome
from sims.scenarios import scenario
from sims.turns import next_turn
from sims.world import World

NODES_MAX = 8
TROUBLE_S = 20.0
DOWN_MAX = 3
"""Machines that are gone or asleep at one time."""
RANGES = (
    ((0, 4), (0, 4), (4, 8), (4, 8), (8, 12), (8, 12)),
    ((0, 6), (0, 6), (6, 12), (6, 12), (3, 9)),
    ((0, 12), (0, 12), (0, 4), (4, 8), (8, 12)),
    ((0, 5), (3, 8), (6, 12), (0, 7), (5, 12), (2, 10)),
    (None, None, None, None, None, None),
)
DOUBLE = (((0, 12), (0, 12)), ((0, 12), None), ((0, 9), (3, 12)), (None, None))
"""Of machines with two devices."""
COPIED = (
    ((0, 4), (4, 8), (8, 12)) * 3,
    ((0, 6), (6, 12)) * 4,
    ((0, 12), (0, 12), (0, 12)),
    ((0, 12), (0, 4), (4, 8), (8, 12), (0, 6), (6, 12)),
)
"""Ranges with machines to spare."""
LONG_TROUBLE_S = 30.0
OPEN_LONG = 2
"""So many long answers are under way at any time."""


@scenario("mixed", "nodes", "minutes")
async def mixed(world: World) -> None:
    """Anything may happen to anybody, for twenty seconds; then it stops."""
    rng = world.rng
    if rng.random() < 0.3:
        world.keep_small_outboxes()
    for layers in rng.choice(RANGES):
        world.start(world.add(world.serving(layers, weight_bytes=rng.choice((5500, 9000)))))
    while len(world.nodes) < (world.node_count or NODES_MAX):
        world.start(world.add(name=f"client{len(world.nodes) + 1}"))
    await _bad_day(world)


@scenario("two devices", "minutes")
async def two_devices(world: World) -> None:
    """Machines with a worker on each of two devices, beside plain ones; then as in mixed."""
    rng = world.rng
    if rng.random() < 0.3:
        world.keep_small_outboxes()
    for layers in rng.choice(DOUBLE):
        spec = world.serving(layers, devices=2, weight_bytes=rng.choice((7500, 9000)))
        world.start(world.add(spec))
    for layers in rng.choice(RANGES[:3])[:4]:
        world.start(world.add(world.serving(layers)))
    while len(world.nodes) < NODES_MAX:
        world.start(world.add(name=f"client{len(world.nodes) + 1}"))
    await _bad_day(world)


async def _bad_day(world: World) -> None:
    rng = world.rng
    _lay_cables(world)
    await world.settled()
    trouble = Trouble(world)
    for _ in range(2):
        _ask(world)
    end_s = world.now_s + (TROUBLE_S if world.minutes is None else world.minutes * 60.0)
    while world.now_s < end_s:
        await world.sleep(rng.expovariate(1 / rng.choice((0.05, 0.5, 2.0))))
        trouble.strike()
        if rng.random() < 0.15 and len(world.requests) < 8:
            (_ask_again if rng.random() < 0.4 else _ask)(world)
    trouble.repair()


@scenario("long answers", "minutes")
async def long_answers(world: World) -> None:
    """Answers that last long enough for idle machines to follow them, while anything happens."""
    rng = world.rng
    if rng.random() < 0.3:
        world.keep_small_outboxes()
    for layers in rng.choice(COPIED):
        world.start(world.add(world.serving(layers)))
    world.start(world.add(name="client"))
    _lay_cables(world)
    await world.settled()
    trouble = Trouble(world)
    end_s = world.now_s + (LONG_TROUBLE_S if world.minutes is None else world.minutes * 60.0)
    while world.now_s < end_s:
        while len([request for request in world.requests if not request.is_over]) < OPEN_LONG:
            running = world.running()
            if not running:
                break
            prompt, answer = rng.choice((9, 60, 300)), rng.choice((200, 600, 1200))
            world.ask(rng.choice(running), world.order(prompt, answer))
        await world.sleep(rng.expovariate(1 / rng.choice((0.3, 2.0, 4.0))))
        trouble.strike()
    trouble.repair()


def _lay_cables(world: World) -> None:
    kind = world.rng.random()
    if kind < 0.25:
        for node in world.rng.sample(world.nodes, 2):
            world.access(node, wire.WIFI)
    elif kind < 0.5:
        world.lossy(world.rng.choice((0.01, 0.05)))


def _ask(world: World) -> None:
    rng = world.rng
    running = world.running()
    if running:
        order = world.order(rng.choice((1, 7, 8, 9, 30, 60)), rng.choice((1, 10, 60)))
        world.ask(rng.choice(running), order)


def _ask_again(world: World) -> None:
    """Whoever has an answer goes on with the conversation, at the same node."""
    done = [r for r in world.requests if r.outcome is Outcome.FINISHED and r.origin.is_up]
    if done:
        last = world.rng.choice(done)
        world.ask(last.origin, next_turn(world, last, world.rng.choice((1, 9, 40)), 20))


class Trouble:
    """Draws faults and remembers what must be put right again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._kinds: tuple[tuple[Callable[[], None], int], ...] = (
            (self._stop_a_node, 6),
            (self._bring_one_back, 6),
            (self._kill_at_a_step, 4),
            (self._stall, 4),
            (self._suspend, 1),
            (self._break_a_worker, 4),
            (self._cut_two, 3),
            (self._part_the_swarm, 1),
            (self._heal, 3),
            (self._clog, 2),
            (self._reset, 2),
            (self._drift, 1),
            (self._hang_up, 1),
        )

    def strike(self) -> None:
        strikes = [kind for kind, weight in self._kinds for _ in range(weight)]
        self._rng.choice(strikes)()

    def repair(self) -> None:
        """Nothing is done to anybody from here on, and everybody is switched on."""
        self._world.heal_all()
        for node in self._world.nodes:
            if not node.is_running:
                self._world.restart(node)

    # ------------------------------------------------------------ faults

    def _stop_a_node(self) -> None:
        node = self._somebody()
        if node is not None and self._may_go():
            world = self._world
            self._rng.choice((world.kill, world.kill, world.vanish, world.leave))(node)

    def _bring_one_back(self) -> None:
        gone = [node for node in self._world.nodes if not node.is_running]
        if gone:
            node = self._rng.choice(gone)
            if self._rng.random() < 0.1:
                self._world.lose_incarnation(node)
            self._world.restart(node, new_key=self._rng.random() < 0.1)

    def _kill_at_a_step(self) -> None:
        node = self._somebody()
        if node is not None and self._may_go():
            victim = node
            self._world.at_step(node, self._rng.randint(1, 20), lambda: self._world.kill(victim))

    def _stall(self) -> None:
        node = self._somebody()
        if node is not None:
            self._world.stall(node, self._rng.choice((0.05, 0.2, 0.3, 1.0, 4.0)))

    def _suspend(self) -> None:
        node = self._somebody()
        if node is not None and self._may_go():
            self._world.suspend(node, self._rng.choice((0.3, 2.0, 15.0)))

    def _break_a_worker(self) -> None:
        node = self._somebody()
        if node is None:
            return
        device = self._rng.randrange(len(node.workers)) if len(node.workers) > 1 else 0
        if node.workers[device].process is not None:
            draw = self._rng.random()
            if draw < 0.5:
                self._world.crash_worker(node, device)
            elif draw < 0.7:
                self._world.wedge(node, device)
            else:
                factor = self._rng.choice((2.0, 5.0))
                self._world.slow_worker(node, factor, self._rng.uniform(0.5, 5.0), device)

    def _cut_two(self) -> None:
        a, b = self._rng.sample(self._world.nodes, 2)
        self._world.cut(a, b, one_way=self._rng.random() < 0.3)

    def _part_the_swarm(self) -> None:
        nodes = list(self._world.nodes)
        self._rng.shuffle(nodes)
        at = self._rng.randint(1, len(nodes) - 1)
        self._world.partition(nodes[:at], nodes[at:])

    def _heal(self) -> None:
        self._world.heal_all()

    def _clog(self) -> None:
        a, b = self._rng.sample(self._world.nodes, 2)
        self._world.clog(a, b, self._rng.uniform(0.01, 1.0), self._rng.uniform(0.1, 3.0))

    def _reset(self) -> None:
        a, b = self._rng.sample(self._world.nodes, 2)
        self._world.reset(a, b)

    def _drift(self) -> None:
        node = self._somebody()
        if node is not None:
            self._world.drift(node, self._rng.uniform(-200.0, 200.0))

    def _hang_up(self) -> None:
        open_ones = [request for request in self._world.requests if not request.is_over]
        if open_ones:
            self._world.hang_up(self._rng.choice(open_ones))

    # ------------------------------------------------------------ whom

    def _somebody(self) -> SimNode | None:
        running = self._world.running()
        return self._rng.choice(running) if running else None

    def _may_go(self) -> bool:
        down = sum(not n.is_running or n.machine.is_asleep for n in self._world.nodes)
        return down < DOWN_MAX
