"""Microseconds of one linear layer: our integer kernels beside oneDNN's int8 and torch's bf16 and
fp32, in one run, in turns, so that the ratios hold on a busy machine. The least of many calls.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence

import torch
from rig import print_table
from torch.nn.functional import linear

from swarm.kernels.linear import Product
from swarm.kernels.native_io import start_native
from swarm.kernels.quantize import to_int4, to_int8

SHAPES = ((960, 576), (3072, 576), (576, 1536), (49152, 576), (4096, 4096))
ROWS = (1, 4, 16, 64, 512)
PRODUCTS_MAX = 2 << 30
"""Larger ones are left out: they take seconds in fp32."""
NAMES = ("int8", "int4", "int4 symmetric", "oneDNN int8", "bf16", "fp32")

Call = Callable[[], object]


def calls(outputs: int, inputs: int, rows: int) -> list[Call]:
    weight = torch.randn(outputs, inputs)
    fine = to_int4(weight)
    ours = [
        Product([kind], [None])
        for kind in (to_int8(weight), fine, dataclasses.replace(fine, minimum=None))
    ]
    x = torch.randn(rows, inputs)
    half, half_weight = x.bfloat16(), weight.bfloat16()
    made: list[Call] = [lambda one=one: one(half) for one in ours]
    made.append(one_dnn(weight, rows))
    made.append(lambda: linear(half, half_weight))
    made.append(lambda: linear(x, weight))
    return made


def one_dnn(weight: torch.Tensor, rows: int) -> Call:
    """8-bit activations without the rounding of them: what is the least that int8 can cost."""
    outputs, inputs = weight.shape
    scale = weight.abs().amax(1) / 127
    packed = torch.ops.onednn.qlinear_prepack(
        (weight / scale[:, None]).round().to(torch.int8), [rows, inputs]
    )
    x = torch.randint(0, 255, (rows, inputs), dtype=torch.uint8)
    one, zero = torch.tensor(1.0), torch.tensor(128)
    zeros = torch.zeros(outputs, dtype=torch.int64)
    tail = (None, 1.0, 0, torch.float32, "none", [], "")
    return lambda: torch.ops.onednn.qlinear_pointwise(x, one, zero, packed, scale, zeros, *tail)


def least_us(made: Sequence[Call], turns: int) -> list[float]:
    best = [float("inf")] * len(made)
    for _ in range(turns):
        for index, call in enumerate(made):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return [seconds * 1e6 for seconds in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    native = start_native()
    print(f"kernels: {native.instruction_set or native.problem}; {given.threads} threads")
    table = []
    for outputs, inputs in SHAPES:
        for rows in ROWS:
            if outputs * inputs * rows > PRODUCTS_MAX:
                continue
            taken = least_us(calls(outputs, inputs, rows), given.turns if rows < 64 else 8)
            ratio = f"{taken[NAMES.index('bf16')] / taken[0]:.1f}"
            cells = [f"{one:.0f}" for one in taken]
            table.append([f"{inputs}x{outputs}", str(rows), *cells, ratio])
    print_table("one linear layer, us", ["K x N", "rows", *NAMES, "bf16 / int8"], table)


if __name__ == "__main__":
    main()
