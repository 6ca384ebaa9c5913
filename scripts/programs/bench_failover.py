"""How long an answer pauses when the middle of its three hops is killed, for several lengths of
context, and of what the pause is made: noticing it, planning and opening the new route, and
rebuilding the lost layers' KV up to the next token. The figures are the origin's own, from its log.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rig import console, print_machine, print_table, spread
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

HOLDERS = {"first": "0:10", "middle1": "10:20", "middle2": "10:20", "last": "20:30"}
PARTS = ("detection_ms", "planning_ms", "replay_ms", "stall_ms")
KILL_AT = 8


def one_loss(swarm: Swarm, origin: Node, context: int) -> dict[str, float]:
    """Kill the middle hop of one answer; returns the parts of its pause in ms."""
    prompt = [1000 + (i * 37) % 20000 for i in range(context - KILL_AT)]
    answer = origin.ask(model="smollm2", prompt=prompt, max_tokens=2 * KILL_AT, ignore_eos=True)
    hops = swarm.hops(origin, answer.session)
    answer.read_to(KILL_AT)
    moment = hops[1].kill()
    answer.finish()
    assert answer.error is None, answer.error
    told = swarm.await_note(origin, "session.recovered", since=moment)
    swarm.restart(hops[1])
    swarm.await_ready()
    return {part: float(told[part]) for part in PARTS}


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_failover", description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--runs", type=int, default=7, help="losses per context length")
    options = parser.parse_args()
    print_machine()
    rows = []
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, Swarm(Path(folder)) as swarm:
        with console.status("starting"):
            for name, cut in HOLDERS.items():
                swarm.start(NodePlan(name, SMOLLM2, cut))
            swarm.await_ready()
        for context in options.contexts:
            with console.status(f"context {context}"):
                runs = [one_loss(swarm, swarm.nodes["first"], context) for _ in range(options.runs)]
            rows.append([context, *(spread(run[part] for run in runs) for part in PARTS)])
    title = "SmolLM2 float32, 1 thread per node: ms of pause after kill -9 of the middle hop"
    print_table(title, ["context", "detection", "planning", "replay", "whole"], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
