"""Four hosts on a LAN of their own (network namespaces): finding each other, a host unplugged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import swarm_netns
from swarm_netns import Lan
from swarm_procs import Node, NodePlan, Swarm

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not())),
]

FOUND_DEADLINE_S = 30.0
"""Far above what is expected; `scripts/bench_detection` prints the time itself."""


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(4, "t") as made:
        yield made


def plan(lan: Lan, index: int, name: str, **more: object) -> NodePlan:
    base = NodePlan(
        name,
        listen="0.0.0.0:0",
        gateway="127.0.0.1:8000",
        mdns=True,
        namespace=lan.hosts[index],
        connect=lan.connect_inside(index),
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def test_hosts_find_each_other_by_multicast(tmp_path: Path, lan: Lan) -> None:
    with Swarm(tmp_path) as swarm:
        for index, name in enumerate(["north", "east", "south", "west"]):
            swarm.start(plan(lan, index, name))
        swarm.await_ready(FOUND_DEADLINE_S)
        for node in swarm.running():
            names = {entry["name"] for entry in node.state()["nodes"]}
            assert names == {"north", "east", "south", "west"}


def test_hearing_in_one_direction_is_enough(tmp_path: Path, lan: Lan) -> None:
    """One node knows an address, the others know nobody: all are linked all the same."""
    with Swarm(tmp_path) as swarm:
        first = swarm.start(plan(lan, 0, "north", mdns=False), peers=[])
        other = swarm.start(plan(lan, 1, "east", mdns=False), peers=[])
        port = first.view(first.state())["addresses"][0].rsplit(":", 1)[1]
        third = plan(lan, 2, "south", mdns=False)
        met = other.view(other.state())["addresses"][0].rsplit(":", 1)[1]
        swarm.start(third, peers=[f"{lan.address(0)}:{port}", f"{lan.address(1)}:{met}"])
        swarm.await_ready(FOUND_DEADLINE_S)


def test_hosts_without_any_address_but_their_own_ipv6_find_each_other(
    tmp_path: Path, lan: Lan
) -> None:
    for index in range(2):
        lan.forget_ipv4(index)
    with Swarm(tmp_path) as swarm:
        for index, name in enumerate(["north", "east"]):
            swarm.start(plan(lan, index, name, listen="[::]:0"))
        swarm.await_ready(FOUND_DEADLINE_S)
        for node in swarm.running():
            up = swarm.await_note(node, "link.up")
            assert [n for n in node.notes if n["event"] == "link.up"] == [up]
            assert not up["dialled"] or up["address"].startswith("[fe80::")


def holders(swarm: Swarm, lan: Lan, model: Path) -> Node:
    origin = swarm.start(plan(lan, 0, "north", model=model, layers="0:15"))
    for index, name, layers in [(1, "east", "15:30"), (2, "south", "15:30")]:
        swarm.start(plan(lan, index, name, model=model, layers=layers))
    swarm.await_ready()
    return origin


def test_a_host_unplugged_in_mid_answer(tmp_path: Path, lan: Lan, smollm2: Path) -> None:
    with Swarm(tmp_path) as swarm:
        origin = holders(swarm, lan, smollm2)
        body = {"model": "smollm2", "prompt": "Rain", "max_tokens": 32, "ignore_eos": True}
        undisturbed = origin.ask(**body).finish()
        answer = origin.ask(**body)
        hop = swarm.hops(origin, answer.session)[-1]
        answer.read_to(8)
        moment = time.monotonic()
        lan.unplug(lan.hosts.index(str(hop.plan.namespace)))
        swarm.await_note(origin, "session.reroute", since=moment)
        answer.finish()
        assert answer.error is None
        assert answer.ids == undisturbed.ids
        assert answer.swarm["reroutes"] >= 1
        assert hop.node_id not in {entry["node"] for entry in answer.swarm["route"]}


@pytest.mark.slow
def test_a_host_gets_another_address_in_mid_answer(tmp_path: Path, lan: Lan, smollm2: Path) -> None:
    """Its links die without a word; it is the same node at the new address, and has kept its KV."""
    with Swarm(tmp_path) as swarm:
        origin = swarm.start(plan(lan, 0, "north", model=smollm2, layers="0:15"))
        other = swarm.start(plan(lan, 1, "east", model=smollm2, layers="15:30"))
        swarm.await_ready(300.0)
        body = {"model": "smollm2", "prompt": "Rain", "max_tokens": 16, "ignore_eos": True}
        undisturbed = origin.ask(**body).finish()
        answer = origin.ask(**body)
        answer.read_to(4)
        moment = time.monotonic()
        lan.move(1, "10.77.0.101")
        swarm.await_note(origin, "session.reroute", since=moment)
        answer.finish()
        assert answer.error is None
        assert answer.ids == undisturbed.ids
        told = swarm.wait(
            lambda: [a for a in other.view(origin.state())["addresses"] if "10.77.0.101" in a],
            "the new address to go round",
            30.0,
        )
        assert told
