"""From the last of four `swarm join` to the first answer: one host has SmolLM2 and room for twelve
of its layers, three have nothing but the program, and each takes part of it from the others.

Four network namespaces on one wire (root is needed), and all of it on this one machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import rig
import swarm_netns
from bare_hosts import BODY, FIRST, ROOM, plan, shard_of
from swarm_procs import SMOLLM2, Node, Swarm

OK = 200
ASK_AGAIN_S = 0.1
PATIENCE_S = 300.0


def first_answer(node: Node) -> float:
    """When the first token of an answer came; refusals until then are asked again."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        answer = node.ask(**BODY)
        if answer.status == OK:
            answer.read_to(1)
            came = time.monotonic()
            answer.finish()
            return came
        answer.close()
        time.sleep(ASK_AGAIN_S)
    raise SystemExit(f"no answer in {PATIENCE_S:.0f} s")


def one_round(folder: Path) -> dict[str, float]:
    with swarm_netns.Lan(len(ROOM), "j") as lan, Swarm(folder) as swarm:
        north = swarm.start(plan(lan, FIRST, SMOLLM2))
        swarm.wait(lambda: shard_of(north), "the first host to serve", PATIENCE_S)
        *before, last = (name for name in ROOM if name != FIRST)
        others = [swarm.start(plan(lan, name)) for name in before]
        joined = time.monotonic()
        others.append(swarm.start(plan(lan, last)))
        took_s = first_answer(others[-1]) - joined
        swarm.wait(lambda: all(map(shard_of, others)), "all hosts to serve", PATIENCE_S)
        return {"first answer": took_s, "all serve": time.monotonic() - joined}


def main() -> None:
    parser = argparse.ArgumentParser("scripts/bench_join", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if (why := swarm_netns.why_not()) is not None:
        raise SystemExit(why)
    if not SMOLLM2.exists():
        raise SystemExit("scripts/fetch_model smollm2 first")
    rig.end_orderly()
    rig.print_machine()
    rounds = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(one_round(Path(folder)))
        rig.console.print(
            f"round {number + 1} of {options.rounds}: {rounds[-1]['first answer']:.1f} s"
        )
    rig.print_table(
        "From the last join, seconds",
        ("until", "median (least to most)"),
        [(what, rig.spread(found[what] for found in rounds)) for what in rounds[0]],
    )


if __name__ == "__main__":
    main()
