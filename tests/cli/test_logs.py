"""`swarm logs`: which notes are shown, in what form, and that it follows a gateway."""

from __future__ import annotations

import datetime
import json
import threading
from typing import Any

import pytest
from background import gateway
from fake_node import FakeNode

from swarm.cli import main
from swarm.commands.logs import Wanted, as_line, lost_entry
from swarm.errors import ConfigError
from swarm.notes import Level, note

ENTRY = {"at": 1_700_000_000.5, "event": "link.up", "level": "INFO", "peer": "a b"}


@pytest.mark.parametrize(
    ("level", "patterns", "takes"),
    [
        ("info", [], True),
        ("INFO", ["link"], True),
        ("info", ["link.up"], True),
        ("info", ["link.*"], True),
        ("info", ["lin"], False),
        ("info", ["model", "*.up"], True),
        ("warning", [], False),
    ],
)
def test_which_notes_are_shown(level: str, patterns: list[str], takes: bool) -> None:
    assert Wanted.of(level, patterns).takes(ENTRY) is takes


def test_a_level_that_is_none() -> None:
    with pytest.raises(ConfigError, match="info, warning, error"):
        Wanted.of("loud", [])


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (ENTRY, '2023-11-14T22:13:20.500+00:00 INFO    link.up peer="a b"'),
        ({"event": "x", "level": "?"}, "1970-01-01T00:00:00.000+00:00 INFO    x"),
        ({"at": "soon", "event": "x", "level": "ERROR", "n": 1.5, "steer": "\x1b[2J"},
         '1970-01-01T00:00:00.000+00:00 ERROR   x n=1.5 steer="\\u001b[2J"'),
        (lost_entry(7, 1.0), "1970-01-01T00:00:01.000+00:00 WARNING logs.lost events=7"),
    ],
)  # fmt: skip
def test_the_form_of_a_line(entry: dict[str, Any], line: str) -> None:
    assert as_line(entry, datetime.UTC) == line


def test_a_gateway_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    """Notes are put into the node's queue before anybody listens: none is lost to a race."""
    entries = [note("link.up", peer="p"), note("link.down", Level.WARNING, peer="p")] * 2
    with gateway(FakeNode) as (node, served):
        for entry in entries:
            node.notes.put_nowait(entry)
        arguments = ["logs", "--url", served.url, "--level", "warning", "-n", "1"]
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(main([*arguments, "--json"])))
        thread.start()
        thread.join(30)
        assert ended == [0]
    told = json.loads(capsys.readouterr().out)
    assert (told["event"], told["level"], told["peer"]) == ("link.down", "WARNING", "p")
    assert told["at"] > 0


def test_a_node_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--url", "http://127.0.0.1:9"]) == 1
    assert "no gateway answers" in capsys.readouterr().err
