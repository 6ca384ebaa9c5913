"""Looks at what the machine's other programs need, for `owner`.

Programs of low priority do not count: they give way by themselves, as this node's worker does.
"""

from __future__ import annotations

import asyncio
import csv
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

from swarm.asks import ComeBack, GiveWay
from swarm.owner import Memory, Owner, Reading
from swarm.owner_config import OwnerConfig

MEMORY_QUERY = "--query-gpu=index,uuid,memory.free,memory.total"
OWNERS_QUERY = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory"
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
        own = sum(_resident(process) for process in family)
        whole = Memory(MACHINE, int(memory.available), int(memory.total), own)
        return Reading(min(1.0, max(0.0, taken_s / span_s)), (whole, *devices))

    def pids(self) -> frozenset[int]:
        return frozenset(process.pid for process in self._family())

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._own, *self._own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


async def watch_owner(
    config: OwnerConfig, device: str, tell: Callable[[GiveWay | ComeBack], None]
) -> None:
    """Until cancelled. `device`: as `--device` names it; where it may be a CUDA device, the memory
    counts of cards on which the driver has seen processes of this node."""
    owner, machine, cards = Owner(config), Machine(os.getpid()), Cards()
    has_cards = "cuda" in device or device == "auto"
    while True:
        await asyncio.sleep(config.look_s)
        memories: tuple[Memory, ...] = ()
        if has_cards:
            free, owners = await _driver_says(MEMORY_QUERY), await _driver_says(OWNERS_QUERY)
            has_cards = free is not None and owners is not None
            pids = await asyncio.to_thread(machine.pids)
            memories = cards.told(free or "", owners or "", pids)
        reading = await asyncio.to_thread(machine.read, memories)
        order = owner.see(reading, time.monotonic())
        if order is not None:
            tell(order)


class Cards:
    """CUDA devices on which this node has been: which of them `--device` means, only CUDA knows."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def told(self, memories: str, owners: str, pids: frozenset[int]) -> tuple[Memory, ...]:
        """What the two queries printed: `index, uuid, free, total` and `uuid, pid, used`, in MiB.
        Lines that say something else are left out."""
        own: dict[str, int] = {}
        for uuid, pid, used in _rows(owners, 3):
            if pid.isdecimal() and int(pid) in pids:
                own[uuid] = own.get(uuid, 0) + (int(used) << 20 if used.isdecimal() else 0)
        self._used.update(own)
        return tuple(
            Memory(f"the memory of GPU {index}", int(free) << 20, int(total) << 20,
                   own.get(uuid, 0), is_card=True)
            for index, uuid, free, total in _rows(memories, 4)
            if uuid in self._used and free.isdecimal() and total.isdecimal()
        )  # fmt: skip


def _rows(text: str, width: int) -> Iterator[list[str]]:
    for row in csv.reader(text.splitlines()):
        if len(row) == width:
            yield [cell.strip() for cell in row]


async def _driver_says(query: str) -> str | None:
    """None: there is nothing to be learned of it."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nvidia-smi",
            query,
            "--format=csv,noheader,nounits",
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
    return out.decode(errors="replace") if process.returncode == 0 else None


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
