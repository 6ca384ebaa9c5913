"""This project against llama.cpp on one machine, in turn, A B A B, with the same model: SmolLM2
through a node's gateway, and the same weights in llama.cpp's fastest format through llama-server,
llama-bench and its RPC servers. The ratios are what counts.

llama.cpp is built on the first run, below ~/.cache/swarm/bench (some 15 minutes).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import bench_own
import contest
import llama_cpp
from bench_nodes import Asker, Engine, add_engine_options, engine_of
from contest import Measured, Row
from rig import console, end_orderly, print_machine
from swarm_procs import Swarm

CONTEXT = 4096
SMALL_CONTEXT = 512
"""Positions of each of many slots."""
STREAMS = 16


def one_machine(engine: Engine, llama: llama_cpp.LlamaCpp, rounds: int) -> list[Measured]:
    """One node of two threads against llama-server and llama-bench with two."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, ExitStack() as stack:
        swarm = stack.enter_context(Swarm(Path(folder)))
        ours = Asker(engine.start(swarm, ["0:30"], ["0,1"], 2)[0].gateway.url)
        single = stack.enter_context(llama.server(1, CONTEXT, 2, "0,1"))
        many = stack.enter_context(llama.server(STREAMS, SMALL_CONTEXT, 2, "0,1"))
        asker, crowd = Asker(single.url), Asker(many.url)
        rows = [
            Row(
                "decode, 1 stream, tok/s / llama-server",
                ours.decode_tokens_s,
                single.awake(asker.decode_tokens_s),
                0.9,
            ),
            Row(
                "prefill of 512, tok/s (ours by TTFT) / llama-bench",
                lambda: 512 / ours.ttft_s(512),
                lambda: llama.bench(512, 0, 2, "0,1"),
                3.0,
            ),
            Row(
                f"{STREAMS} streams, tok/s in all / llama-server -np {STREAMS}",
                lambda: ours.aggregate_tokens_s(STREAMS),
                many.awake(lambda: crowd.aggregate_tokens_s(STREAMS)),
                2.5,
            ),
            Row(
                "TTFT of 2,000 tokens, s / llama-server",
                lambda: ours.ttft_s(2000),
                single.awake(lambda: asker.ttft_s(2000)),
                less_is_better=True,
            ),
            Row(
                "decode, 1 stream, tok/s / llama-bench (tg128)",
                ours.decode_tokens_s,
                lambda: llama.bench(0, 128, 2, "0,1"),
            ),
        ]
        return [contest.measure(row, rounds) for row in rows]


def two_machines(engine: Engine, llama: llama_cpp.LlamaCpp, rounds: int) -> list[Measured]:
    """Two nodes of one thread, one core each, against two RPC servers of one thread.

    llama-server itself, which computes nothing then, may use both cores.
    """
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, ExitStack() as stack:
        swarm = stack.enter_context(Swarm(Path(folder)))
        nodes = engine.start(swarm, ["0:15", "15:30"], ["0", "1"], 1)
        ours = Asker(nodes[0].gateway.url)
        rpc = [stack.enter_context(llama.rpc_server(core)) for core in "01"]
        server = llama.server(STREAMS, SMALL_CONTEXT, 1, "0,1", rpc)
        theirs = stack.enter_context(server)
        asker = Asker(theirs.url)
        rows = [
            Row(
                f"two nodes of one thread, {STREAMS} streams, tok/s in all / RPC, two servers",
                lambda: ours.aggregate_tokens_s(STREAMS),
                theirs.awake(lambda: asker.aggregate_tokens_s(STREAMS)),
                3.0,
            ),
            Row(
                "the same, 1 stream, tok/s / RPC",
                ours.decode_tokens_s,
                theirs.awake(asker.decode_tokens_s),
            ),
        ]
        return [contest.measure(row, rounds) for row in rows]


PARTS: dict[str, Callable[[Engine, llama_cpp.LlamaCpp, int], list[Measured]]] = {
    "one": one_machine,
    "two": two_machines,
}


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_llamacpp", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--part",
        action="append",
        choices=(*PARTS, "own"),
        help="one: one node; two: two nodes against RPC; own: what needs no opponent; default all",
    )
    add_engine_options(parser)
    options = parser.parse_args()
    end_orderly()
    print_machine()
    engine = engine_of(options)
    results: list[Measured] = []
    parts = options.part or [*PARTS, "own"]
    llama = llama_cpp.provide() if set(parts) & set(PARTS) else None
    for part in parts:
        if llama is not None and part in PARTS:
            results += PARTS[part](engine, llama, options.rounds)
        if part == "own":
            results += bench_own.rows(engine, options.rounds)
            bench_own.report_beside(engine, options.rounds)
            bench_own.report_pause(engine, options.rounds)
    title = f"SmolLM2 {engine.title}; llama.cpp ({llama_cpp.VERSION}) {llama_cpp.FORMAT}"
    contest.report(title, results)
    console.print("ratios are of each round: ours / other, median (least to most)", style="dim")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
