"""What quantization costs in quality: over real prose, how often the likeliest next token is that
of the unquantized model, and how much more perplexed the quantized one is.

Every token is predicted from up to one window of text before it, in steps of whole windows, by the
stage and the linears that a worker runs, over KV blocks of the dtype that it would keep. The text
is the Debian Administrator's Handbook, which is fetched from Debian on the first run, or what
`--text` names.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prose
from rig import console, print_machine, print_table
from swarm_procs import SMOLLM2

BARS = {"int8": (0.97, 1.02), "int4": (0.90, 1.08)}
"""By quantization: least agreement, most ratio of perplexities, against bfloat16."""
PLAIN = ("float32", "bfloat16")
SKIPPED_TOKENS = 20_000
"""The first pages are forewords and licences."""


@dataclass(slots=True)
class Tally:
    """Of one variant: its likeliest tokens, and the logprobs that it gave to those that came."""

    choices: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))


def windows(ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Pieces of `size` tokens that share one token with the next: the last one of a piece is only
    predicted, and then the first of what the next is predicted from."""
    for start in range(0, len(ids) - 1, size - 1):
        yield ids[start : start + size]


def agreement(one: Sequence[int], other: Sequence[int]) -> float:
    same = sum(a == b for a, b in zip(one, other, strict=True))
    return same / len(one)


def bar_cells(name: str, agreeing: float, ratio: float) -> tuple[str, str]:
    """The bar of a variant, and whether it is met; empty for one that has none."""
    quantization = name.split()[0]
    if quantization not in BARS:
        return "", ""
    least, most = BARS[quantization]
    met = agreeing >= least and ratio <= most
    return f"≥ {100 * least:g} %, ≤ {most:g}", "yes" if met else "no"


def text_ids(model: Path, text: str, count: int, skipped: int) -> list[int]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    if len(ids) < skipped + count:
        raise SystemExit(f"the text has {len(ids)} tokens, {skipped + count} are wanted")
    return list(ids[skipped : skipped + count])


def load_variant(model: Path, name: str, window: int) -> Any:
    """The whole model as a worker's stage. Names are `float32`, or `int8 in float32`."""
    import torch

    from swarm.shard.cut import Part
    from swarm.shard.load_io import choose_dtype, load_stage, quiet_transformers, read_config
    from swarm.shard.paged_check import plain_reason
    from swarm.shard.paged_kv import choose_kv_dtype, make_paged_kv
    from swarm.terms import LayerRange
    from swarm.worker_messages import KV_BLOCK_TOKENS

    quiet_transformers()
    device = torch.device("cpu")
    layers = read_config(model).get_text_config(decoder=True).num_hidden_layers
    part = Part(LayerRange(0, layers), embed=True, head=True)
    *quantized, dtype = name.split(" in ")
    kind = choose_dtype(dtype, None, device)
    stage = load_stage(model, part, kind, device, quantized[0] if quantized else "none")
    kept = choose_kv_dtype("auto", stage.dtype, stage.quantization)
    if plain_reason(stage, kept, exact=True) is None:
        blocks = -(-window // KV_BLOCK_TOKENS)
        stage.kv = make_paged_kv(stage.kv.kinds, blocks, kept, device)
    return stage


def logits_of(stage: Any, ids: Any) -> Any:
    """[T, V] float32, of [1, T] ids from the start of a text on."""
    from swarm.messages import StepKind
    from swarm.shard.batch import Shape, Span, make_batch
    from swarm.shard.selfcheck import table_of

    count = ids.shape[1]
    if stage.kv is None:
        cache = stage.new_cache(stage.part, count)
        return stage.forward(ids, 0, cache, tuple(range(count)))[0].float()
    spans = [Span(table_of(stage, range(stage.kv.blocks)), 0, count)]
    shape = Shape(StepKind.PREFILL, count)
    batch = make_batch(spans, shape, stage.kv.scratch_block, stage.device)
    return stage.run(batch, stage.part, ids, list(range(count))).float()


def predict(stage: Any, window: Sequence[int], tally: Tally) -> None:
    """Add the predictions of all tokens of a window but the first."""
    import torch

    logits = logits_of(stage, torch.tensor([window[:-1]]))
    came = torch.tensor(window[1:])[:, None]
    tally.choices += logits.argmax(dim=-1).tolist()
    tally.logprobs += torch.log_softmax(logits, dim=-1).gather(1, came)[:, 0].tolist()


def measure(
    stages: dict[str, Any], ids: Sequence[int], size: int, told: Callable[[int], None]
) -> dict[str, Tally]:
    tallies = {name: Tally() for name in stages}
    done = 0
    for window in windows(ids, size):
        for name, stage in stages.items():
            predict(stage, window, tallies[name])
        done += len(window) - 1
        told(done)
    return tallies


def report(title: str, tallies: dict[str, Tally]) -> bool:
    """Print the table; says whether all bars are met."""
    rows = []
    plain, full = tallies["bfloat16"], tallies["float32"]
    for name, tally in tallies.items():
        ratio = tally.perplexity / plain.perplexity
        agreeing = agreement(tally.choices, plain.choices)
        with_full = agreement(tally.choices, full.choices)
        rows.append(
            (
                name,
                f"{tally.perplexity:.4f}",
                f"{ratio:.4f}",
                f"{100 * agreeing:.2f} %",
                f"{tally.perplexity / full.perplexity:.4f}",
                f"{100 * with_full:.2f} %",
                *bar_cells(name, agreeing, ratio),
            )
        )
    columns = ["variant", "perplexity", "/ bfloat16", "top-1 alike"]
    columns += ["/ float32", "top-1 alike", "bar (bfloat16)", "met"]
    print_table(title, columns, rows)
    return all(row[-1] != "no" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_quality", description=__doc__)
    parser.add_argument("--model", type=Path, default=SMOLLM2)
    parser.add_argument("--text", type=Path, help="a file of prose instead of the handbook")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--skip", type=int, default=SKIPPED_TOKENS, help="tokens at its start")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument(
        "--variant", nargs="+", default=[f"{q} in {d}" for q in BARS for d in PLAIN]
    )
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print_machine()
    text = options.text.read_text() if options.text else prose.handbook()
    ids = text_ids(options.model, text, options.tokens, options.skip)
    names = [*PLAIN, *options.variant]
    import torch
    from swarm.kernels.native_io import start_native

    torch.set_num_threads(options.threads)
    console.print(f"kernels: {start_native().instruction_set or 'plain torch'}", style="dim")
    with console.status("loading") as status:
        stages = {name: load_variant(options.model, name, options.window) for name in names}
        tallies = measure(
            stages, ids, options.window, lambda done: status.update(f"{done} of {len(ids)} tokens")
        )
    count = len(tallies["float32"].choices)
    title = f"{options.model.name}, {count} tokens of prose, windows of {options.window}"
    return 0 if report(title, tallies) else 1


if __name__ == "__main__":
    raise SystemExit(main())
