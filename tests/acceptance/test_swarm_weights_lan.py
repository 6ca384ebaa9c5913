"""Four hosts on a LAN: one has a checkpoint and little room, three have nothing but the program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import swarm_netns
from bare_hosts import BODY, FIRST, ROOM, plan, shard_of
from swarm_netns import Lan
from swarm_procs import Node, Swarm
from whole_model import whole_at

from swarm.terms import LayerRange
from swarm.weights.layout import file_plans, needed_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not())),
]

LAYERS = 30
SERVING_DEADLINE_S = 400.0


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(4, "w") as made:
        yield made


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
        north = swarm.start(plan(lan, FIRST, smollm2))
        assert len(layers_of(swarm, north)) == ROOM[FIRST]
        others = [swarm.start(plan(lan, name)) for name in ("east", "south", "west")]
        held = {node.name: layers_of(swarm, node) for node in others}

        answer = others[-1].ask(**BODY).finish()

        assert answer.error is None
        for node in others:
            check_disk(node, smollm2, tmp_path / "hashes", held[node.name])
        north.kill()
        shutil.rmtree(north.home)
        again = swarm.start(plan(lan, FIRST))
        layers = layers_of(swarm, again)
        check_disk(again, smollm2, tmp_path / "hashes", layers)
        for node in (again, *others):
            found = node.ask(**BODY).finish()
            assert found.error is None
            assert found.ids == answer.ids
