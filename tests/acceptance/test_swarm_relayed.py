"""Two hosts that cannot reach each other, or by datagrams only, and two that both can reach."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import swarm_netns
from swarm_http import Json
from swarm_netns import Lan
from swarm_procs import Node, NodePlan, Swarm
from tiny_models import reference_ids, save_tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not())),
]

NORTH, MIDDLE, SOUTH, SPARE = range(4)
NAMES = ("north", "middle", "south", "spare")
BODY: dict[str, Any] = {
    "model": "smollm2", "prompt": "Rain falls on", "max_tokens": 32, "ignore_eos": True, "seed": 5,
}  # fmt: skip
TINY_LAYERS = 4
GREEDY: dict[str, Any] = {
    "model": "tiny", "prompt": [5, 9, 12, 7], "max_tokens": 200, "ignore_eos": True,
    "temperature": 0,
}  # fmt: skip
SERVING_DEADLINE_S = 240.0
HALF_BYTES = int((16 * 14_200_000 + 2 * 113_300_000) / 0.7) + (256 << 20)
"""Room for half of the layers, its ends and work space."""


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(4, "r") as made:
        yield made


def plan(lan: Lan, index: int, **more: Any) -> NodePlan:
    return NodePlan(
        NAMES[index],
        listen="0.0.0.0:0",
        gateway="127.0.0.1:8000",
        mdns=True,
        namespace=lan.hosts[index],
        connect=lan.connect_inside(index),
        **more,
    )


def serves(node: Node) -> Json | None:
    shards = node.view(node.state()).get("shards", [])
    return shards[0] if shards and shards[0]["state"] == "serving" else None


def way(node: Node, other: Node) -> str | None:
    """What kind of link there is between the two, as `node` measured it."""
    links = node.state()["links"]
    pair = {node.node_id, other.node_id}
    return next((link["kind"] for link in links if {link["node"], link["peer"]} == pair), None)


def test_downloads_answers_and_failover_by_way_of_a_third_host(
    tmp_path: Path, lan: Lan, smollm2: Path
) -> None:
    """South has no files: all that it serves comes from north, through the middle."""
    lan.part(NORTH, SOUTH)
    with Swarm(tmp_path) as swarm:
        middle = swarm.start(plan(lan, MIDDLE))
        north = swarm.start(plan(lan, NORTH, model=smollm2, layers="0:15"))
        swarm.wait(lambda: serves(north), "north to serve", SERVING_DEADLINE_S)
        memory = ("--memory", str(HALF_BYTES))
        south = swarm.start(plan(lan, SOUTH, takes_part=True, extra=memory))
        held = swarm.wait(lambda: serves(south), "south to serve", SERVING_DEADLINE_S)
        assert 0 < held["start"] <= 15 and held["stop"] == 30
        swarm.wait(lambda: way(north, south) == "relayed", "the link to be a relayed one", 30.0)

        undisturbed = middle.ask(**BODY).finish()
        answer = north.ask(**BODY).finish()
        assert answer.ids == undisturbed.ids
        assert {entry["node"] for entry in answer.swarm["route"]} == {north.node_id, south.node_id}

        spare = swarm.start(plan(lan, SPARE))
        swarm.wait(
            lambda: way(spare, north) == way(spare, south) == "direct",
            "the spare host to be linked to both",
            30.0,
        )
        answer = north.ask(**BODY)
        answer.read_to(8)
        moment = time.monotonic()
        middle.kill()
        swarm.await_note(north, "link.down", since=moment)
        answer.finish()
        assert answer.error is None
        assert answer.ids == undisturbed.ids
        assert way(north, south) == "relayed"


def test_a_data_channel_carries_answers_where_datagrams_pass(tmp_path: Path, lan: Lan) -> None:
    """Then nothing passes any more, in mid-answer: the way by the third host is made anew."""
    sizes = {"num_hidden_layers": TINY_LAYERS, "initializer_range": 0.05}
    whole = save_tiny(tmp_path / "tiny", "llama", **sizes)
    right = reference_ids(whole, GREEDY["prompt"], GREEDY["max_tokens"])
    lan.part(NORTH, SOUTH, "tcp")
    on = {"model": tmp_path / "tiny", "environment": (("SWARM_LINK_WEBRTC", "on"),)}
    with Swarm(tmp_path) as swarm:
        swarm.start(plan(lan, MIDDLE))
        north = swarm.start(plan(lan, NORTH, layers="0:2", **on))
        south = swarm.start(plan(lan, SOUTH, layers="2:4", **on))
        swarm.await_ready(SERVING_DEADLINE_S)
        swarm.wait(lambda: way(north, south) == "webrtc", "the link to be a channel", 60.0)
        assert north.ask(**GREEDY).finish().ids == right
        answer = south.ask(**GREEDY).read_to(40)
        assert way(south, north) == "webrtc"
        moment = time.monotonic()
        lan.part(NORTH, SOUTH, "udp")
        swarm.await_note(south, "link.down", since=moment)
        answer.finish()
        assert answer.error is None
        assert answer.ids == right
        swarm.wait(lambda: way(south, north) == "relayed", "the link to be a relayed one", 30.0)
