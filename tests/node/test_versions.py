"""Nodes of several protocol versions side by side: they work together, or refuse by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from swarm_procs import NodePlan, Swarm

pytestmark = pytest.mark.xdist_group("processes")


def build(low: int, high: int) -> tuple[str, ...]:
    """The program as a build that speaks these versions."""
    text = (
        "import sys; from swarm import messages;"
        f" messages.PROTOCOL_MIN, messages.PROTOCOL_MAX = {low}, {high};"
        " from swarm.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return (sys.executable, "-c", text)


def test_a_newer_node_works_with_an_older_one_and_an_alien_is_refused_by_name(
    tmp_path: Path,
) -> None:
    with Swarm(tmp_path) as swarm:
        old = swarm.start(NodePlan("old", program=build(1, 1)))
        new = swarm.start(NodePlan("new", program=build(1, 2)))
        swarm.await_ready()
        for node, other in ((old, new), (new, old)):
            seen = other.view(node.state())
            assert seen["state"] == "alive" and seen["linked"]
        alien = swarm.start(NodePlan("alien", program=build(3, 4)))
        theirs = {"old": "1", "new": "1-2"}

        def refused() -> set[str]:
            told = [
                str(note.get("cause", "")) + str(note.get("reason", "")) for note in alien.notes
            ]
            return {
                name
                for name, versions in theirs.items()
                if any(f"peer speaks protocol {versions}, we speak 3-4" in text for text in told)
            }

        swarm.wait(lambda: refused() == set(theirs), "the alien to be refused by both", 60.0)
        for node in (old, new):
            assert alien.view(node.state()).get("linked") is not True
        assert len(alien.state()["nodes"]) == 1
        swarm.wait(lambda: old.view(new.state())["linked"], "old and new to be linked still")
