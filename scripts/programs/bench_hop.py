"""What one more hop costs per token, on loopback. The same layers are held by 1, 2, 3 and 4 nodes
(four swarms side by side, asked in turn), so that only the number of hops differs.

The default model is a small random one: its rows are as wide as SmolLM2's, its layers are nearly
free, so the hop shows above the noise of the computing. `--model` measures a real one.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rig import console, end_orderly, print_machine, print_table, spread
from swarm_procs import Node, Swarm

HOPS = (1, 2, 3, 4)
SMALL_LAYERS = 4
MAKE_SMALL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(
    vocab_size=512, hidden_size=576, intermediate_size=576, num_hidden_layers=int(sys.argv[2]),
    num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=4096,
    bos_token_id=1, eos_token_id=2, pad_token_id=2,
)).save_pretrained(sys.argv[1])
"""


def cuts(layers: int, parts: int) -> list[str]:
    """`layers` in `parts` ranges as even as can be."""
    edges = [round(layers * part / parts) for part in range(parts + 1)]
    return [f"{a}:{b}" for a, b in zip(edges, edges[1:], strict=False)]


def token_ms(node: Node, name: str, tokens: int) -> float:
    """Median time between two tokens of one answer, as its client sees it."""
    answer = node.ask(
        model=name, prompt=list(range(10, 42)), max_tokens=tokens, ignore_eos=True
    ).finish()
    assert answer.error is None, answer.error
    times = answer.arrivals[4:]
    return 1000 * statistics.median(b - a for a, b in zip(times, times[1:], strict=False))


def measure(model: Path, layers: int, rounds: int, tokens: int) -> dict[int, list[float]]:
    """Milliseconds per token by number of hops, one figure per round."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, ExitStack() as stack:
        origins = {}
        for hops in HOPS:
            home = Path(folder) / str(hops)
            home.mkdir()
            swarm = stack.enter_context(Swarm(home))
            origins[hops] = swarm.start_split(model, cuts(layers, hops))[0]
        for origin in origins.values():
            token_ms(origin, model.name, 16)
        figures: dict[int, list[float]] = {hops: [] for hops in HOPS}
        for _ in range(rounds):
            for hops, origin in origins.items():
                figures[hops].append(token_ms(origin, model.name, tokens))
        return figures


def report(title: str, figures: dict[int, list[float]]) -> None:
    rows = []
    for hops, values in figures.items():
        extra = (
            [(v - one) / (hops - 1) for v, one in zip(values, figures[1], strict=True)]
            if hops > 1
            else []
        )
        rows.append((hops, spread(values), spread(extra) if extra else "-"))
    print_table(title, ["hops", "ms per token", "ms per extra hop"], rows)


def main() -> int:
    end_orderly()
    parser = argparse.ArgumentParser("scripts/bench_hop", description=__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint folder instead of the small model")
    parser.add_argument("--layers", type=int, default=30, help="how many layers --model has")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=96, help="per answer")
    options = parser.parse_args()
    print_machine()
    if options.model:
        figures = measure(options.model, options.layers, options.rounds, options.tokens)
        report(f"{options.model.name}, {options.layers} layers, float32, 1 thread", figures)
        return 0
    with tempfile.TemporaryDirectory(prefix="swarm-small-") as folder:
        small = Path(folder) / "small"
        with console.status("making a small model"):
            made = [sys.executable, "-c", MAKE_SMALL, str(small), str(SMALL_LAYERS)]
            subprocess.run(made, check=True, capture_output=True)
        figures = measure(small, SMALL_LAYERS, options.rounds, options.tokens)
    report(f"{SMALL_LAYERS} small layers, rows of 576 float32, 1 thread", figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
