"""Models that running nodes are given and lose, while answers are under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from swarm_procs import Node, NodePlan, Swarm
from tiny_models import save_tiny

from swarm.gateway.client_io import Json, running_node

pytestmark = pytest.mark.xdist_group("processes")

LAYERS = 4
LONG: dict[str, Any] = {"prompt": [5, 9, 12, 7], "max_tokens": 240, "ignore_eos": True, "seed": 3}


def change(node: Node, what: str, **asked: Any) -> list[Json]:
    return list(running_node(node.home).client().change_models(what, asked))


def named(node: Node) -> set[str]:
    return {entry["id"] for entry in node.gateway.call("GET", "/v1/models")[1]["data"]}


def test_a_model_is_loaded_answers_and_goes_in_mid_answer(tmp_path: Path) -> None:
    """The second node takes over what ran on the first; who asks sees the same tokens."""
    sizes = {"num_hidden_layers": LAYERS, "initializer_range": 0.05}
    save_tiny(tmp_path / "base", "llama", **sizes)
    save_tiny(tmp_path / "other", "llama", **sizes, vocab_size=160)
    order = {"path": str(tmp_path / "other"), "name": "other", "layers": f"0:{LAYERS}"}
    with Swarm(tmp_path) as swarm:
        first = swarm.start(NodePlan("first", tmp_path / "base"))
        second = swarm.start(NodePlan("second", tmp_path / "base", f"0:{LAYERS}"))
        swarm.await_ready()
        assert [told["event"] for told in change(first, "load", **order)][-1] == "shard.serving"
        alone = first.ask(model="other", **LONG).finish()
        assert len(alone.ids) == LONG["max_tokens"] and alone.error is None
        assert change(second, "load", **order)[-1]["event"] == "shard.serving"
        swarm.wait(lambda: len(_servers(first, "other")) == 2, "both to serve it")
        for worker in second.workers():
            worker.kill()
        swarm.wait(lambda: _servers(first, "other") == ["first"], "the worker to be missed")
        swarm.wait(lambda: len(_servers(first, "other")) == 2, "both models to come back")
        assert len(_servers(first, "base")) == 2
        answer = first.ask(model="other", **LONG).read_to(5)
        assert [told["event"] for told in change(first, "unload", model="other")] == [
            "shard.unloaded"
        ], "another one has it"
        answer.finish()
        assert answer.error is None and answer.ids == alone.ids
        last, gone = change(second, "unload", model="other")
        assert (last["event"], last["layers"]) == ("shard.last_copy", f"0:{LAYERS}")
        assert gone["event"] == "shard.unloaded"
        swarm.wait(lambda: named(first) == {"base"}, "the model to be unlisted")
        assert first.ask(model="base", **{**LONG, "max_tokens": 5}).finish().error is None
        swarm.await_idle()


def _servers(node: Node, model: str) -> list[str]:
    return [
        member["name"]
        for member in node.state()["nodes"]
        if any(s["model"] == model and s["state"] == "serving" for s in member["shards"])
    ]
