"""A machine whose owner takes its memory: the node gives its layers up, and takes them again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from swarm_procs import Node, NodePlan, Swarm
from tiny_models import save_tiny

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.slow]

GIB = 1 << 30
SPARE_BYTES = 2 * GIB
"""Above the floor before the owner comes; other tests take and free some of it."""
TAKEN_BYTES = 5 * GIB
OWNER = f"""
import sys
taken = bytearray({TAKEN_BYTES})
for place in range(0, len(taken), 4096):
    taken[place] = 1
print("taken", flush=True)
sys.stdin.read()
"""


def serves(node: Node) -> bool:
    own = next(member for member in node.state()["nodes"] if member["self"])
    return any(shard["state"] == "serving" for shard in own["shards"])


def engines(node: Node) -> list[psutil.Process]:
    """Its worker processes, without the gateway's helper."""
    return [p for p in node.workers() if "swarm.shard.worker_io" in p.cmdline()]


def test_a_node_gives_way_to_its_owner_and_comes_back(tmp_path: Path) -> None:
    memory = psutil.virtual_memory()
    if memory.available < SPARE_BYTES + TAKEN_BYTES + GIB:
        pytest.skip("the machine has too little memory for an owner who takes 5 GiB")
    save_tiny(tmp_path / "model", "llama")
    environment = (
        ("SWARM_OWNER_MEMORY_FLOOR_SHARE", str((memory.available - SPARE_BYTES) / memory.total)),
        ("SWARM_OWNER_QUIET_S", "3"),
        ("SWARM_OWNER_LOOK_S", "0.5"),
        ("SWARM_OWNER_CPU_SHARE", "2"),
        ("SWARM_SHARD_MEMORY_BYTES", str(GIB // 2)),
    )
    ask = {"model": "model", "prompt": [5, 9, 12, 7], "max_tokens": 200, "ignore_eos": True}
    with Swarm(tmp_path) as swarm:
        used = swarm.start(
            NodePlan("used", tmp_path / "model", extra=("--yield-to-owner",),
                     environment=environment)
        )  # fmt: skip
        other = swarm.start(NodePlan("other", tmp_path / "model", "0:4"))
        swarm.await_ready()
        swarm.wait(lambda: serves(used), "both to serve")
        alone = used.ask(**ask).finish()
        answer = used.ask(**ask).read_to(5)
        with subprocess.Popen(
            [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as owner:
            assert owner.stdout is not None and owner.stdin is not None
            owner.stdout.readline()
            swarm.wait(lambda: not engines(used) and not serves(used), "the node to give way")
            answer.finish()
            assert answer.error is None and answer.ids == alone.ids
            during = used.ask(**ask).finish()
            assert during.error is None and during.ids == alone.ids, "its gateway goes on"
            owner.stdin.close()
        swarm.wait(lambda: serves(used), "the node to come back")
        assert used.ask(**ask).finish().ids == alone.ids
        assert serves(other)
        swarm.await_idle()
