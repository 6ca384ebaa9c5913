"""On a CUDA device: are the kernels right there, and how near does decoding come to what memory
allows? A random model of Qwen3-8B's shape decodes through a worker; the bytes that a step must
read, over the bandwidth that a copy reaches, are the least time that it can take.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from one_worker import Driver, WorkerProcess
from rig import console, end_orderly, print_machine, print_table, spread

from swarm.config import ShardConfig
from swarm.terms import Sampling

BAR = 0.75
BATCHES = (1, 8, 32)
CONTEXT, STEPS = 512, 64
COPY_BYTES = 4 << 30
QWEN3_8B = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
MAKE_MODEL = """
import json, sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
torch.manual_seed(0)
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)
Qwen3ForCausalLM(Qwen3Config(**json.loads(sys.argv[2]))).save_pretrained(sys.argv[1])
"""
BITS = {"none": 16.0, "int8": 8.0, "int4": 4.5}
"""Of one weight; int4 has a scale of 16 bits for each 32 weights."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a decoder whose layers are attention and a gated feed-forward part."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @staticmethod
    def of(config: dict[str, Any]) -> Shape:
        return Shape(
            config["hidden_size"],
            config["intermediate_size"],
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["head_dim"],
            config["vocab_size"],
        )

    @property
    def layer_weights(self) -> int:
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.inner

    def step_bytes(self, sessions: int, context: int, bits: float) -> float:
        """What one decode step must read: all weights once, and each session's KV in bfloat16."""
        head = self.hidden * self.vocabulary * 2
        kv = 2 * 2 * self.kv_heads * self.head_size * self.layers * context * sessions
        return self.layers * self.layer_weights * bits / 8 + head + kv


def copy_bytes_s() -> float:
    """Bytes moved per second (read and written) by the best of several large copies."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(10):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        target.copy_(source)
        ended.record()
        torch.cuda.synchronize()
        best = max(best, 2 * COPY_BYTES / (begun.elapsed_time(ended) / 1000))
    return best


def parities(device: str) -> Iterator[tuple[str, float, float]]:
    """(what, largest difference between the device and the CPU's reference, what is allowed)."""
    import torch

    from swarm.kernels import attention as kernels

    sizes, contexts = kernels.HeadSizes(8, 128, 128), [1, 31, 32, 33, 500, 1000]
    rows, blocks = len(contexts), 32
    generator = torch.Generator().manual_seed(1)
    table = torch.randperm(rows * blocks, generator=generator).view(rows, blocks).int()
    for dtype, allowed in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        places = kernels.Places(
            table,
            torch.arange(rows).int(),
            torch.tensor(contexts).int(),
            torch.zeros(rows, dtype=torch.int64),
        )
        slots = torch.arange(rows * blocks * 32)
        key, value = (torch.randn(len(slots), 8, 128, generator=generator) for _ in range(2))
        query = torch.randn(rows, 32, 128, generator=generator).to(dtype)
        results = []
        for where, work in (
            ("cpu", kernels.reference_attention),
            (device, kernels.paged_attention),
        ):
            place = torch.device(where)
            pool = kernels.new_pool(rows * blocks, 32, sizes, dtype, place)
            kernels.write_rows(key.to(place, dtype), value.to(place, dtype), pool, slots.to(place))
            here = kernels.Places(
                *(getattr(places, n).to(place) for n in ("table", "owner", "context", "slots"))
            )
            results.append(work(query.to(place), pool, here, kernels.Rule(128**-0.5)).cpu().float())
        name = str(dtype).removeprefix("torch.")
        yield f"paged attention, {name}", float((results[0] - results[1]).abs().max()), allowed


def decode_tokens_s(driver: Driver, sessions: int) -> float:
    greedy = Sampling(temperature=0.0)
    keys = [driver.begin(CONTEXT, CONTEXT + STEPS + 1, greedy) for _ in range(sessions)]
    driver.prefill(keys, CONTEXT)
    seconds = driver.decode(keys, CONTEXT, STEPS)
    for key in keys:
        driver.end(key)
    return sessions * STEPS / seconds


def report_decode(model: Path, bandwidth: float, rounds: int, quantization: str) -> bool:
    """Print one table; whether the bar is met at every batch size."""
    shape, rows, met = Shape.of(QWEN3_8B), [], True
    config = ShardConfig(device="cuda", dtype="bfloat16", quantization=quantization)
    kv_tokens = max(BATCHES) * (CONTEXT + STEPS + 64)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with WorkerProcess(config, cores) as port, tempfile.TemporaryDirectory() as cache:
        driver = Driver(port)
        loaded = driver.load(model, None, kv_tokens, Path(cache))
        console.print(loaded.numeric_class, style="dim")
        for sessions in BATCHES:
            decode_tokens_s(driver, sessions)
            speeds = spread(decode_tokens_s(driver, sessions) for _ in range(rounds))
            needed = shape.step_bytes(sessions, CONTEXT + STEPS // 2, BITS[quantization])
            share = speeds.median / sessions * needed / bandwidth
            met &= share >= BAR
            rows.append((sessions, speeds, f"{sessions * bandwidth / needed:.0f}", f"{share:.2f}"))
    columns = ["sessions", "tok/s", "memory allows", f"share (bar ≥ {BAR})"]
    print_table(f"Qwen3-8B's shape, random, bfloat16, weights {quantization}", columns, rows)
    return met


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantization", nargs="+", default=["none", "int4"], choices=BITS)
    options = parser.parse_args()
    end_orderly()
    import torch

    if not torch.cuda.is_available():
        console.print("skipped: no CUDA device")
        return 0
    print_machine()
    console.print(torch.cuda.get_device_name(), style="dim")
    rows = [
        (what, f"{off:.2e}", f"{most:.0e}", off <= most) for what, off, most in parities("cuda")
    ]
    print_table("difference to the CPU's reference", ["kernel", "most", "allowed", "right"], rows)
    met = all(row[-1] for row in rows)
    bandwidth = copy_bytes_s()
    console.print(f"a copy moves {bandwidth / 1e9:.0f} GB/s")

    with tempfile.TemporaryDirectory(prefix="swarm-gpu-") as folder:
        model = Path(folder) / "qwen3-8b-random"
        make = [sys.executable, "-c", MAKE_MODEL, str(model), json.dumps(QWEN3_8B)]
        with console.status("making the model"):
            subprocess.run(make, check=True)
        for quantization in options.quantization:
            met &= report_decode(model, bandwidth, options.rounds, quantization)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
