"""The machines of a plan: how they are named, and how fast they are taken to be. Pure.

Speeds are estimates from memory bandwidth and arithmetic: one token reads every weight that it
passes once, a prompt is bound by arithmetic, and each layer costs something whatever its size. A
node that runs measures itself instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swarm.devices import DEVICES_MAX
from swarm.errors import ConfigError
from swarm.options import parse_bytes
from swarm.terms import NodeId

MEMORY_SHARE = 0.7
"""Of a machine's memory that `swarm join` takes by itself."""
EFFICIENCY = 0.6
"""Of a GPU's nominal bandwidth and arithmetic that a model gets to see."""
GB, TERA = 1e9, 1e12
BANDWIDTH_MAX_GB = 100_000.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a device is taken to do: GB/s and teraflops as reached, seconds per layer on top."""

    gb_s: float
    tflops: float
    layer_s: float


CPU, GPU = 100e-6, 60e-6
"""Fixed cost of a layer: calls from Python, and small operations beside the large ones."""
PLAIN = {
    "cpu": Pace(30, 0.5, CPU),
    "cuda": Pace(360, 40, GPU),
    "mps": Pace(120, 6, GPU),
}
"""Of a device about which nothing else is said: a desktop with two memory channels, a mid-range
card, a laptop's chip."""
NOMINAL = {
    "rtx5090": (1792, 210), "rtx5080": (960, 112), "rtx5070": (672, 61), "rtx4090": (1008, 165),
    "rtx4080": (717, 97), "rtx4070": (504, 58), "rtx4060": (272, 30), "rtx3090": (936, 71),
    "rtx3080": (760, 59), "rtx3060": (360, 25), "v100": (900, 112), "t4": (320, 65),
    "l4": (300, 121), "l40s": (864, 362), "a10": (600, 125), "a100": (1935, 312),
    "h100": (3350, 989), "h200": (4800, 989), "m1": (68, 5), "m1pro": (200, 10),
    "m1max": (400, 20), "m1ultra": (800, 40), "m2": (100, 7), "m2pro": (200, 13),
    "m2max": (400, 27), "m2ultra": (800, 54), "m3": (100, 8), "m3pro": (150, 14),
    "m3max": (400, 28), "m3ultra": (819, 57), "m4": (120, 9), "m4pro": (273, 18),
    "m4max": (546, 36),
}  # fmt: skip
"""By name: GB/s of memory and teraflops of 16-bit arithmetic, as their makers give them."""
_SPEC = re.compile(r"([^:]+)(?::([A-Za-z0-9]+))?(?::(\d+(?:\.\d+)?)\s*GB/s)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """`taken_bytes`: what a node takes of its memory."""

    name: str
    memory_bytes: int
    pace: Pace

    @property
    def taken_bytes(self) -> int:
        return int(self.memory_bytes * MEMORY_SHARE)


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One machine, with a worker for each of its devices."""

    node: NodeId
    name: str
    devices: tuple[PlannedDevice, ...]

    @property
    def device(self) -> str:
        return "+".join(device.name for device in self.devices)

    @property
    def memory_bytes(self) -> int:
        return sum(device.memory_bytes for device in self.devices)


def parse_nodes(texts: list[str]) -> tuple[PlannedNode, ...]:
    """Each MEMORY[:DEVICE[:BANDWIDTH]], as 24GB:cuda, 8GB:cpu, 32GB:rtx5090, 16GB:cpu:60GB/s;
    devices of one machine with + between.

    Raises ConfigError.
    """
    if not texts:
        raise ConfigError("say which machines there are: --node 24GB:cuda --node 8GB:cpu")
    return tuple(_node(number, text) for number, text in enumerate(texts, 1))


def _node(number: int, text: str) -> PlannedNode:
    devices = tuple(_device(part.strip()) for part in text.split("+"))
    if len(devices) > DEVICES_MAX:
        raise ConfigError(f"{len(devices)} devices were named, one node works with {DEVICES_MAX}")
    names = "+".join(device.name for device in devices)
    return PlannedNode(NodeId(f"{number:032}"), f"{number}-{names}", devices)


def _device(text: str) -> PlannedDevice:
    match = _SPEC.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"a machine is given as MEMORY:DEVICE or MEMORY:DEVICE:BANDWIDTH, such as 24GB:cuda or"
            f" 16GB:cpu:60GB/s, not {text!r}"
        )
    name = (match[2] or "cpu").lower()
    pace = _pace(name)
    if match[3] is not None:
        given = float(match[3])
        if not 0 < given <= BANDWIDTH_MAX_GB:
            raise ConfigError(f"a bandwidth is above 0 and at most {BANDWIDTH_MAX_GB:.0f} GB/s")
        pace = Pace(given, pace.tflops, pace.layer_s)
    return PlannedDevice(name, parse_bytes(match[1]), pace)


def _pace(device: str) -> Pace:
    if device in PLAIN:
        return PLAIN[device]
    nominal = NOMINAL.get(device)
    if nominal is None:
        known = ", ".join([*PLAIN, *NOMINAL])
        raise ConfigError(f"{device!r} is not a device that is known here; known: {known}")
    return Pace(EFFICIENCY * nominal[0], EFFICIENCY * nominal[1], GPU)
