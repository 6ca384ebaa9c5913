"""`swarm key rotate` and `swarm key revoke` on a running swarm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from swarm_procs import PROGRAM, Node, NodePlan, Swarm

from swarm import cli
from swarm.home_io import Home

pytestmark = pytest.mark.xdist_group("processes")


def command(node: Node, *words: str) -> str:
    done = subprocess.run(
        [str(PROGRAM), "key", *words, "--home", str(node.home)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def generation(node: Node) -> int:
    ring = Home(node.home).key_ring()
    return 0 if ring is None else ring.generation


def test_a_key_is_changed_and_a_node_put_out(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        first, second, third = (swarm.start(NodePlan(name)) for name in ("one", "two", "three"))
        swarm.await_ready()
        assert "fresh key" in command(first, "rotate")
        for node in (second, third):
            swarm.wait(lambda n=node: generation(n) == 1, "the new key everywhere", 20.0)
        assert Home(second.home).swarm_key() != Home(second.home).key_ring().accepted(0.0)[0]  # type: ignore[union-attr]

        # Who was away comes back with the key it had.
        third.interrupt()
        Home(third.home).save_swarm_key(Home(second.home).key_ring().accepted(0.0)[0])  # type: ignore[union-attr]
        (third.home / "keyring.json").unlink()
        swarm.key = Home(third.home).swarm_key().text  # type: ignore[union-attr]
        third = swarm.restart(third)
        swarm.wait(lambda: generation(third) == 1, "the key of who was away", 20.0)

        assert third.node_id in command(second, "revoke", third.node_id[:6])
        swarm.wait(lambda: generation(first) == 2, "the key after one was put out", 20.0)
        swarm.await_note(third, "link.down")
        assert generation(third) == 1
        ring = Home(first.home).key_ring()
        assert ring is not None and third.node_id in ring.revoked
        swarm.key = ring.key.text
        first.interrupt()
        first = swarm.restart(first, peers=[second.view(second.state())["addresses"][0]])
        swarm.await_note(first, "link.up")
        assert Home(first.home).key_ring() == ring, "it is known after a restart"
        for node in (first, second, third):
            assert ring.key.text not in node.log


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rotate",), "no node runs"),
        (("revoke", "somebody"), "no node runs"),
    ],
)
def test_a_change_needs_a_running_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert cli.main(["key", *words, "--home", str(tmp_path)]) == 1
    assert says in capsys.readouterr().err
