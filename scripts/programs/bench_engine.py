"""One worker without a network: prefill and decode speeds by number of sessions, and where the time
of a decode step goes. What is measured is what is served: messages over a socketpair to a worker
process (for the breakdown, to the same worker inside this process, under torch's profiler).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import contest
import psutil
import engine_profile
from one_worker import Driver, WorkerProcess
from rig import console, end_orderly, print_machine, print_table, spread
from swarm_procs import SMOLLM2

from swarm.config import ShardConfig
from swarm.options import parse_layers
from swarm.terms import Sampling
from swarm.worker_messages import KV_BLOCK_TOKENS

BATCHES = (1, 4, 8, 16, 32)
PREFILLS = (128, 512, 2000)
PROMPT = 32
MIB = 1 << 20
MEMORY_BAR_MIB = 400
GREEDY = Sampling(temperature=0.0)


def decode_tokens_s(driver: Driver, sessions: int, prompt: int, steps: int) -> float:
    keys = [driver.begin(prompt, prompt + steps + 1, GREEDY) for _ in range(sessions)]
    driver.prefill(keys, prompt)
    seconds = driver.decode(keys, prompt, steps)
    for key in keys:
        driver.end(key)
    return sessions * steps / seconds


def prefill_tokens_s(driver: Driver, count: int) -> float:
    key = driver.begin(count, count + 1, GREEDY)
    seconds = driver.prefill([key], count)
    driver.end(key)
    return count / seconds


def speeds(driver: Driver, options: argparse.Namespace) -> list[list[object]]:
    """All figures in turn, `rounds` times, so that a slow minute does not fall on one alone."""
    decodes: dict[int, list[float]] = {n: [] for n in options.batches}
    prefills: dict[int, list[float]] = {n: [] for n in options.prefills}
    decode_tokens_s(driver, max(options.batches), options.context, 4)
    for _ in range(options.rounds):
        for n in options.batches:
            decodes[n].append(decode_tokens_s(driver, n, options.context, options.steps))
        for n in options.prefills:
            prefills[n].append(prefill_tokens_s(driver, n))
    rows: list[list[object]] = []
    for n, values in decodes.items():
        step_ms = contest.spread(1000 * n / value for value in values)
        rows.append([f"decode, {n} sessions", spread(values), step_ms])
    for n, values in prefills.items():
        whole_ms = contest.spread(1000 * n / value for value in values)
        rows.append([f"prefill of {n}", spread(values), whole_ms])
    return rows


def report_memory(resident: int, private: int, weights: int, pool: int) -> None:
    """Bytes: of the worker process after the figures above, and what it must hold."""
    console.print(
        f"worker: {resident // MIB} MiB resident = weights {weights // MIB}"
        f" + KV pool {pool // MIB} + {(resident - weights - pool) // MIB} (bar ≤ {MEMORY_BAR_MIB});"
        f" {private // MIB} MiB are its own, the rest are files in memory"
    )


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_engine", description=__doc__)
    parser.add_argument("--model", type=Path, default=SMOLLM2)
    parser.add_argument("--layers", type=parse_layers, help="A:B; default all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", default="none", choices=("none", "int8", "int4"))
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cores", default="0,1", help="for the worker, as taskset takes them")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--prefills", type=int, nargs="*", default=PREFILLS)
    parser.add_argument("--context", type=int, default=PROMPT, help="prompt before the decode")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--breakdown", type=int, nargs="*", default=(1, 16), metavar="SESSIONS")
    options = parser.parse_args()
    end_orderly()
    print_machine()
    config = ShardConfig(
        device=options.device,
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        threads=options.threads,
        enforce_eager=options.enforce_eager,
    )
    most = max([0, *options.batches, *options.breakdown])
    kv_tokens = max([most * (options.context + options.steps + 64), *options.prefills]) + 4096
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        process = WorkerProcess(config, options.cores)
        with process as port:
            driver = Driver(port)
            with console.status("loading"):
                loaded = driver.load(options.model, options.layers, kv_tokens, Path(folder))
            console.print(f"{loaded.numeric_class}, {loaded.kv_blocks} blocks", style="dim")
            with console.status("measuring"):
                rows = speeds(driver, options)
            memory = psutil.Process(process.process.pid).memory_full_info()
        title = f"{options.model.name} {options.dtype} {options.quantization}, one worker"
        print_table(title, ["what", "tok/s", "ms per step"], rows)
        for sessions in options.breakdown:
            order = engine_profile.Order(
                options.model, options.layers, kv_tokens, sessions, options.context, options.steps
            )
            weights = engine_profile.report(order, config, Path(folder))
    if options.breakdown:
        layers = len(loaded.layers) * loaded.kv_bytes_per_token_layer
        report_memory(memory.rss, memory.uss, weights, loaded.kv_blocks * KV_BLOCK_TOKENS * layers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
