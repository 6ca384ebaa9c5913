"""Copies of one home folder, as real nodes: each ends up as a node of its own, and says why."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import swarm_netns
from swarm_netns import Lan
from swarm_procs import Node, NodePlan, Swarm

from swarm import daemon
from swarm.errors import ConfigError
from swarm.home_io import Home
from swarm.link.identity import Identity
from swarm.terms import Address, short
from swarm.waiting_io import first_of

pytestmark = pytest.mark.xdist_group("processes")
SETTLED_S = 60.0


def copies(swarm: Swarm, names: str) -> str:
    """A node's home, copied under several names; the id of the node it was."""
    first = swarm.start(NodePlan("original"), peers=[])
    assert first.interrupt() == 0
    for name in names:
        shutil.copytree(first.home, swarm.folder / name)
    return first.node_id


def start_at_once(swarm: Swarm, plans: list[NodePlan], peers: list[str]) -> list[Node]:
    """A node that takes a new identity moves its gateway: nobody's is asked before `settle`."""
    starters = [
        threading.Thread(target=swarm.start, args=(plan,), kwargs={"peers": peers})
        for plan in plans
    ]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    return [swarm.nodes[plan.name] for plan in plans]


def settle(swarm: Swarm, nodes: list[Node]) -> None:
    """Wait until all see each other, each under an id of its own."""

    def settled() -> bool:
        try:
            for node in nodes:
                swarm._await_gateway(node)
            ids = {node.node_id for node in nodes}
            return len(ids) == len(nodes) and not swarm.unready()
        except OSError:
            return False  # a gateway has just moved

    swarm.wait(settled, "all copies to be nodes of their own", SETTLED_S)


def events(node: Node, event: str) -> list[dict[str, Any]]:
    return [entry for entry in list(node.notes) if entry["event"] == event]


def test_two_copies_that_meet(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        old = copies(swarm, "ab")
        first = swarm.start(NodePlan("a"), peers=[])
        (second,) = start_at_once(swarm, [NodePlan("b")], swarm.endpoints())
        settle(swarm, [first, second])
        assert first.node_id == old, "the one that started first keeps the identity"
        (told,) = events(first, "node.copied")
        assert told["yields"] is False
        (told,) = events(second, "node.copied")
        assert told["yields"] is True
        (renewed,) = events(second, "node.renewed")
        assert second.node_id.startswith(renewed["node"])
        kept = Path(renewed["kept"])
        assert kept.parent == second.home
        assert kept.read_text() == (first.home / "node.key").read_text().strip()
        assert kept.stat().st_mode & 0o777 == 0o600
        assert second.interrupt() == 0


@pytest.mark.parametrize(
    "names", ["abcde", pytest.param("abcdefghijklmnopqrst", marks=pytest.mark.slow)]
)
def test_many_copies_that_only_know_a_third_node(tmp_path: Path, names: str) -> None:
    with Swarm(tmp_path) as swarm:
        old = copies(swarm, names)
        hub = swarm.start(NodePlan("hub"), peers=[])
        nodes = start_at_once(swarm, [NodePlan(name) for name in names], swarm.endpoints())
        settle(swarm, [hub, *nodes])
        assert sum(node.node_id == old for node in nodes) == 1
        assert events(hub, "link.copied")
        for node in nodes:
            renewed = events(node, "node.renewed")
            assert len(renewed) == (node.node_id != old)
            assert events(node, "node.copied"), "both sides of every meeting say so"


@pytest.mark.slow
@pytest.mark.skipif(swarm_netns.why_not() is not None, reason=str(swarm_netns.why_not()))
def test_copies_that_only_hear_each_other(tmp_path: Path) -> None:
    """Hosts of one disk image on one LAN: mDNS is all they have."""
    with Lan(4, "c") as lan, Swarm(tmp_path) as swarm:
        old = copies(swarm, "abcd")
        plans = [
            NodePlan(
                name,
                listen="0.0.0.0:0",
                gateway="127.0.0.1:8000",
                mdns=True,
                namespace=host,
                connect=lan.connect_inside(index),
            )
            for index, (name, host) in enumerate(zip("abcd", lan.hosts, strict=True))
        ]
        nodes = start_at_once(swarm, plans, [])
        settle(swarm, nodes)
        assert sum(node.node_id == old for node in nodes) == 1


def test_quick_restarts_are_no_copies(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        hub = swarm.start(NodePlan("hub"), peers=[])
        node = swarm.start(NodePlan("a"))
        identity = node.node_id
        for _ in range(3):
            settle(swarm, [hub, node])
            node.kill()
            node = swarm.restart(node, peers=[hub.view(hub.state())["addresses"][0]])
        settle(swarm, [hub, node])
        assert node.node_id == identity
        for each in (hub, node):
            for event in ("link.copied", "node.copied", "node.copy_reported", "member.cloned"):
                assert not events(each, event)


def test_a_home_that_cannot_be_written_ends_the_node_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    old = Identity(home.node_seed(os.urandom)).node_id

    def refuse(self: Home, file: Path, text: str, *, secret: bool = False) -> None:
        raise ConfigError(f"cannot write {file}: read-only file system")

    monkeypatch.setattr(Home, "_write", refuse)
    with pytest.raises(ConfigError) as caught:
        daemon._take_new_identity(home, None, old, Address("10.0.0.7", 7000))  # type: ignore[arg-type]
    message = str(caught.value)
    assert "10.0.0.7:7000" in message
    assert str(tmp_path) in message
    assert "\n" not in message
    assert Identity(home.node_seed(os.urandom)).node_id == old


def test_a_new_seed_keeps_the_old_one_beside_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    seed = home.node_seed(os.urandom)
    label = short(Identity(seed).node_id)
    kept = home.renew_node_seed(label, os.urandom)
    assert bytes.fromhex(kept.read_text()) == seed
    assert home.node_seed(os.urandom) != seed
    assert kept.name == f"node-{label}.key"


def test_the_first_of_several_events_leaves_no_task_behind() -> None:
    async def scenario() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        waiting = asyncio.get_running_loop().create_task(first_of(one, two))
        await asyncio.sleep(0)
        two.set()
        await waiting
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
