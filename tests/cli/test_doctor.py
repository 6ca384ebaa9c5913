"""The command itself: exit status, both forms of output, and a machine that is looked at."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from swarm.cli import main
from swarm.commands.doctor import local_io
from swarm.terms import Address


@pytest.fixture(autouse=True)
def no_multicast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who else is on the network that the tests run in is not their business."""
    monkeypatch.setenv("SWARM_DISCOVERY_MDNS", "false")


def test_a_port_that_is_taken_fails_and_names_its_holder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        status = main(
            ["doctor", "--json", "--no-torch", "--home", str(tmp_path / "h"), "--gateway", place]
        )
    told = json.loads(capsys.readouterr().out)
    row = next(row for row in told["findings"] if row["cause"] == "port-busy")
    assert status == 1 and row["grade"] == "problem" and "python" in row["what"]
    assert not (tmp_path / "h").exists()


def test_the_text_says_what_was_seen_and_asks_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[gateway]\nprot = 1\n")
    assert main(["doctor", "--home", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "PROBLEM The settings are wrong" in text and "'prot'" in text
    assert "torch 2" in text


def test_a_damaged_key_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("swarm-secretsecret")
    assert main(["doctor", "--no-torch", "--json", "--home", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "key-damaged" in out and "secretsecret" not in out


def test_a_node_that_ended_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.json").write_text('{"url": 3}')
    assert main(["doctor", "--no-torch", "--json", "--home", str(tmp_path)]) == 0
    assert "node-mute" in capsys.readouterr().out


def test_ports_that_cannot_be_had() -> None:
    assert not local_io.try_port("x", Address("127.0.0.1", 0), is_asked=False).problem
    other = local_io.try_port("x", Address("192.0.2.77", 0), is_asked=False)
    assert other.problem and not other.is_busy
