"""The devices of one node, as its owner names them: one worker for each. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from swarm.config import ShardConfig
from swarm.errors import ConfigError
from swarm.options import parse_bytes

DEVICES_MAX = 16
"""Of one node. Each is a process of its own, and rows pass them one after the other."""
CPU = "cpu"
_NAME = re.compile(r"cpu|mps|cuda(:\d+)?")


def device_names(config: ShardConfig) -> tuple[str, ...]:
    """In the order of their layers. Raises ConfigError."""
    names = tuple(name.strip() for name in config.device.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a device; use cpu, cuda:N or mps, several with commas between"
            )
    if len(names) > DEVICES_MAX:
        raise ConfigError(f"{len(names)} devices were named, one node works with {DEVICES_MAX}")
    own = ["cuda:0" if name == "cuda" else name for name in names if name != CPU]
    for name in own:
        if own.count(name) > 1:
            raise ConfigError(f"device {name} was named twice; one worker has it to itself")
    return names


def workers_of(config: ShardConfig, free_bytes: int, cores: int) -> tuple[ShardConfig, ...]:
    """The config of each worker, in the order of the devices. Raises ConfigError.

    free_bytes  what all on the CPU may take together where the owner gives no memory
    cores       that these share where the owner gives no threads
    """
    names = device_names(config)
    if len(names) == 1:
        memory = _given(config, 1)[0]
        return (config if memory == config.memory_bytes else replace(config, memory_bytes=memory),)
    on_cpu = names.count(CPU)
    workers = []
    for name, given in zip(names, _given(config, len(names)), strict=True):
        memory, threads = given, config.threads
        if name == CPU:
            memory = memory or free_bytes // on_cpu
            threads = threads or max(1, cores // on_cpu)
        workers.append(replace(config, device=name, memory_bytes=memory, threads=threads))
    return tuple(workers)


def _given(config: ShardConfig, count: int) -> list[int]:
    """The memory that the owner allows on each device; 0: none was said."""
    if not config.device_memory:
        return [config.memory_bytes] * count
    sizes = [parse_bytes(text) for text in config.device_memory.split(",")]
    if len(sizes) not in (1, count):
        raise ConfigError(
            f"--memory gives {len(sizes)} sizes for {count} device{'s' if count > 1 else ''}; "
            "give one for each, or one that holds for each"
        )
    return sizes * count if len(sizes) == 1 else sizes
