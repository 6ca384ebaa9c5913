"""Where a request's time goes, hop by hop, as lines of a terminal. Pure."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from swarm.gateway.map_cover import node_colours
from swarm.gateway.map_look import DIM, Glyphs, cut, fit, milliseconds
from swarm.notes import printable
from swarm.terms import short

Json = dict[str, Any]

NAME = 12
HEAD = f"{'hop':<{NAME}} {'layers':<8} prompt: wait  compute  token: wait  compute"
BAR_MIN = 8


def trace_lines(state: Json, session: Json, width: int, glyphs: Glyphs) -> list[Text]:
    """All routes of a session, the present one first."""
    lines = []
    for number, leg in reversed(list(enumerate(session["legs"], 1))):
        lines += _leg_lines(state, leg, number, width, glyphs)
    if not lines:
        lines = [Text(" nothing ran yet", style=DIM)]
    return [cut(line, width) for line in lines]


def trace_said(session: Json) -> str:
    """For the title."""
    generated = max(0, session["position"] - session["prompt_count"])
    routes = len(session["legs"])
    said = f"{session['prompt_count']} + {generated} tokens, {routes} route{'s' * (routes != 1)}"
    return f"{short(session['id'])} {printable(session['model'])}, {said}, milliseconds"


def _leg_lines(state: Json, leg: Json, number: int, width: int, glyphs: Glyphs) -> list[Text]:
    line = Text(f" route {number} ", style="bold")
    line.append(f"from position {leg['position']}: ", style=DIM)
    line.append(f"first token {milliseconds(leg['first_token_ms'])}")
    if leg["token_ms"] is not None:
        line.append(f", then {milliseconds(leg['token_ms'])} a token over {leg['tokens']}")
    whole = leg["token_ms"] or 0.0
    lines = [line, Text(" " + HEAD, style=DIM)]
    told = {hop["node"]: hop for hop in leg["hops"]}
    names = {node["id"]: node["name"] for node in state["nodes"]}
    colours = node_colours(state)
    bars = _Bars(whole, width - len(HEAD) - 4, glyphs)
    for hop in leg["route"]:
        name = names.get(hop["node"]) or short(hop["node"])
        said = told.get(hop["node"])
        row = _hop_line(hop, name, said, colours.get(hop["node"], ""))
        lines.append(row.append_text(bars.next(said or {})))
    row = Text(f" {fit('on the wire', len(HEAD) - 8)}")
    row.append(fit(milliseconds(leg["wire_ms"]), 8, right=True))
    lines.append(row.append_text(bars.next({"wire_ms": leg["wire_ms"]})))
    return lines


def _hop_line(hop: Json, name: str, told: Json | None, style: str) -> Text:
    line = Text(" ")
    line.append(fit(name, NAME), style=style)
    line.append(" " + fit(f"{hop['start']}:{hop['stop']}", 8))
    if told is None:
        return line.append(" nothing told yet", style=DIM)
    figures = (
        (told["prompt_wait_ms"] if told["prompt_rows"] else None, 13),
        (told["prompt_compute_ms"] if told["prompt_rows"] else None, 9),
        (told["wait_ms"], 13),
        (told["compute_ms"], 9),
    )
    for value, columns in figures:
        line.append(fit(milliseconds(value), columns, right=True))
    return line


class _Bars:
    """A token's time from left to right: each hop's share begins where the one before it ends."""

    PARTS = (("wait_ms", "yellow"), ("compute_ms", "green"), ("wire_ms", "cyan"))

    def __init__(self, whole_ms: float, room: int, glyphs: Glyphs) -> None:
        self._whole_ms = whole_ms
        self._room = room if room >= BAR_MIN and whole_ms > 0 else 0
        self._letters = (glyphs.wait, glyphs.compute, glyphs.wire)
        self._done_ms = 0.0

    def next(self, told: Json) -> Text:
        bar = Text("  " + " " * self._column(self._done_ms))
        for (key, style), letter in zip(self.PARTS, self._letters, strict=True):
            start = self._column(self._done_ms)
            self._done_ms += told.get(key) or 0.0
            bar.append(letter * (self._column(self._done_ms) - start), style=style)
        return bar

    def _column(self, at_ms: float) -> int:
        return min(self._room, round(at_ms / self._whole_ms * self._room)) if self._room else 0
