"""Run one scenario under one seed: first the bad day, then calm, then judgement."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sims.invariants import Invariant, NoFaults, Violation
from sims.invariants_answers import (
    Credits,
    EveryAnswer,
    HonestEnd,
    KvAgrees,
    NothingLeft,
    OnceInOrder,
    OracleIds,
    OutboxBudget,
    leftovers,
)
from sims.invariants_limits import BoundedTalk, NoTaskLeft, PacedDials, ShortQueues
from sims.invariants_members import (
    CopiesAreTold,
    LivesApart,
    NoFalseCopies,
    NoLivingBuried,
    NoResurrection,
    NoUnfairPenalty,
    ViewsConverge,
)
from sims.invariants_moves import MovesKeepCover
from sims.invariants_pace import BoundedStall, CausedReroutes
from sims.loop import Deadlock, Livelock
from sims.machine import SECOND_NS
from sims.request import Outcome
from sims.world import LogLine, World

ALL: tuple[type[Invariant], ...] = (
    OracleIds, OnceInOrder, HonestEnd, EveryAnswer, KvAgrees, NothingLeft,
    OutboxBudget, Credits, BoundedStall, CausedReroutes,
    NoLivingBuried, NoResurrection, LivesApart, ViewsConverge, NoUnfairPenalty, NoFalseCopies,
    CopiesAreTold, NoTaskLeft, ShortQueues, PacedDials, BoundedTalk, NoFaults,
    MovesKeepCover,
)  # fmt: skip

ANSWER_LIMIT_S = 60.0
"""After the last fault every request ends within this time (the liveness bound)."""
CALM_LIMIT_S = 40.0
"""After that everything is freed and all views agree within this time."""
COLLECT_S = 120.0
"""Virtual seconds between two collections of garbage: most runs are shorter, and have none."""
STORY_LIMIT_S = 3 * 3600.0

Story = Callable[[World], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run. `violations` is empty where all held."""

    scenario: str
    seed: int
    violations: tuple[Violation, ...]
    trace_hash: str
    virtual_s: float
    real_s: float
    steps: int
    outcomes: Counter[str]
    events: Counter[str]
    """How often each kind of note was written, over all nodes: what has really happened."""
    log: tuple[LogLine, ...] = field(repr=False, default=())

    @property
    def passed(self) -> bool:
        return not self.violations


@dataclass(frozen=True, slots=True)
class Options:
    """`node_count`, `minutes`: wishes, for stories that heed them."""

    node_count: int | None = None
    minutes: float | None = None
    fifo: bool = False
    keep_log: bool = False


class Spectator:
    """Looks at a run and changes nothing of it: with and without one it has the same trace."""

    @property
    def looks_at_rest(self) -> bool:
        """Whether `at_rest` wants to be called, which would be at every moment of the run."""
        return type(self).at_rest is not Spectator.at_rest

    def begins(self, world: World) -> None:
        """Before anything has happened."""

    def at_rest(self) -> None:
        """All that was ready at this moment has run; time moves on when this returns."""


def run(
    name: str,
    story: Story,
    seed: int,
    options: Options = Options(),
    invariants: Sequence[type[Invariant]] = ALL,
    spectator: Spectator | None = None,
) -> Result:
    """Raises nothing for what goes wrong in the world: that is a violation."""
    with _freed_at_once():
        return _run(name, story, seed, options, invariants, spectator)


@contextmanager
def _freed_at_once() -> Iterator[None]:
    """A world is all cycles. Never looked at while it lives, it is young when it ends, and cheap
    collections free it: the first one ends its coroutines, the second finds it unused. What was
    there before is not looked at by the collections of a long run."""
    collects = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect(0)
        gc.collect(1)
        gc.unfreeze()
        if collects:
            gc.enable()


def _run(
    name: str,
    story: Story,
    seed: int,
    options: Options,
    invariants: Sequence[type[Invariant]],
    spectator: Spectator | None,
) -> Result:
    started = time.perf_counter()
    world = World(seed, fifo=options.fifo)
    world.node_count, world.minutes = options.node_count, options.minutes
    violations: list[Violation] = []
    watchers = [kind(world, violations.append) for kind in invariants]
    world.watchers += watchers
    if spectator is not None:
        spectator.begins(world)
    try:
        _play(world, story, violations, spectator)
        if not violations:
            for watcher in watchers:
                watcher.on_end()
    finally:
        world.close()
    return Result(
        scenario=name,
        seed=seed,
        violations=tuple(violations),
        trace_hash=world.loop.trace_hash,
        virtual_s=world.now_s - world.began_s,
        real_s=time.perf_counter() - started,
        steps=world.loop.step_count,
        outcomes=Counter(request.outcome.value for request in world.requests),
        events=_events(world),
        log=tuple(world.log) if options.keep_log or violations else (),
    )


def _play(
    world: World, story: Story, violations: list[Violation], spectator: Spectator | None
) -> None:
    """The story, then calm until all is answered and freed. Stops at the first violation."""
    loop = world.loop
    whole = loop.spawn(loop.world, _whole(world, story))
    cover = loop.spawn(loop.world, world.cover.watch())

    look = spectator.at_rest if spectator is not None and spectator.looks_at_rest else None

    pause_ns = int(COLLECT_S * SECOND_NS)
    collect_ns = loop.now_ns + pause_ns
    is_done = whole.done

    def is_over() -> bool:
        """Asked at every moment of the run."""
        nonlocal collect_ns
        if loop.now_ns >= collect_ns:
            collect_ns += pause_ns
            loop.collect()
        if look is not None:
            look()
        return is_done() or bool(violations)

    try:
        loop.run_until(is_over, STORY_LIMIT_S)
        if whole.done():
            whole.result()
        elif not violations:
            violations.append(Violation(world.now_s, "the story ends", "it does not"))
    except (Deadlock, Livelock, AssertionError) as error:
        violations.append(Violation(world.now_s, type(error).__name__.lower(), str(error)))
    finally:
        cover.cancel()
        whole.cancel()


async def _whole(world: World, story: Story) -> None:
    await story(world)
    world.calm_down()
    await world.until(world.is_answered, ANSWER_LIMIT_S)
    world.became_clean = await world.until(lambda: _is_clean(world), CALM_LIMIT_S, step_s=0.25)
    await _ask_once_more(world)


async def _ask_once_more(world: World) -> None:
    """When all is well again the swarm must answer: a swarm that refuses everybody is no use."""
    asked = next((n for n in world.running() if n.is_up and world.cover.is_covered(n)), None)
    if asked is not None and world.became_clean:
        request = world.ask(asked, world.order(9, 3))
        await world.until(lambda: request.is_over, ANSWER_LIMIT_S)
        await world.until(lambda: not any(leftovers(asked).values()), CALM_LIMIT_S)
        await world.until(lambda: _is_freed(world), CALM_LIMIT_S)
        world.requests.remove(request)
        assert request.outcome is Outcome.FINISHED, f"all is well, but {request}: {request.error!r}"


def _is_freed(world: World) -> bool:
    return not any(any(leftovers(node).values()) for node in world.running())


def _is_clean(world: World) -> bool:
    running = world.running()
    if not _is_freed(world):
        return False
    ids = {node.id for node in running}
    return all(world.alive_in(node) == ids for node in running) and world.is_one_view()


def _events(world: World) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (_, event), count in world.note_counts.items():
        counts[event] += count
    counts["requests lost with their origin"] = sum(
        request.outcome is Outcome.ORIGIN_LOST for request in world.requests
    )
    return counts
