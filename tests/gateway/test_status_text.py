"""`swarm status` as people read it."""

from __future__ import annotations

import io

import pytest
from map_states import node, whole
from rich.console import Console

from swarm.gateway.status_text import status_view
from swarm.terms import HubState


def printed(**of_node: object) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(status_view({**whole(), "nodes": [node("anna", [], **of_node)]}))
    return console.export_text()


@pytest.mark.parametrize(
    ("hub", "done_bytes", "text"),
    [
        (HubState.FETCHING, 5 << 20, "org/two (downloads it from the hub, 5 MiB so far)"),
        (HubState.WANTED, 0, "org/two (waits for its turn at the hub)"),
        (HubState.UNABLE, 0, "org/two (the hub does not give it to this node)"),
    ],
)
def test_a_model_of_the_hub_that_is_not_there_yet(
    hub: HubState, done_bytes: int, text: str
) -> None:
    want = {"model": "org/two", "state": hub.value, "done_bytes": done_bytes}
    assert text in printed(wants=[want])


def test_who_waits_for_a_model_is_not_told_to_bring_one() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    want = {"model": "org/two", "state": "wanted", "done_bytes": 0}
    for wants in ([], [want]):
        nodes = [node("anna", [], wants=wants)]
        console.print(status_view({**whole(), "models": [], "nodes": nodes}))
        assert ("--model DIR" in console.export_text()) is not bool(wants)


def test_every_state_of_such_a_model_has_its_words() -> None:
    for hub in HubState:
        if hub is not HubState.HELD:
            want = {"model": "org/two", "state": hub.value, "done_bytes": 0}
            assert "org/two (" in printed(wants=[want])
