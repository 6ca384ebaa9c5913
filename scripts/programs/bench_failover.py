"""How long an answer pauses when the middle of its three hops is killed, for several lengths of
context, and of what the pause is made: noticing it, planning and opening the new route, and
rebuilding the lost layers' KV up to the next token. The figures are the origin's own, from its log.

With --standby the kill waits until the other holder of the layers follows the answer. With --leave
the hop is asked to leave instead, and the largest gap between two tokens is compared with the
usual one.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rig import console, end_orderly, print_machine, print_table, spread
from swarm_http import Answer
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

MIDDLE = "10:20"
HOLDERS = {"first": "0:10", "middle1": MIDDLE, "middle2": MIDDLE, "last": "20:30"}
PARTS = ("detection_ms", "planning_ms", "replay_ms", "stall_ms")
KILL_AT = 8
TOKENS_LONG = 1500
"""Of an answer that has time for standbys; it is cut off when all was seen."""
AFTER = 24
"""Tokens that are read after a loss."""


def question(origin: Node, context: int, max_tokens: int) -> Answer:
    prompt = [
        1000 + (time.monotonic_ns() // 1000 + i * 37) % 20000 for i in range(context - KILL_AT)
    ]
    return origin.ask(model="smollm2", prompt=prompt, max_tokens=max_tokens, ignore_eos=True)


def read_while(answer: Answer, holds: Callable[[], bool]) -> None:
    while holds():
        if answer.next_event() is None:
            raise SystemExit(f"the answer ended too soon: {answer.error or answer.finish_reason}")


def followed(origin: Node, since: float) -> bool:
    """Whether the middle hop has a standby that has caught up."""
    return any(
        note["event"] == "session.standby" and note["layers"] == MIDDLE and note["seen"] >= since
        for note in list(origin.notes)
    )


def one_loss(swarm: Swarm, origin: Node, context: int, *, standby: bool) -> dict[str, float]:
    """Kill the middle hop of one answer; returns the parts of its pause in ms."""
    begun = time.monotonic()
    answer = question(origin, context, TOKENS_LONG if standby else 2 * KILL_AT)
    hops = swarm.hops(origin, answer.session)
    answer.read_to(KILL_AT)
    if standby:
        read_while(answer, lambda: not followed(origin, begun))
        answer.read_to(len(answer.ids) + AFTER)
    moment = hops[1].kill()
    if standby:
        answer.read_to(len(answer.ids) + AFTER)
        answer.close()
    else:
        answer.finish()
    assert answer.error is None, answer.error
    told = swarm.await_note(origin, "session.recovered", since=moment)
    swarm.restart(hops[1])
    swarm.await_ready()
    return {part: float(told[part]) for part in PARTS}


def one_departure(swarm: Swarm, origin: Node, context: int) -> dict[str, float]:
    """Ask the middle hop to leave in mid-answer; returns the usual and the largest gap in ms."""
    answer = question(origin, context, TOKENS_LONG)
    leaver = swarm.hops(origin, answer.session)[1]
    answer.read_to(4 * KILL_AT)
    first = len(answer.arrivals)
    leaver.process.send_signal(signal.SIGINT)
    read_while(answer, lambda: leaver.alive)
    answer.read_to(len(answer.ids) + AFTER)
    answer.close()
    gaps = [1000 * (b - a) for a, b in pairwise(answer.arrivals)]
    swarm.restart(leaver)
    swarm.await_ready()
    usual, largest = statistics.median(gaps), max(gaps[first - 1 :])
    return {"usual_ms": usual, "largest_ms": largest, "bar_ms": 2 * usual + 20}


def main() -> int:
    end_orderly()
    parser = argparse.ArgumentParser("scripts/bench_failover", description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--runs", type=int, default=7, help="losses per context length")
    parser.add_argument("--quantization", default="none", help="none, int8 or int4")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--standby", action="store_true", help="kill when a standby has caught up")
    how.add_argument("--leave", action="store_true", help="the hop leaves instead")
    options = parser.parse_args()
    print_machine()
    rows = []
    extra = ("--quantization", options.quantization)
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, Swarm(Path(folder)) as swarm:
        with console.status("starting"):
            for name, cut in HOLDERS.items():
                swarm.start(NodePlan(name, SMOLLM2, cut, extra=extra))
            swarm.await_ready()
        origin = swarm.nodes["first"]
        for context in options.contexts:
            with console.status(f"context {context}"):
                if options.leave:
                    runs = [one_departure(swarm, origin, context) for _ in range(options.runs)]
                else:
                    runs = [
                        one_loss(swarm, origin, context, standby=options.standby)
                        for _ in range(options.runs)
                    ]
            rows.append([context, *(spread(run[part] for run in runs) for part in runs[0])])
    what = f"SmolLM2 {options.quantization}, 1 thread per node"
    if options.leave:
        title = f"{what}: ms between tokens while the middle hop leaves"
        print_table(title, ["context", "usual", "largest gap", "aim"], rows)
    else:
        waited = ", a standby ready" if options.standby else ""
        title = f"{what}: ms of pause after kill -9 of the middle hop{waited}"
        print_table(title, ["context", "detection", "planning", "replay", "whole"], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
