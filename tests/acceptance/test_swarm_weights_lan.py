"""Four hosts on a LAN: one has a checkpoint and little room, three have nothing but the program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import swarm_netns
from swarm_http import Json
from swarm_netns import Lan
from swarm_procs import Node, NodePlan, Swarm
from whole_model import whole_at

from swarm.terms import LayerRange
from swarm.weights.layout import file_plans, needed_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not())),
]

LAYERS = 30
BODY: dict[str, Any] = {
    "model": "smollm2", "prompt": "Rain falls on", "max_tokens": 12, "ignore_eos": True, "seed": 5,
}  # fmt: skip
ROOM = {"north": 12, "east": 16, "south": 16, "west": 16}
LAYER_BYTES = 14_200_000
EMBED_BYTES = 113_300_000
WORK_BYTES = 256 << 20
WEIGHTS_SHARE = 0.7
SERVING_DEADLINE_S = 400.0


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(4, "w") as made:
        yield made


def plan(lan: Lan, name: str, model: Path | None = None) -> NodePlan:
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
    shards = node.view(node.state()).get("shards", [])
    return shards[0] if shards and shards[0]["state"] == "serving" else None


def layers_of(swarm: Swarm, node: Node) -> LayerRange:
    shard = swarm.wait(lambda: shard_of(node), f"{node.name} to serve", SERVING_DEADLINE_S)
    return LayerRange(shard["start"], shard["stop"])


def check_disk(node: Node, model: Path, cache: Path, layers: LayerRange) -> None:
    """Its own files and no others, of the size that follows from the manifest."""
    manifest = whole_at(model, cache).manifest
    ends = {"embed": layers.start == 0, "head": layers.stop == LAYERS}
    wanted = file_plans(manifest, needed_files(manifest, layers, **ends))
    (folder,) = (node.home / "models").iterdir()
    found = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
    assert found == {each.name: each.byte_count for each in wanted}


def test_hosts_without_files_and_a_host_that_lost_its_own(
    tmp_path: Path, lan: Lan, smollm2: Path
) -> None:
    with Swarm(tmp_path) as swarm:
        north = swarm.start(plan(lan, "north", smollm2))
        assert len(layers_of(swarm, north)) == ROOM["north"]
        others = [swarm.start(plan(lan, name)) for name in ("east", "south", "west")]
        held = {node.name: layers_of(swarm, node) for node in others}

        answer = others[-1].ask(**BODY).finish()

        assert answer.error is None
        for node in others:
            check_disk(node, smollm2, tmp_path / "hashes", held[node.name])
        north.kill()
        shutil.rmtree(north.home)
        again = swarm.start(plan(lan, "north"))
        layers = layers_of(swarm, again)
        check_disk(again, smollm2, tmp_path / "hashes", layers)
        for node in (again, *others):
            found = node.ask(**BODY).finish()
            assert found.error is None
            assert found.ids == answer.ids
