"""One node serves a model all the time and loads and unloads another one, again and again; a second
node, which took its layers from it, is killed with SIGKILL and started anew each time. Every answer
must have the same ids, and what the first node's processes and both disks hold must not grow.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rig import console, end_orderly, print_machine, print_table
from swarm_procs import Node, NodePlan, Swarm
from tiny_models import save_tiny

from swarm.gateway.client_io import Json, running_node

SIZES = {
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "head_dim": 64,
    "initializer_range": 0.05, "vocab_size": 512,
}  # fmt: skip
WARM_CYCLES = 5
"""Not judged: allocators and caches take what they will keep."""
DAEMON_SLACK_BYTES = 24 << 20
WORKER_SLACK_BYTES = 48 << 20
"""More than one layer of the model, far less than the model."""


@dataclass(frozen=True, slots=True)
class Held:
    """By the first node after a cycle, and by both on disk."""

    daemon_bytes: int
    worker_bytes: int
    descriptors: int
    threads: int
    disk_bytes: int


def held(nodes: Sequence[Node]) -> Held:
    first = nodes[0]
    daemon = psutil.Process(first.process.pid)
    workers = sum(worker.memory_info().rss for worker in first.workers())
    disk = sum(
        file.stat().st_size
        for node in nodes
        for file in node.home.rglob("*")
        if file.is_file() and not file.name.endswith((".log", "-wal", "-shm"))
    )
    return Held(daemon.memory_info().rss, workers, daemon.num_fds(), daemon.num_threads(), disk)


def ids_of(node: Node, model: str) -> list[int]:
    answer = node.ask(
        model=model, prompt=[5, 9, 12, 7], max_tokens=12, ignore_eos=True, seed=3
    ).finish()
    assert answer.error is None, answer.error
    return list(answer.ids)


def change(node: Node, what: str, asked: Json) -> None:
    told = list(running_node(node.home).client().change_models(what, asked))
    assert told[-1]["event"] in {"shard.serving", "shard.unloaded"}, told[-1]


def serves(node: Node) -> bool:
    shards = node.view(node.state()).get("shards", [])
    return any(shard["state"] == "serving" for shard in shards)


def soak(folder: Path, cycles: int) -> list[Held]:
    """What was held after each cycle. Raises AssertionError where an answer is wrong."""
    paths = {name: folder / name for name in ("base", "other")}
    for number, path in enumerate(paths.values()):
        save_tiny(path, "llama", **{**SIZES, "vocab_size": 512 + 16 * number})
    load: dict[str, Any] = {"path": str(paths["other"]), "name": "other", "layers": None}
    seen: list[Held] = []
    with Swarm(folder / "homes") as swarm:
        first = swarm.start(NodePlan("first", paths["base"]))
        swarm.wait(lambda: serves(first), "the first node to serve")
        second = swarm.start(NodePlan("second", takes_part=True))
        wanted: dict[str, list[int]] = {"base": ids_of(first, "base")}
        for _ in range(cycles):
            swarm.wait(partial(serves, second), "the second node to serve")
            assert ids_of(second, "base") == wanted["base"]
            change(first, "load", load)
            assert ids_of(first, "other") == wanted.setdefault("other", ids_of(first, "other"))
            change(first, "unload", {"model": "other"})
            second.kill()
            assert ids_of(first, "base") == wanted["base"]
            second = swarm.restart(second)
            seen.append(held([first, second]))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser("scripts/soak_models", description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    options = parser.parse_args()
    end_orderly()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="swarm-models-") as folder, console.status("cycling"):
        seen = soak(Path(folder), options.cycles)
    before, after = seen[min(WARM_CYCLES, len(seen)) - 1], seen[-1]
    print_machine()
    rows = [
        ("daemon, MiB", before.daemon_bytes >> 20, after.daemon_bytes >> 20),
        ("worker, MiB", before.worker_bytes >> 20, after.worker_bytes >> 20),
        ("descriptors", before.descriptors, after.descriptors),
        ("threads", before.threads, after.threads),
        ("disk, KiB", before.disk_bytes >> 10, after.disk_bytes >> 10),
    ]
    title = f"{len(seen)} cycles of load, unload and kill in {time.monotonic() - began:.0f} s"
    print_table(title, ["held", f"after {WARM_CYCLES}", f"after {len(seen)}"], rows)
    is_kept = (
        after.daemon_bytes <= before.daemon_bytes + DAEMON_SLACK_BYTES
        and after.worker_bytes <= before.worker_bytes + WORKER_SLACK_BYTES
        and after.descriptors <= before.descriptors + 4
        and after.threads <= before.threads + 2
        and after.disk_bytes <= before.disk_bytes + (1 << 20)
    )
    console.print("it holds" if is_kept else "it grows", style="green" if is_kept else "red")
    return 0 if is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
