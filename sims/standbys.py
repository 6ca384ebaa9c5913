"""Stories of idle machines that follow an answer, and of what that saves."""

from __future__ import annotations

from itertools import pairwise

from sims.node import SimNode
from sims.request import Outcome, Request
from sims.scenarios import PAIRS, hop, scenario
from sims.world import World
from swarm.effects import Generated

CONTEXT = 600
ANSWER = 1500
SETTLE_S = 0.5
"""Who has caught up still has some rows to run, which this model's worker does one by one."""
REPLAY_SHARE = 0.25
"""Of what a rebuild of the whole context takes: a pause over a standby is far below that."""
PACE_FACTOR = 2.0
PACE_MARGIN_S = 0.020
"""The largest gap while a hop hands over, in time between two tokens and beyond."""


async def followed(world: World, request: Request, count: int) -> None:
    """Until so many standbys have caught up."""
    before = _told(world)
    await world.until(lambda: _told(world) >= before + count or request.is_over, 20.0, 0.01)
    assert not request.is_over, f"only {_told(world) - before} standbys caught up"


def _told(world: World) -> int:
    return sum(n for (_, event), n in world.note_counts.items() if event == "session.standby")


@scenario("standby")
async def standby(world: World) -> None:
    """Three idle machines follow an answer; two of its hops are lost in turn.

    Each loss costs its detection and a few rows, however long the context is. What has replaced
    a hop is followed in its turn, by the lost machine when it is back.
    """
    world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(await world.client(), world.order(CONTEXT, ANSWER))
    await request.reached(1)
    first = request.heard[-1].at_s - request.asked_s
    for round_number in range(2):
        await followed(world, request, 3 if round_number == 0 else 1)
        await world.sleep(SETTLE_S)
        victim = hop(world, request, world.rng.randrange(3))
        (world.crash_worker if world.rng.random() < 0.2 else world.kill)(victim)
        at = len(request.tokens)
        await request.reached(min(ANSWER, at + world.rng.randint(5, 40)))
        if not victim.is_running:
            world.restart(victim)
    await request.over()
    assert request.finished is not None, request
    stalls = request.finished.stats.stall_s
    assert len(stalls) == 2, stalls
    assert max(stalls) < REPLAY_SHARE * first, f"{max(stalls):.3f} s, the prompt took {first:.3f} s"


@scenario("hand over")
async def hand_over(world: World) -> None:
    """A hop is told to leave in mid-answer; its standby is warmed first, and no reader notices."""
    world.swarm(*PAIRS)
    await world.settled()
    request = world.ask(await world.client(), world.order(CONTEXT, ANSWER))
    await request.reached(world.rng.choice((5, 150)))
    leaver = hop(world, request, world.rng.randrange(3))
    world.leave(leaver)
    await request.over()
    assert request.outcome is Outcome.FINISHED, request
    await _gone(world, leaver)
    times = [heard.at_s for heard in request.heard if isinstance(heard.event, Generated)]
    gaps = sorted(b - a for a, b in pairwise(times))
    median = gaps[len(gaps) // 2]
    limit = PACE_FACTOR * median + PACE_MARGIN_S
    assert gaps[-1] <= limit, f"a gap of {gaps[-1] * 1000:.1f} ms, usual are {median * 1000:.1f}"


async def _gone(world: World, node: SimNode) -> None:
    await world.until(lambda: not node.is_running, 20.0, 0.05)
    assert not node.is_running, "it waits for nothing"
