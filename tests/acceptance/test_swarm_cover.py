"""Cover lost and found, origins and clients lost: one swarm of two halves and two gateways."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from swarm_procs import Node, NodePlan, Swarm

pytestmark = pytest.mark.xdist_group("processes")

BODY: dict[str, Any] = {
    "model": "smollm2",
    "prompt": "Once upon a time, in a small house by the sea,",
    "max_tokens": 24,
    "ignore_eos": True,
}
SHORT_WAIT = (("SWARM_ROUTING_COVER_WAIT_S", "1.5"),)
LONG_WAIT = (("SWARM_ROUTING_COVER_WAIT_S", "120"),)
"""A node may need this long to return on a machine that has much else to do."""
IDLE_CPU_PERCENT = 25.0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Swarm]:
    with Swarm(tmp_path_factory.mktemp("halves")) as made:
        made.start(NodePlan("patient", environment=LONG_WAIT))
        made.start(NodePlan("hasty", environment=SHORT_WAIT))
        made.start(NodePlan("a", smollm2, "0:15"))
        made.start(NodePlan("b", smollm2, "15:30"))
        made.await_ready()
        yield made


def away_and_back(swarm: Swarm, name: str) -> None:
    swarm.restart(swarm.nodes[name])
    swarm.await_ready()


def test_the_gateway_of_a_lonely_node_opens_at_once(tmp_path: Path) -> None:
    """It knows one peer that is not there, answers all the same, and says what is missing."""
    with socket.socket() as nobody, Swarm(tmp_path) as alone:
        nobody.bind(("127.0.0.1", 0))
        node = alone.start(NodePlan("lonely"), peers=[f"127.0.0.1:{nobody.getsockname()[1]}"])
        assert node.gateway.call("GET", "/v1/models") == (200, {"object": "list", "data": []})
        assert node.gateway.call("GET", "/healthz")[0] == 200
        assert node.gateway.call("GET", "/readyz")[0] == 503
        status, body = node.gateway.call("POST", "/v1/completions", BODY)
        assert status == 404
        assert "smollm2" in body["error"]["message"]
        assert node.interrupt() == 0


def test_without_cover_requests_are_refused_and_models_unlisted(swarm: Swarm) -> None:
    origin = swarm.nodes["patient"]
    origin.ask(**BODY).finish()
    assert origin.gateway.call("GET", "/readyz?model=smollm2")[0] == 200
    swarm.nodes["b"].kill()
    swarm.wait(lambda: not origin.gateway.call("GET", "/v1/models")[1]["data"], "b to be missed")
    response = origin.gateway.open("POST", "/v1/completions", BODY)
    text = response.read().decode()
    assert response.status == 503
    assert int(response.headers["Retry-After"]) > 0
    assert "15:30" in text
    assert origin.gateway.call("GET", "/readyz?model=smollm2")[0] == 503
    (model,) = origin.state()["models"]
    assert (model["covered"], model["missing"]) == (False, [{"start": 15, "stop": 30}])
    away_and_back(swarm, "b")
    assert [m["id"] for m in origin.gateway.call("GET", "/v1/models")[1]["data"]] == ["smollm2"]


def test_a_returned_node_stands_there_once(swarm: Swarm) -> None:
    swarm.nodes["a"].kill()
    away_and_back(swarm, "a")
    for node in swarm.running():
        entries = [entry for entry in node.state()["nodes"] if entry["name"] == "a"]
        assert [entry["state"] for entry in entries] == ["alive"]


def test_an_answer_waits_for_cover_to_return(swarm: Swarm) -> None:
    origin = swarm.nodes["patient"]
    wanted = origin.ask(**BODY).finish()
    answer = origin.ask(**BODY).read_to(6)
    swarm.nodes["b"].kill()
    away_and_back(swarm, "b")
    answer.finish()
    assert answer.error is None
    assert answer.ids == wanted.ids
    assert answer.swarm["reroutes"] >= 1


def test_an_answer_without_cover_ends_with_an_error(swarm: Swarm) -> None:
    origin = swarm.nodes["hasty"]
    answer = origin.ask(**BODY).read_to(6)
    swarm.nodes["b"].kill()
    answer.finish()
    assert answer.error is not None
    assert "15:30" in answer.error["message"]
    assert not answer.done
    assert answer.finish_reason is None
    whole = origin.gateway.open("POST", "/v1/completions", BODY)
    assert whole.status == 503
    whole.read()
    swarm.await_idle()
    away_and_back(swarm, "b")


def test_a_stop_string_across_the_loss(swarm: Swarm) -> None:
    """Part of the stop string came before the kill, the rest after it."""
    origin = swarm.nodes["patient"]
    free = origin.ask(**BODY)
    free.read_to(8)
    before = len(free.text)
    text = free.finish().text
    stop = text[before - 3 : before + 3]
    wanted = text[: text.index(stop)]
    undisturbed = origin.ask(**BODY, stop=[stop]).finish()
    assert (undisturbed.text, undisturbed.finish_reason) == (wanted, "stop")
    answer = origin.ask(**BODY, stop=[stop]).read_to(7)
    swarm.nodes["b"].kill()
    away_and_back(swarm, "b")
    answer.finish()
    assert (answer.text, answer.finish_reason) == (wanted, "stop")
    assert answer.token_counts == undisturbed.token_counts


def test_a_lost_origin_frees_every_hop(swarm: Swarm) -> None:
    origin = swarm.nodes["hasty"]
    answer = origin.ask(**BODY | {"max_tokens": 2000}).read_to(3)
    assert swarm.nodes["a"].state()["hops"]
    origin.kill()
    swarm.await_idle()
    assert not answer.finish().done
    away_and_back(swarm, "hasty")


def test_a_lost_client_frees_every_hop(swarm: Swarm) -> None:
    swarm.nodes["patient"].ask(**BODY | {"max_tokens": 2000}).read_to(3).close()
    swarm.await_idle()


def test_a_worker_that_crashes_comes_back(swarm: Swarm) -> None:
    """The daemon lives on, withdraws the shard and announces it again; the answer goes on."""
    origin, hop = swarm.nodes["patient"], swarm.nodes["b"]
    wanted = origin.ask(**BODY).finish()
    answer = origin.ask(**BODY).read_to(6)
    for worker in hop.workers():
        worker.kill()
    answer.finish()
    assert answer.error is None
    assert answer.ids == wanted.ids
    assert hop.alive
    swarm.await_ready()


def test_survivors_are_idle_after_a_kill(swarm: Swarm) -> None:
    """No spinning and no flood of log lines while a peer is missing."""
    answer = swarm.nodes["patient"].ask(**BODY).read_to(4)
    swarm.nodes["a"].kill()
    survivors = [n for n in swarm.running() if n.name != "hasty"]

    def idle(node: Node) -> bool:
        processes = [psutil.Process(node.process.pid), *node.workers()]
        before = len(node.lines)
        busy = sum(p.cpu_percent(interval=0.3) for p in processes)
        return busy < IDLE_CPU_PERCENT and len(node.lines) - before < 20

    for node in survivors:
        swarm.wait(lambda node=node: idle(node), f"{node.name} to be idle", 20.0)  # type: ignore[misc]
    away_and_back(swarm, "a")
    assert answer.finish().error is None


def test_ctrl_c_leaves_in_good_order(swarm: Swarm) -> None:
    leaver, stayer = swarm.nodes["hasty"], swarm.nodes["patient"]
    assert leaver.interrupt() == 0
    swarm.wait(lambda: leaver.view(stayer.state()).get("state") == "left", "hasty to have left")
    away_and_back(swarm, "hasty")
