"""What `swarm join` refuses before anything starts: one sentence, exit status 1."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from swarm.cli import main

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
