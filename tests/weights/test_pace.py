"""How fast weights leave a node that has other things to do."""

from __future__ import annotations

import math

from swarm.weights.pace import Effort, Pacer


def test_a_rate_is_kept_without_saving_up() -> None:
    pacer = Pacer()
    waits = [pacer.wait_s(10, 100.0, 0.0) for _ in range(4)]
    assert waits == [0.0, 0.1, 0.2, 0.30000000000000004]
    assert pacer.wait_s(10, 100.0, 50.0) == 0.0, "what was not used is gone"
    assert pacer.wait_s(10, 0.0, 50.0) == 0.0, "freely"
    assert pacer.wait_s(10, math.inf, 60.0) == 0.0
    assert pacer.wait_s(10, math.inf, 60.0) == 0.0


def test_work_is_done_in_a_share_of_the_time() -> None:
    effort = Effort(0.05, 5.0)
    assert effort.wait_s(0.0) == 0.0
    now, work_s = 0.0, 0.0
    while now < 10.0:
        effort.spent(0.001, now)
        work_s += 0.001
        now += effort.wait_s(now)
    assert math.isclose(work_s / now, 0.05)
    effort.spent(60.0, now)
    assert effort.wait_s(now) == 5.0, "nobody waits for ever"
    assert effort.wait_s(now + 60.0) == 0.0
