"""Many turns against a swarm in which every so often a random node is killed and started again,
as long as the rest still covers the model. Every turn must be answered, with the ids of an
undisturbed run, and nothing may be left at the end.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rig import console, end_orderly, print_table, spread
from prompts import PROMPTS, long_prompt
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

CUTS = {2: ["0:15", "15:30"], 3: ["0:10", "10:20", "20:30"]}
MEMORY_SLACK_BYTES = 24 * 1024 * 1024
"""Growth of the gateway's daemon that is put down to the allocator and bounded histories."""


@dataclass(slots=True)
class Tally:
    turns: int = 0
    wrong: list[str] = field(default_factory=list)
    reroutes: int = 0
    stalls_ms: list[float] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    logs: str = ""
    """The nodes' last log lines, where a turn went wrong."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds."""

    memory_bytes: int
    descriptors: int
    threads: int


def usage(node: Node) -> Usage:
    process = psutil.Process(node.process.pid)
    return Usage(process.memory_info().rss, process.num_fds(), process.num_threads())


def bodies() -> list[dict[str, Any]]:
    """Requests of many kinds, each with one right answer."""
    greedy = [{"prompt": prompt, "temperature": 0} for prompt in PROMPTS[:8]]
    sampled = [{"prompt": p, "temperature": 0.8, "seed": i} for i, p in enumerate(PROMPTS[8:14])]
    long = [{"prompt": long_prompt(8, number=n), "temperature": 0} for n in (1, 20)]
    return [*greedy, *sampled, *long]


def soak(folder: Path, turns: int, kill_every_s: float, parts: int, seed: int) -> Tally:
    """Run it; raises AssertionError for whatever is left over. `wrong` says which turns failed."""
    rng = random.Random(seed)
    tally = Tally()
    with Swarm(folder) as swarm:
        origin = start_pairs(swarm, parts)
        asked = rng.sample(bodies(), min(len(bodies()), max(3, turns // 4)))
        wanted = [(body, _ids(origin, body, tally)) for body in asked]
        before = usage(origin)
        with killer(swarm, kill_every_s, rng, tally):
            for _ in range(turns):
                body, ids = rng.choice(wanted)
                if _ids(origin, body, tally) != ids:
                    tally.wrong.append(f"turn {tally.turns}: {body['prompt'][:30]!r} differs")
        if tally.wrong:
            tally.logs = swarm.logs()
            return tally
        swarm.await_ready()
        swarm.await_idle()
        _check_usage(before, usage(origin))
    return tally


def start_pairs(
    swarm: Swarm, parts: int, dtype: str = "float32", flags: Sequence[str] = ()
) -> Node:
    """A gateway, and two nodes for each part of the model; returns the gateway."""
    origin = swarm.start(NodePlan("gateway"))
    for index, cut in enumerate(CUTS[parts]):
        for copy in "xy":
            name = f"{'abc'[index]}{copy}"
            swarm.start(NodePlan(name, SMOLLM2, cut, dtype, extra=tuple(flags)))
    swarm.await_ready()
    return origin


def _ids(origin: Node, body: dict[str, Any], tally: Tally) -> list[int]:
    answer = origin.ask(model="smollm2", max_tokens=24, ignore_eos=True, **body).finish()
    tally.turns += 1
    if answer.error is not None or not answer.done:
        tally.wrong.append(f"turn {tally.turns}: {answer.error or 'cut off'}")
        return []
    tally.reroutes += answer.swarm["reroutes"]
    tally.stalls_ms += answer.swarm["stall_ms"]
    return answer.ids


Kill = Callable[[Swarm, random.Random, Tally], None]


@contextmanager
def killer(
    swarm: Swarm, every_s: float, rng: random.Random, tally: Tally, kill: Kill | None = None
) -> Iterator[None]:
    """Kills and restarts in a thread of its own for the length of the block."""
    kill = kill or _kill_one
    over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not over.wait(every_s):
                kill(swarm, rng, tally)
        except BaseException as error:  # noqa: BLE001 - the root of the thread; raised below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def _kill_one(swarm: Swarm, rng: random.Random, tally: Tally) -> None:
    """Kill and restart a node whose layers another one serves; waits until there is such a node."""
    nodes = [node for node in swarm.running() if node.plan.layers]
    victim = rng.choice(nodes)
    twins = [n for n in nodes if n.plan.layers == victim.plan.layers and n is not victim]
    origin = swarm.nodes["gateway"]

    def covered_without() -> bool:
        state = origin.state()
        return any(
            entry.get("state") == "alive"
            and entry.get("linked")
            and any(shard["state"] == "serving" for shard in entry["shards"])
            for entry in (twin.view(state) for twin in twins)
        )

    swarm.wait(covered_without, f"a node beside {victim.name} to serve {victim.plan.layers}")
    victim.kill()
    tally.kills.append(victim.name)
    swarm.restart(victim)


def _check_usage(before: Usage, after: Usage) -> None:
    assert after.memory_bytes <= before.memory_bytes + MEMORY_SLACK_BYTES, (before, after)
    assert after.descriptors <= before.descriptors + 4, (before, after)
    assert after.threads <= before.threads + 2, (before, after)


def main() -> int:
    end_orderly()
    parser = argparse.ArgumentParser("scripts/soak", description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--parts", type=int, choices=CUTS, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="swarm-soak-") as folder, console.status("soaking"):
        tally = soak(Path(folder), options.turns, options.kill_every, options.parts, options.seed)
    rows = [
        ("turns", tally.turns),
        ("kills", len(tally.kills)),
        ("reroutes", tally.reroutes),
        ("stall ms", spread(tally.stalls_ms) if tally.stalls_ms else "-"),
        ("wrong or unanswered", len(tally.wrong)),
        ("seconds", round(time.monotonic() - began)),
    ]
    print_table("soak", ["what", "figure"], rows)
    for line in tally.wrong:
        console.print(line, style="red", markup=False)
    if tally.logs:
        sys.stdout.write(tally.logs + "\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
