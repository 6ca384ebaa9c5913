"""Figures of a swarm against itself: two hops on two cores against one on one, a chat's second turn
with and without what its first one left in the cache, resident memory, tokens beside a long prompt,
the pause after a kill.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import contest
import psutil
from bench_nodes import Asker, Engine
from contest import Measured, Row
from rig import print_table, spread
from streams import Streamed, ask, ask_all, completion
from swarm_procs import Node, Swarm

STREAMS = 16
CHAT_TOKENS = 1500
ANSWER_TOKENS = 32
QUESTION_TOKENS = 20
LONG_PROMPT = 2000
BESIDE_STREAMS = (1, 4, 16)
BESIDE_AFTER_S = 1.5
"""The streams are all under way by then."""
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


def report_beside(engine: Engine, runs: int) -> None:
    """Times between tokens while a prompt of 2,000 is computed, and before it came."""
    table = []
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, Swarm(Path(folder)) as swarm:
        asker = Asker(engine.start(swarm, ["0:30"], ["0,1"], 2)[0].gateway.url)
        for streams in BESIDE_STREAMS:
            before: list[float] = []
            during: list[float] = []
            _beside(asker, streams)
            for _ in range(runs):
                found = _beside(asker, streams)
                before, during = before + found[0], during + found[1]
            usual, late = spread(before).median, sorted(during)
            table.append([
                streams, f"{1000 * usual:.1f}", f"{1000 * spread(during).median:.1f}",
                f"{1000 * late[len(late) * 95 // 100]:.1f}", f"{1000 * late[-1]:.1f}",
                f"{spread(during).median / usual:.1f}", f"{late[-1] / usual:.1f}",
            ])  # fmt: skip
    title = f"ms between tokens beside a prompt of {LONG_PROMPT} (bar: most / usual ≤ 3)"
    columns = ["streams", "usual", "beside it", "95 %", "most", "beside / usual", "most / usual"]
    print_table(title, columns, table)


def _beside(asker: Asker, streams: int) -> tuple[list[float], list[float]]:
    """Seconds between tokens, of all streams: before a long prompt is asked, and until its first
    token."""
    bodies = [asker.body(QUESTION_TOKENS, 100 + 4000 // (10 + streams)) for _ in range(streams)]
    with ThreadPoolExecutor(1) as pool:
        crowd = pool.submit(ask_all, asker.url, bodies)
        time.sleep(BESIDE_AFTER_S)
        prompt = asker.one(LONG_PROMPT, 1)
        answers = crowd.result()
    came, answered = prompt.asked_at, prompt.arrivals[0]
    begun = max(answer.arrivals[0] for answer in answers)
    return list(_gaps(answers, begun, came)), list(_gaps(answers, came, answered))


def _gaps(answers: Iterable[Streamed], start: float, end: float) -> Iterable[float]:
    """Between tokens that came from `start` to `end`."""
    for answer in answers:
        for one, other in itertools.pairwise(answer.arrivals):
            if start <= one and other <= end:
                yield other - one


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
