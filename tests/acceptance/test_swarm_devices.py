"""One node, two devices: a model that neither holds alone, and what the loss of a worker costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from prompts import PROMPTS, long_prompt
from reference_ids import Reference, reference
from swarm_procs import Node, NodePlan, Swarm
from tiny_models import save_tiny

from swarm.gateway.client_io import Json, running_node

pytestmark = pytest.mark.xdist_group("processes")

TOKENS = 24
PROMPTS_HERE = [PROMPTS[0], long_prompt(6, number=1)]
TINY: dict[str, Any] = {"prompt": [5, 9, 12, 7], "max_tokens": 40, "ignore_eos": True, "seed": 3}
BOTH = ("--device", "cpu,cpu", "--memory", "800MiB")
"""SmolLM2 in float32 takes 620 MiB; of each device 380 MiB are for weights."""


def workers(node: Node) -> list[psutil.Process]:
    """The oldest first: in the order of their devices, before any was lost."""
    found = []
    for process in node.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "swarm.shard.worker_io" in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def shard_of(node: Node, model: str) -> Json:
    return next(s for s in node.view(node.state())["shards"] if s["model"] == model)


def change(node: Node, what: str, **asked: Any) -> str:
    told = list(running_node(node.home).client().change_models(what, asked))
    return str(told[-1]["event"])


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    with Swarm(tmp_path) as swarm:
        yield swarm


@pytest.fixture
def node(swarm: Swarm, smollm2: Path) -> Node:
    patience = (("SWARM_ROUTING_COVER_WAIT_S", "120"),)
    node = swarm.start(NodePlan("both", smollm2, extra=BOTH, environment=patience))
    swarm.await_ready()
    return node


def lose(swarm: Swarm, node: Node, place: int, want: Reference, prompt: str) -> None:
    """kill -9 of one worker in mid-answer; the answer waits until it is back."""
    answer = node.ask(model="smollm2", prompt=prompt, max_tokens=TOKENS, ignore_eos=True)
    answer.read_to(5)
    workers(node)[place].kill()
    answer.finish()
    assert answer.error is None and answer.ids == want.ids
    assert answer.swarm["exact"] is True and answer.swarm["reroutes"] >= 1
    swarm.wait(lambda: len(workers(node)) == 2, "the worker to be back")


def lost(node: Node) -> list[int]:
    return [note["device"] for note in node.notes if note["event"] == "worker.lost"]


def test_two_devices_hold_what_neither_does(
    swarm: Swarm, node: Node, tmp_path: Path, smollm2: Path, reference_cache: Path
) -> None:
    """Ids are those of transformers; after the loss of a worker in mid-answer too; a second model
    comes and goes meanwhile."""
    wanted = reference(smollm2, PROMPTS_HERE[:1], TOKENS, reference_cache)
    save_tiny(tmp_path / "tiny", "llama", initializer_range=0.05)
    shard = shard_of(node, "smollm2")
    assert (shard["start"], shard["stop"], len(shard["cuts"])) == (0, 30, 1)
    assert node.view(node.state())["device"].startswith("2 x ")
    asked = {"model": "smollm2", "prompt": PROMPTS_HERE[0], "max_tokens": TOKENS}
    answer = node.ask(**asked, ignore_eos=True).finish()
    assert answer.ids == wanted[0].ids and answer.error is None
    assert answer.swarm["exact"] is True and len(answer.swarm["route"]) == 1
    assert change(node, "load", path=str(tmp_path / "tiny"), name="tiny") == "shard.serving"
    alone = node.ask(model="tiny", **TINY).finish()
    assert len(alone.ids) == TINY["max_tokens"] and alone.error is None
    lose(swarm, node, 1, wanted[0], PROMPTS_HERE[0])
    assert lost(node) == [1]
    swarm.wait(lambda: shard_of(node, "tiny")["state"] == "serving", "tiny to be back")
    assert node.ask(model="tiny", **TINY).finish().ids == alone.ids
    assert change(node, "unload", model="tiny") == "shard.unloaded"
    swarm.await_idle()


@pytest.mark.slow
def test_either_worker_may_be_lost_again_and_again(
    swarm: Swarm, node: Node, smollm2: Path, reference_cache: Path
) -> None:
    wanted = reference(smollm2, PROMPTS_HERE, TOKENS, reference_cache)
    for _ in range(3):
        lose(swarm, node, 0, wanted[1], PROMPTS_HERE[1])
    assert lost(node) == [0, 1, 0]
    swarm.await_idle()
