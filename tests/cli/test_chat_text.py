"""The texts of a chat: what is typed, where an answer may be cut, what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.commands.chat_text import (
    COMMANDS,
    STARTING,
    Typed,
    awaited_text,
    clean,
    help_lines,
    read_line,
    route_lines,
    split_finished,
    summary_text,
    tail,
)
from swarm.gateway.reading import Summary


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("  hello there ", Typed("", "hello there")),
        ("", Typed("", "")),
        ("/exit", Typed("/exit", "")),
        ("/quit", Typed("/exit", "")),
        ("/reset", Typed("/clear", "")),
        ("/model  big one ", Typed("/model", "big one")),
        ("/nonsense x", Typed("/help", "x")),
        ("/", Typed("/help", "")),
    ],
)
def test_lines_as_typed(line: str, typed: Typed) -> None:
    assert read_line(line) == typed


def test_help_names_every_command() -> None:
    text = "\n".join(help_lines())
    assert all(command in text for command in COMMANDS) and "Ctrl-C" in text


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", ""),
        ("one line", ""),
        ("one\n", ""),
        ("one\n\n", "one\n\n"),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\ntwo\n \nthree", "one\n\ntwo\n \n"),
        ("a\n\n```\ncode\n\nmore", "a\n\n"),
        ("a\n\n```py\ncode\n\nmore\n```\n\nb", "a\n\n```py\ncode\n\nmore\n```\n\n"),
        ("~~~\n```\n\n~~~\n\nb", "~~~\n```\n\n~~~\n\n"),
        ("````\n```\n\n````\n\nb", "````\n```\n\n````\n\n"),
        ("```\n``` no end\n\nb", ""),
    ],
)
def test_an_answer_is_cut_where_it_cannot_change(text: str, finished: str) -> None:
    assert split_finished(text) == (finished, text[len(finished) :])


def test_pieces_give_the_same_as_the_whole() -> None:
    text = "# a\n\nsome *text*\n\n```\nx\n\ny\n```\n\n- l\n- m\n\nend"
    shown = pending = ""
    for letter in text:
        finished, pending = split_finished(pending + letter)
        shown += finished
    assert shown + pending == text and pending == "end"


def test_text_cannot_steer() -> None:
    assert clean("a\x1b[2J\tb\nc\u202e") == "a [2J    b\nc "


def test_a_long_paragraph_shows_its_end() -> None:
    text = "\n".join(str(number) for number in range(10))
    assert tail(text, 3) == "…\n8\n9" and tail(text, 10) == text


def test_a_summary_says_what_happened() -> None:
    names = {"a": "anna"}
    route = [{"node": "a", "start": 0, "stop": 4}]
    way = {"ttft_ms": 12.0, "reroutes": 1, "stall_ms": [125.0], "route": route, "exact": False}
    text = summary_text(Summary({"completion_tokens": 7}, way), names)
    assert text == (
        "7 tokens; first after 12 ms; 1 reroutes, stalled 125 ms; now over anna 0:4;"
        " not bit-exact: a replacement of another kind took part"
    )
    assert summary_text(Summary({}, {}), {}) == "0 tokens"
    assert route_lines(way, names) == [
        "the last answer came over anna 0:4",
        "it was re-routed once, with pauses of 125 ms",
        "a replacement of another kind took part",
    ]
    assert route_lines({"route": route, "reroutes": 0}, names)[1:] == [
        "no machine was lost on its way",
        "every token is exact",
    ]
    assert route_lines({}, {}) == ["no answer has come yet"]


def node(memory_bytes: int, *shards: tuple[str, str], own: bool = True) -> dict[str, Any]:
    told = [{"model": model, "state": state} for model, state in shards]
    return {"self": own, "memory_bytes": memory_bytes, "shards": told}


@pytest.mark.parametrize(
    ("nodes", "wanted", "says"),
    [
        ([node(1 << 30)], None, STARTING),
        ([node(1 << 30, ("one", "intended"))], None, "one is being loaded"),
        ([node(0), node(1, ("one", "loading"), own=False)], "one", "one is being loaded"),
        ([node(0), node(1, ("one", "loading"), own=False)], "two", None),
        ([node(1 << 30, ("one", "serving"))], None, None),
        ([node(0)], None, None),
    ],
)
def test_what_a_chat_waits_for(nodes: list[Any], wanted: str | None, says: str | None) -> None:
    assert awaited_text({"nodes": nodes}, wanted) == says
