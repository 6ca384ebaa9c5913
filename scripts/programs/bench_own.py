"""Figures of a swarm against itself: two hops on two cores against one on one, a chat's second turn
with and without what its first one left in the cache, resident memory, the pause after a kill.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import contest
import psutil
from bench_nodes import Asker, Engine
from contest import Measured, Row
from rig import print_table, spread
from streams import ask, completion
from swarm_procs import Node, Swarm

STREAMS = 16
CHAT_TOKENS = 1500
ANSWER_TOKENS = 32
QUESTION_TOKENS = 20
KILL_CONTEXT = 1000
KILL_AT = 8
MIB = 1 << 20


def rows(engine: Engine, rounds: int) -> list[Measured]:
    """All of them; memory and the pause are printed as tables of their own."""
    return [*hops(engine, rounds), *chat(engine, rounds)]


def hops(engine: Engine, rounds: int) -> list[Measured]:
    """The same model on one core, and cut over two; both swarms run, one at a time is asked."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, ExitStack() as stack:
        askers = []
        for name, cuts, cores in (("one", ["0:30"], ["0"]), ("two", ["0:15", "15:30"], ["0", "1"])):
            home = Path(folder) / name
            home.mkdir()
            swarm = stack.enter_context(Swarm(home))
            askers.append(Asker(engine.start(swarm, cuts, cores, 1)[0].gateway.url))
        one, two = askers
        listed = [
            Row(
                "TTFT of 2,000 tokens, s: two hops, a core each / one hop",
                lambda: two.ttft_s(2000),
                lambda: one.ttft_s(2000),
                0.60,
                less_is_better=True,
            ),
            Row(
                f"{STREAMS} streams, tok/s in all: two hops, a core each / one hop",
                lambda: two.aggregate_tokens_s(STREAMS),
                lambda: one.aggregate_tokens_s(STREAMS),
                1.7,
            ),
        ]
        return [contest.measure(row, rounds) for row in listed]


def chat(engine: Engine, rounds: int) -> list[Measured]:
    """A second turn right after its first, and the same length of text that nobody has seen."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, Swarm(Path(folder)) as swarm:
        node = engine.start(swarm, ["0:30"], ["0,1"], 2)[0]
        asker = Asker(node.gateway.url)
        second = CHAT_TOKENS + ANSWER_TOKENS + QUESTION_TOKENS
        row = Row(
            "TTFT of the second turn of a 1,500-token chat, s: warm / cold",
            lambda: warm_ttft_s(asker),
            lambda: asker.ttft_s(second),
            0.15,
            less_is_better=True,
        )
        measured = contest.measure(row, rounds)
        asker.aggregate_tokens_s(STREAMS)
        report_memory(node)
        return [measured]


def warm_ttft_s(asker: Asker) -> float:
    """The first turn ends before the second is asked, as in a chat."""
    opening = asker.body(CHAT_TOKENS, ANSWER_TOKENS)
    first = ask(asker.url, opening | {"return_token_ids": True})
    question = asker.body(QUESTION_TOKENS, 2)["prompt"]
    return ask(asker.url, completion([*opening["prompt"], *first.ids, *question], 2)).ttft_s


def report_memory(node: Node) -> None:
    """Resident memory of a node's processes after some load. What of the worker's is neither
    weights nor KV pool, `scripts/bench_engine` says."""
    pool = int(node.state()["kv_capacity_bytes"])
    table = [["daemon", psutil.Process(node.process.pid).memory_info().rss // MIB, "≤ 130"]]
    for process in node.workers():
        is_worker = "swarm.shard.worker_io" in process.cmdline()
        name = f"worker, KV pool of {pool // MIB}" if is_worker else "text helper"
        table.append([name, process.memory_info().rss // MIB, ""])
    print_table("resident MiB", ["process", "resident", "bar"], table)


def report_pause(engine: Engine, runs: int) -> None:
    """kill -9 of the middle of three hops: the pause, and one prefill of its layers."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, Swarm(Path(folder)) as swarm:
        cuts = ["0:10", "10:20", "10:20", "20:30"]
        nodes = engine.start(swarm, cuts, ["0,1"] * len(cuts), 1)
        told = [_loss(swarm, nodes[0]) for _ in range(runs)]
        shard = nodes[0].view(nodes[0].state())["shards"][0]
        prefill_ms = 1000 * shard["prefill_s_per_token_layer"] * 10 * KILL_CONTEXT
    detection = spread(note["detection_ms"] for note in told)
    beyond = spread(note["stall_ms"] - note["detection_ms"] for note in told)
    table = [
        ["detection, ms", detection, ""],
        ["beyond detection, ms", beyond, ""],
        ["one prefill of the range as the worker times it, ms", f"{prefill_ms:.0f}", ""],
        ["beyond detection / prefill", f"{beyond.median / prefill_ms:.2f}", "≤ 1.2"],
    ]
    title = f"the pause after kill -9 at context {KILL_CONTEXT}, three hops"
    print_table(title, ["what", "figure", "bar"], table)


def _loss(swarm: Swarm, origin: Node) -> dict[str, float]:
    prompt = Asker(origin.gateway.url).body(KILL_CONTEXT - KILL_AT, 1)["prompt"]
    answer = origin.ask(model="smollm2", prompt=prompt, max_tokens=2 * KILL_AT, ignore_eos=True)
    middle = swarm.hops(origin, answer.session)[1]
    answer.read_to(KILL_AT)
    moment = middle.kill()
    answer.finish()
    if answer.error is not None:
        raise SystemExit(f"the answer failed: {answer.error}")
    told = swarm.await_note(origin, "session.recovered", since=moment)
    swarm.restart(middle)
    swarm.await_ready()
    return {part: float(told[part]) for part in ("detection_ms", "stall_ms")}
