"""What a running node writes, whatever its reader does."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from swarm import daemon
from swarm.config import Config, DiscoveryConfig
from swarm.console_io import SENTENCES, Console
from swarm.home_io import Home
from swarm.notes import Level, note
from swarm.options import JoinOptions
from swarm.swarm_key_io import swarm_keys

QUIET = Config(discovery=DiscoveryConfig(mdns=False))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Screen:
    """A console whose two streams are kept."""

    def __init__(self, *, as_json_lines: bool = False, terminal: bool = False) -> None:
        kind = Terminal if terminal else io.StringIO
        self.out, self.log = kind(), kind()
        self.console = Console(as_json_lines=as_json_lines, out=self.out, log=self.log)

    def read(self) -> tuple[str, str]:
        self.console.flush()
        return self.out.getvalue(), self.log.getvalue()

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read()[0].splitlines()]


def options(home: Path, *, open_swarm: bool = False, key: str | None = None) -> JoinOptions:
    return JoinOptions(
        model=(), layers=None, memory_bytes=None, device=None, dtype=None, threads=None,
        gateway=None, listen=None, peers=(), key=key, open_swarm=open_swarm, home=home, name=None,
        mdns=False, log_json=False,
    )  # fmt: skip


def key_of(screen: Screen, home: Path, *, open_swarm: bool = False) -> str:
    wanted = options(home, open_swarm=open_swarm)
    made = swarm_keys(wanted, Home(home), QUIET, screen.console)
    return asyncio.run(made).key.text


# ------------------------------------------------------------------ sentences and notes


def test_a_note_is_a_log_line_and_a_sentence_each_in_its_place() -> None:
    screen = Screen()
    screen.console.note(note("model.covered", model="m"))
    screen.console.note(note("link.up", peer="x"))
    screen.console.note(note("shard.loading", Level.DEBUG))
    out, log = screen.read()
    assert out == "m is ready: all its layers are served.\n"
    assert "model.covered model=m" in log and "link.up peer=x" in log
    assert "shard.loading" not in log


def test_a_terminal_does_not_read_the_same_thing_twice() -> None:
    screen = Screen(terminal=True)
    screen.console.note(note("shard.serving", model="m", layers="0:4"))
    screen.console.note(note("link.up", peer="x"))
    screen.console.note(note("link.down", Level.WARNING, peer="x"))
    out, log = screen.read()
    assert out == "Serving layers 0:4 of m.\n"
    assert "shard.serving" not in log and "link.up" not in log and "link.down" in log


def test_every_sentence_is_one_with_a_full_stop() -> None:
    fields = {
        "model": "m", "layers": "0:4", "reason": "it is cut short.", "restart_s": 1.0, "tag": "t",
        "node": "n", "node_name": "anna", "address": "1.2.3.4:5", "url": "http://x:1",
        "missing": "4:6", "cause": "no interface", "sessions": 0,
        "peer": "p", "other": "5.6.7.8:9", "kept": "/home/node-n.key", "in_s": 300,
    }  # fmt: skip
    for event in SENTENCES:
        screen = Screen()
        screen.console.note(note(event, Level.ERROR, **fields))
        (line,) = screen.read()[0].splitlines()
        assert line[0].isupper() or line.startswith("m "), line
        assert line.endswith((".", "PORT.")) and ".." not in line and "?" not in line, line
    screen = Screen()
    for yields, said in ((True, "this one now takes"), (False, "this one keeps")):
        screen.console.note(note("node.copied", address="1.2.3.4:5", yields=yields))
        text = screen.read()[0]
        assert "1.2.3.4:5" in text and said in text
        screen = Screen()
    for sessions, missing in ((0, "4:6"), (2, "")):
        screen.console.note(note("node.leaving", sessions=sessions))
        screen.console.note(note("model.uncovered", model="m", missing=missing))
    assert screen.read()[0].splitlines() == [
        "Leaving the swarm.",
        "m is not complete: nobody serves layers 4:6.",
        "Leaving the swarm: 2 running answers move to other nodes first.",
        "m is not complete: nobody serves its first or its last part.",
    ]


# ------------------------------------------------------------------ the key, and JSON


def test_a_fresh_key_is_shown_to_the_person_and_to_no_log(tmp_path: Path) -> None:
    screen = Screen()
    key = key_of(screen, tmp_path)
    out, log = screen.read()
    assert f"swarm join --key {key}" in out
    assert "key.made" in log and key not in log


def test_json_tells_of_a_fresh_key_without_it(tmp_path: Path) -> None:
    screen = Screen(as_json_lines=True)
    key = key_of(screen, tmp_path)
    (row,) = screen.rows()
    assert row["event"] == "key.made" and row["show_it_with"] == "swarm key show"
    assert key not in screen.read()[0] and screen.read()[1] == ""


def test_json_warns_of_the_open_swarm(tmp_path: Path) -> None:
    screen = Screen(as_json_lines=True)
    key_of(screen, tmp_path, open_swarm=True)
    (row,) = screen.rows()
    assert (row["event"], row["level"]) == ("swarm.open", "WARNING")


def test_a_node_says_where_it_listens_in_both_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(self: Any, asked: asyncio.Event) -> None:
        """Its end comes at once."""

    monkeypatch.setattr(daemon._Node, "until_its_end", at_once)
    for as_json_lines in (True, False):
        screen = Screen(as_json_lines=as_json_lines)
        home = Home(tmp_path / str(as_json_lines))
        wanted = options(home.path, open_swarm=True)
        assert asyncio.run(daemon._main(wanted, home, QUIET, screen.console)) == 0
        out, _ = screen.read()
        if as_json_lines:
            rows = {row["event"]: row for row in screen.rows()}
            assert rows["gateway.listening"]["url"].startswith("http://127.0.0.1:")
            assert len(rows["node.listening"]["node"]) == 8
        else:
            assert "The gateway is at http://127.0.0.1:" in out
            assert re.search(r"listens for other nodes on (0\.0\.0\.0|\[::\]):\d+", out)


# ------------------------------------------------------------------ readers


class Pipe:
    """A console that writes into a pipe, whose reader is this test."""

    def __init__(self, lines_max: int = 100) -> None:
        self.reader, writer = os.pipe()
        self.stream = os.fdopen(writer, "w")
        self.console = Console(as_json_lines=True, out=self.stream, lines_max=lines_max)

    def fill(self, count: int) -> None:
        for number in range(count):
            self.console.note(note("x", number=number, text="t" * 400))

    def read_all(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []

        def read() -> None:
            with os.fdopen(self.reader) as lines:
                rows.extend(json.loads(line) for line in lines)

        thread = threading.Thread(target=read)
        thread.start()
        self.console.close(timeout_s=30.0)
        self.stream.close()
        thread.join()
        return rows


def test_a_reader_that_stalls_costs_the_oldest_lines_and_their_number_is_told() -> None:
    pipe = Pipe()
    pipe.fill(5000)
    rows = pipe.read_all()
    seen = [row["number"] for row in rows if row["event"] == "x"]
    lost = sum(row["lines"] for row in rows if row["event"] == "console.dropped")
    assert lost > 4000 and len(seen) + lost == 5000
    assert seen[-100:] == list(range(4900, 5000)) and seen == sorted(seen)


def test_sentences_outlive_log_lines() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as lines, os.fdopen(writer, "w") as stream:
        console = Console(as_json_lines=False, out=stream, log=stream, lines_max=10)
        for number in range(1000):
            console.note(note("x", number=number, text="t" * 400))
            if number == 800:
                console.say("To add another machine, type this.")
        console.close(timeout_s=0.0)
        found = any("To add another machine" in line for line in lines_until(lines, "number=999"))
    assert found


def lines_until(lines: Any, last: str) -> list[str]:
    found: list[str] = []
    while not found or last not in found[-1]:
        found.append(lines.readline())
    return found


def test_a_reader_that_never_comes_back_does_not_hold_up_the_end() -> None:
    pipe = Pipe()
    pipe.fill(500)
    pipe.console.close(timeout_s=0.01)
    pipe.console.note(note("late"))
    assert pipe.console._writer._thread is not None
    os.close(pipe.reader)  # now the write that was stuck fails, and the thread ends
    pipe.console._writer._thread.join()
    pipe.stream.close()


def test_a_reader_that_went_away_is_no_error() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    pipe.fill(5)
    pipe.console.close()
    pipe.stream.close()
