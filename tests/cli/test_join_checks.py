"""What `swarm join` refuses before anything starts: one sentence, exit status 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layers", "0:3"], "there is no --model"),
        (["--model", "nowhere"], "there is no model at nowhere"),
        (["--device", "foo"], "'foo' is not a device"),
        (["--dtype", "int9"], "'int9' is not a dtype"),
        (["--peer", "127.0.0.1:0"], "names no port"),
        (["--key", "hello"], "a swarm key begins with"),
    ],
)
def test_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["join", "--home", str(tmp_path / "home"), "--no-mdns", *arguments]) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
