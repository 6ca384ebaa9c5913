"""The line at the bottom of the terminal: what it says, and that it stays at the bottom."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from fake_node import model, route, snapshot

from swarm.console_io import ERASE, Console
from swarm.notes import Level, note
from swarm.snapshot import HopView, Snapshot
from swarm.status_line import Pace, Progress, bar, status_line
from swarm.terms import LayerRange, NodeId, SessionId

QUIET = replace(snapshot((model(),), SessionId("0" * 16)), sessions=(), kv_used_bytes=0)
BUSY = snapshot((model(),), SessionId("0" * 16))
HOP = HopView(SessionId("1" * 16), NodeId("b" * 32), LayerRange(0, 2), 9, 100)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (QUIET, "tiny ready | 2 nodes"),
        (replace(QUIET, models=(), nodes=QUIET.nodes[:1]), "no model yet | alone so far"),
        (replace(QUIET, models=(model("a\x1b[2J", missing=(LayerRange(1, 3),)),)),
         "a [2J lacks layers 1:3 | 2 nodes"),
        (replace(QUIET, models=(replace(model(), covered=False),)), "tiny lacks an end | 2 nodes"),
        (replace(BUSY, hops=(HOP, HOP), kv_used_bytes=1024),
         "tiny ready | 2 nodes | 1 answer at 12 tokens/s | works for 2 answers of others"
         " | KV 25 % full"),
    ],
)  # fmt: skip
def test_what_it_says(state: Snapshot, line: str) -> None:
    assert status_line(state, 12.3) == line


def test_the_pace_counts_what_came_since_the_last_look() -> None:
    pace = Pace()
    first = BUSY.sessions[0]
    assert pace.look(BUSY, 10.0) == 0.0
    later = replace(BUSY, sessions=(replace(first, position=first.position + 30),))
    assert pace.look(later, 12.0) == 15.0
    other = replace(first, session=SessionId("9" * 16), route=route("a"))
    assert pace.look(replace(later, sessions=(other,)), 13.0) == 0.0
    assert pace.look(QUIET, 13.0) == 0.0


def test_a_load_is_followed_to_its_end() -> None:
    progress = Progress()
    assert progress.note(note("shard.load", model="m", layers="0:4"))
    assert progress.text == "loading layers 0:4 of m"
    assert progress.note(note("shard.loading", Level.DEBUG, part="timing", percent=90))
    assert progress.text == "[#########-]  90 % layers 0:4 of m: measuring its speed"
    assert not progress.note(note("link.up", peer="x"))
    assert progress.note(note("shard.serving", model="m", layers="0:4")) and progress.text == ""


def test_a_start_says_what_it_does_before_it_loads() -> None:
    progress = Progress()
    assert progress.note(note("shard.loading", Level.DEBUG, part="checkpoint", percent=0))
    assert progress.text == "reading the checkpoint"
    progress.note(note("shard.load", model="m", layers="0:4"))
    progress.note(note("shard.loading", Level.DEBUG, part="kernels", percent=0))
    assert "layers 0:4 of m: building" in progress.text


def test_a_download_is_shown_until_its_weights_are_loaded() -> None:
    progress = Progress()
    assert not progress.note(note("weights.fetching", Level.DEBUG, percent=3))
    assert progress.note(note("shard.fetch", model="m", layers="0:4"))
    assert progress.text == "fetching layers 0:4 of m"
    assert progress.note(note("weights.fetching", Level.DEBUG, percent=30))
    assert progress.text == "[###-------]  30 % layers 0:4 of m: fetching from other nodes"
    assert progress.note(note("shard.load", model="m", layers="0:4"))
    assert progress.text == "loading layers 0:4 of m"


@pytest.mark.parametrize(
    ("percent", "shown"), [(0, "[----------]   0 %"), (250, "[##########] 100 %"),
                           (None, "[----------]   0 %"), ("x", "[----------]   0 %")],
)  # fmt: skip
def test_bars(percent: int | str | None, shown: str) -> None:
    assert bar(percent) == shown


# ------------------------------------------------------------------ on the terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_lines_scroll_above_it(terminal: Terminal) -> None:
    console = Console(as_json_lines=False, out=terminal, log=terminal)
    assert console.shows_status
    console.status("one")
    console.flush()
    console.say("hello")
    console.flush()
    console.status("x" * 200)
    console.flush()
    console.status("x" * 200)
    console.close()
    assert terminal.getvalue() == f"one{ERASE}hello\none{ERASE}{'x' * 79}{ERASE}"


def test_a_load_takes_its_place(terminal: Terminal) -> None:
    console = Console(as_json_lines=False, out=terminal, log=terminal)
    console.note(note("shard.load", model="m", layers="0:4"))
    console.flush()
    console.status("m ready")
    console.note(note("shard.loading", Level.DEBUG, part="checks", percent=80))
    console.flush()
    assert "80 % layers 0:4 of m" in terminal.getvalue() and "m ready" not in terminal.getvalue()
    console.note(note("shard.serving", model="m", layers="0:4"))
    console.flush()
    assert terminal.getvalue().endswith("Serving layers 0:4 of m.\nm ready")
    console.close()


@pytest.mark.parametrize("kind", ["pipe", "dumb", "json"])
def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TERM", "dumb" if kind == "dumb" else "xterm")
    out = io.StringIO() if kind == "pipe" else Terminal()
    console = Console(as_json_lines=kind == "json", out=out, log=out)
    console.status("m ready")
    console.say("hello")
    console.close()
    assert not console.shows_status
    assert out.getvalue() == ("" if kind == "json" else "hello\n")
