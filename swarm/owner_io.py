"""Looks at what the machine's other programs need, for `owner`.

Programs of low priority do not count: they give way by themselves, as this node's worker does.
"""

from __future__ import annotations

import asyncio
import csv
import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from swarm.asks import ComeBack, GiveWay
from swarm.owner import Memory, Owner, Reading
from swarm.owner_config import OwnerConfig

NVIDIA_QUERY = (
    "nvidia-smi",
    "--query-gpu=memory.free,memory.total",
    "--format=csv,noheader,nounits",
)
QUERY_S = 5.0
"""A driver that takes longer is not asked again."""
MACHINE = "memory"


class Machine:
    """Readings of this machine, for the process `pid` and its children."""

    def __init__(self, pid: int) -> None:
        self._own = psutil.Process(pid)
        self._at = time.monotonic()
        self._busy_s = _busy_s()
        self._own_s = _own_s(self._family())

    def read(self, devices: tuple[Memory, ...] = ()) -> Reading:
        """`devices`: memories beside the machine's own. Milliseconds."""
        family = self._family()
        now, busy_s, own_s = time.monotonic(), _busy_s(), _own_s(family)
        span_s = max(1e-3, now - self._at) * (psutil.cpu_count() or 1)
        taken_s = (busy_s - self._busy_s) - max(0.0, own_s - self._own_s)
        self._at, self._busy_s, self._own_s = now, busy_s, own_s
        memory = psutil.virtual_memory()
        return Reading(
            others_share=min(1.0, max(0.0, taken_s / span_s)),
            memories=(Memory(MACHINE, int(memory.available), int(memory.total)), *devices),
            own_bytes=sum(_resident(process) for process in family),
        )

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._own, *self._own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


async def watch_owner(
    config: OwnerConfig, device: str, tell: Callable[[GiveWay | ComeBack], None]
) -> None:
    """Until cancelled. `device`: as `--device` names it; of CUDA devices the free memory counts."""
    owner, machine = Owner(config), Machine(os.getpid())
    has_devices = "cuda" in device
    while True:
        await asyncio.sleep(config.look_s)
        devices: tuple[Memory, ...] = ()
        if has_devices:
            found = await _device_memories()
            has_devices, devices = found is not None, found or ()
        reading = await asyncio.to_thread(machine.read, devices)
        order = owner.see(reading, time.monotonic())
        if order is not None:
            tell(order)


async def _device_memories() -> tuple[Memory, ...] | None:
    """None: there is nothing to be learned of them."""
    try:
        process = await asyncio.create_subprocess_exec(
            *NVIDIA_QUERY,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        out, _ = await asyncio.wait_for(process.communicate(), QUERY_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return None
    return device_memories(out.decode(errors="replace")) if process.returncode == 0 else None


def device_memories(text: str) -> tuple[Memory, ...]:
    """What the query printed: a line `free, total` in MiB for each device. Others are left out."""
    found = []
    for number, row in enumerate(csv.reader(text.splitlines(), skipinitialspace=True)):
        if len(row) == 2 and all(cell.strip().isdecimal() for cell in row):
            free, total = (int(cell) << 20 for cell in row)
            found.append(Memory(f"the memory of GPU {number}", free, total))
    return tuple(found)


def _busy_s() -> float:
    """Of all processors, since the machine started; without what runs at low priority."""
    times = psutil.cpu_times()
    extra = sum(getattr(times, name, 0.0) for name in ("irq", "softirq", "interrupt", "dpc"))
    return float(times.user + times.system + extra)


def _own_s(family: list[psutil.Process]) -> float:
    """What of that is this node's own: a worker of low priority takes system time only."""
    total = 0.0
    for process in family:
        with suppress(psutil.Error):
            times = process.cpu_times()
            is_low = hasattr(os, "nice") and process.nice() > 0
            total += times.system + (0.0 if is_low else times.user)
    return total


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
