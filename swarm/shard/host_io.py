"""What a worker process arranges with its operating system."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import psutil
import torch

from swarm.cores_io import usable_cores

_PR_SET_PDEATHSIG = 1
_NICENESS = 5
MEMORY_SHARE = 0.7
"""Of what is free at start, when the owner names no limit: the machine has other things to do."""


def settle_in(parent_pid: int) -> None:
    """Die with the daemon, leave Ctrl-C to it, and let its heartbeats have the CPU first.

    Where the system cannot kill orphans, the end of the socket does it one step later.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before the call above
            sys.exit("the daemon is gone")


def use_threads(count: int) -> None:
    """0: all physical cores that this process may use."""
    torch.set_num_threads(count or usable_cores())
    torch.set_num_interop_threads(1)


def memory_budget(limit_bytes: int, device: torch.device) -> int:
    """Bytes that weights, KV and activations may take on the device."""
    return limit_bytes or int(_free_bytes(device) * MEMORY_SHARE)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return int(psutil.virtual_memory().available)


def give_memory_back(device: torch.device) -> None:
    """Freed KV goes back to the system at once, not when the allocator gets round to it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
