"""What `swarm join` refuses before anything starts: one sentence, exit status 1."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.cli import main
from swarm.notes import note
from swarm.wishes import Wishes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layers", "0:3"], "there is no --model"),
        (["--model", "nowhere"], "there is no model at nowhere"),
        (["--model", "README.md"], "README.md is neither a model folder nor a GGUF file"),
        (["--model", "docs"], "docs has no config.json"),
        (["--memory", "8"], "with its unit"),
        (["--device", "foo"], "'foo' is not a device"),
        (["--device", "cpu,foo"], "'foo' is not a device"),
        (["--device", "cuda:0,cuda"], "device cuda:0 was named twice"),
        (["--device", "cpu,cpu", "--memory", "1GiB,1GiB,1GiB"], "3 sizes for 2 devices"),
        (["--memory", "1GiB,2GiB"], "2 sizes for 1 device;"),
        (["--device", "cpu,cpu", "--memory", "1GiB,8"], "with its unit"),
        (["--dtype", "int9"], "'int9' is not a dtype"),
        (["--peer", "127.0.0.1:0"], "names no port"),
        (["--key", "hello"], "a swarm key begins with"),
    ],
)
def test_refused_at_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["join", "--home", str(tmp_path / "home"), "--no-mdns", *arguments]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1
    assert "Traceback" not in shown.err


def test_a_port_for_nodes_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--no-mdns", "--open", "--log-json", "--gateway", "127.0.0.1:0"]
        home = ["--home", str(tmp_path)]
        assert main(["join", *home, *arguments, "--listen", address]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"swarm: cannot listen for nodes on {address}: address already in use;"
        " choose another --listen HOST:PORT"
    )


def test_a_node_that_can_serve_nothing_of_what_it_is_for_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], smollm2: Path
) -> None:
    home = ["--home", str(tmp_path / "home"), "--open", "--no-mdns", "--gateway", "127.0.0.1:0"]
    assert main(["join", "--model", str(smollm2), "--layers", "0:99", *home]) == 1
    shown = capsys.readouterr()
    assert "smollm2 cannot be served here: layers 0:99 asked for" in shown.out
    assert shown.err.splitlines()[-1].startswith("swarm: nothing that --model names can be served")


@pytest.mark.parametrize(
    ("count", "events", "hopeless"),
    [
        (1, ["shard.failed"], True),
        (2, ["shard.failed"], False),
        (2, ["shard.failed", "shard.failed"], True),
        (2, ["shard.serving", "shard.failed", "shard.failed"], False),
        (0, ["shard.failed"], False),
    ],
    ids=["one", "one-of-two", "both", "after-serving", "takes-part"],
)
def test_when_nothing_can_come_of_what_was_asked_for(
    count: int, events: list[str], hopeless: bool
) -> None:
    wishes = Wishes(["model"] * count)
    wishes.note(note("shard.failed", model="loaded later"))
    for event in events:
        wishes.note(note(event, model="model"))
    assert wishes.are_hopeless is hopeless


INTERRUPTED_AT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "swarm.commands.keys_io":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from swarm.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_python_still_imports_shows_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT, "status"]
    ended = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
