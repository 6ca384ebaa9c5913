"""What must be equal for two workers to compute the same bits, as one short string.

It holds, in this order: device family and its instruction set or architecture; on a CPU its vendor
too, since the math libraries choose kernels by it; dtype; weight quantization; our kernel set;
attention implementation, for attention over blocks with the dtype they are kept in, the piece size
of prompts, and `loose` where a row's bits may depend on its batch; torch and transformers versions;
and on a CPU the number of threads, since they partition sums. Equal strings promise equal bits for
equal calls, and nothing is promised otherwise. Cache sizes and library builds are not in it:
machines of one torch wheel and one vendor and instruction set are taken as equal.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch
import transformers

from swarm.kernels.native_io import start_native
from swarm.shard.batch import PIECE_TOKENS
from swarm.shard.stage import Stage
from swarm.terms import NumericClass

KERNEL_SET = "k4"
"""Rises whenever a kernel of ours, or how the engine calls one, may change a bit."""


def numeric_class(stage: Stage) -> NumericClass:
    dtype = str(stage.dtype).removeprefix("torch.")
    quantization = "plain" if stage.quantization == "none" else stage.quantization
    attention = _attention(stage)
    versions = f"torch{torch.__version__}-tf{transformers.__version__}"
    kernels = "-".join((KERNEL_SET, _kernels(stage.device), *stage.glue))
    parts = [_device(stage.device), dtype, quantization, kernels, attention, versions]
    if stage.device.type == "cpu":
        parts.append(f"t{torch.get_num_threads()}")
    return NumericClass("/".join(parts))


def _kernels(device: torch.device) -> str:
    native = start_native() if device.type == "cpu" else None
    return native.instruction_set if native and not native.problem else "torch"


def _attention(stage: Stage) -> str:
    if stage.kv is None:
        return stage.plain_attention
    kept = str(stage.kv.dtype).removeprefix("torch.")
    pieces = "" if stage.is_row_invariant else f"-p{PIECE_TOKENS}"
    return f"paged-{kept}-{stage.company.value}{pieces}"


def device_name(device: torch.device) -> str:
    """For people."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "mps":
        return f"{platform.machine()} GPU (mps)"
    return f"{_cpu_field('model name') or platform.machine()} ({torch.get_num_threads()} threads)"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda-sm{major}{minor}"
    if device.type == "mps":
        return f"mps-{platform.machine()}"
    amx = "-amx" if torch.cpu._is_amx_tile_supported() else ""
    vendor = _cpu_field("vendor_id") or platform.machine()
    return f"cpu-{vendor}-{torch.backends.cpu.get_cpu_capability()}{amx}"


def _cpu_field(name: str) -> str | None:
    """A field of the first processor in /proc/cpuinfo, where there is one."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return None
    lines = (line.partition(":") for line in info.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), None)
