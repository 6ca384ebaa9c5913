"""kill -9 of hops in mid-answer: the ids that follow are those of an undisturbed run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prompts import long_prompt
from swarm_http import Answer
from swarm_procs import Node, NodePlan, Swarm

pytestmark = pytest.mark.xdist_group("processes")

TOKENS = 24
LAST = TOKENS - 1
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
PROMPT = "Once upon a time, in a small house by the sea,"


def ask(origin: Node, sampling: dict[str, Any], **more: Any) -> Answer:
    body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True}
    return origin.ask(**(body | sampling | more))


def start(swarm: Swarm, model: Path, holders: dict[str, str]) -> Node:
    """A gateway that holds no layers, and one node per entry of `holders` (name: layers)."""
    origin = swarm.start(NodePlan("gateway"))
    for name, layers in holders.items():
        swarm.start(NodePlan(name, model, layers))
    swarm.await_ready()
    return origin


def lose(
    swarm: Swarm, origin: Node, places: list[int], at: int, sampling: dict[str, Any]
) -> list[Node]:
    """Kill the hops at `places` once `at` tokens are here; check the answer; returns the killed."""
    undisturbed = ask(origin, sampling).finish()
    assert undisturbed.error is None
    assert undisturbed.swarm["reroutes"] == 0
    answer = ask(origin, sampling)
    hops = swarm.hops(origin, answer.session if at else "")
    answer.read_to(at)
    victims = [hops[place] for place in places]
    for victim in victims:
        victim.kill()
    answer.finish()
    assert answer.error is None, answer.error
    assert answer.done
    assert answer.ids == undisturbed.ids
    assert answer.text == undisturbed.text
    assert answer.token_counts == undisturbed.token_counts
    assert answer.swarm["exact"] is True
    assert swarm.penalties() == {}
    if at < LAST:
        check_stalls(answer)
    return victims


def check_stalls(answer: Answer) -> None:
    assert answer.swarm["reroutes"] >= 1
    assert len(answer.swarm["stall_ms"]) >= 1
    assert all(stall > 0 for stall in answer.swarm["stall_ms"])


def test_first_and_last_hop_lost(tmp_path: Path, smollm2: Path) -> None:
    with Swarm(tmp_path) as swarm:
        holders = {"a1": "0:15", "a2": "0:15", "b1": "15:30", "b2": "15:30"}
        origin = start(swarm, smollm2, holders)
        lose(swarm, origin, [0], 2, GREEDY)
        lose(swarm, origin, [1], 17, SAMPLED)
        swarm.await_idle()


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Swarm]:
    """Every third of the model on two nodes."""
    with Swarm(tmp_path_factory.mktemp("doubled")) as swarm:
        holders = {
            f"{letter}{i}": layers
            for letter, layers in zip("abc", ["0:10", "10:20", "20:30"], strict=True)
            for i in (1, 2)
        }
        start(swarm, smollm2, holders)
        yield swarm


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("at", [0, 1, 2, 17, LAST])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
def test_one_hop_lost(doubled: Swarm, place: int, at: int, sampling: dict[str, Any]) -> None:
    lost_and_back(doubled, [place], at, sampling)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("places", [[0, 1], [1, 2], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_several_hops_lost_at_once(
    doubled: Swarm, places: list[int], sampling: dict[str, Any]
) -> None:
    lost_and_back(doubled, places, 9, sampling)


def lost_and_back(swarm: Swarm, places: list[int], at: int, sampling: dict[str, Any]) -> None:
    """Lose hops, then start the same nodes again and see that all is as before."""
    victims = lose(swarm, swarm.nodes["gateway"], places, at, sampling)
    swarm.await_idle()
    for victim in victims:
        swarm.restart(victim)
    swarm.await_ready()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_replacement_lost_while_it_rebuilds(
    tmp_path: Path, smollm2: Path, sampling: dict[str, Any]
) -> None:
    with Swarm(tmp_path) as swarm:
        holders = {"a": "0:10", "b1": "10:20", "b2": "10:20", "b3": "10:20", "c": "20:30"}
        origin = start(swarm, smollm2, holders)
        prompt = long_prompt(24, number=3)
        undisturbed = ask(origin, sampling, prompt=prompt).finish()
        answer = ask(origin, sampling, prompt=prompt)
        hops = swarm.hops(origin, answer.session)
        answer.read_to(5)
        moment = hops[1].kill()
        swarm.await_note(origin, "session.route", since=moment)
        replacement = swarm.hops(origin, answer.session)[1]
        assert replacement.name != hops[1].name
        replacement.kill()
        answer.finish()
        assert answer.error is None
        assert answer.ids == undisturbed.ids
        assert answer.swarm["reroutes"] == 2
        assert answer.swarm["exact"] is True
        assert swarm.penalties() == {}
        swarm.await_idle()
