"""Four hosts on a LAN, for tests and benchmarks: one has SmolLM2 and room for twelve of its thirty
layers, three have nothing but the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swarm_http import Json
from swarm_netns import Lan
from swarm_procs import Node, NodePlan

BODY: dict[str, Any] = {
    "model": "smollm2", "prompt": "Rain falls on", "max_tokens": 12, "ignore_eos": True, "seed": 5,
}  # fmt: skip
FIRST = "north"
ROOM = {FIRST: 12, "east": 16, "south": 16, "west": 16}
LAYER_BYTES = 14_200_000
EMBED_BYTES = 113_300_000
WORK_BYTES = 256 << 20
WEIGHTS_SHARE = 0.7


def plan(lan: Lan, name: str, model: Path | None = None) -> NodePlan:
    """One of `ROOM`, with `model` or with what it gets from others."""
    index = list(ROOM).index(name)
    weights = ROOM[name] * LAYER_BYTES + 2 * EMBED_BYTES
    return NodePlan(
        name,
        model,
        listen="0.0.0.0:0",
        gateway="127.0.0.1:8000",
        mdns=True,
        namespace=lan.hosts[index],
        connect=lan.connect_inside(index),
        takes_part=model is None,
        extra=("--memory", str(int(weights / WEIGHTS_SHARE) + WORK_BYTES)),
    )


def shard_of(node: Node) -> Json | None:
    """What it serves, if it does."""
    shards = node.view(node.state()).get("shards", [])
    return shards[0] if shards and shards[0]["state"] == "serving" else None
