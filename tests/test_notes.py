"""What a note looks like as a line, whatever a peer has put into its fields."""

from __future__ import annotations

import json

import pytest

from swarm.console_io import Console
from swarm.notes import as_json, as_text, json_text, note, printable

CONTROLS = ["\x1b[2J", "\x9b2J", "\x7f", "\r", "\x07", "\u202e", "\u2028", "\ud800"]
"""Clear the screen (twice), delete, overwrite, ring, turn the direction, break, no letter."""


def test_plain_values_stay_as_they_are() -> None:
    entry = note("link.up", peer="abc", count=2, ok=True, rtt_s=0.1234567891, name="Zoë")
    assert as_text(entry) == "link.up peer=abc count=2 ok=True rtt_s=0.123457 name=Zoë"
    assert as_text(note("x", a="two words", b="", c="k=v")) == 'x a="two words" b="" c="k=v"'


@pytest.mark.parametrize("control", CONTROLS)
def test_no_letter_of_a_note_steers_a_terminal(control: str) -> None:
    entry = note("member.alive", name=f"a{control}b é")
    text = as_text(entry)
    line = as_json(entry, wall_time="t", monotonic_s=1.0)
    assert text.isprintable() and line.isprintable()
    assert json.loads(text.partition("=")[2]) == f"a{control}b é", "and nothing of it is lost"
    assert json.loads(line)["name"] == f"a{control}b é"


def test_json_for_people_keeps_its_lines_and_letters() -> None:
    assert json_text({"name": "Zoë"}, indent=2) == '{\n  "name": "Zoë"\n}'
    assert printable("a\x1b[2J\nb Zoë") == "a [2J b Zoë"


@pytest.mark.parametrize("control", CONTROLS)
def test_no_sentence_of_a_running_node_steers_a_terminal(
    capsys: pytest.CaptureFixture[str], control: str
) -> None:
    console = Console(as_json_lines=False)
    console.note(note("model.covered", model=f"m{control}"))
    console.say(f"Heard swarm t (node {control}x)")
    console.close()
    out, err = capsys.readouterr()
    assert (
        out.splitlines()[0].rstrip()
        == f"m{printable(control)} is ready: all its layers are served."
    )
    assert all(line.isprintable() for line in (out + err).split("\n"))
