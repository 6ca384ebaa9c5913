"""The panes of the map as they are to be drawn now: memory and choices in, lines out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Any

from rich.text import Text

from swarm.gateway.map_cover import (
    cover_lines,
    former_lane,
    lane,
    legend,
    missing_said,
)
from swarm.gateway.map_layout import Bottom, widths
from swarm.gateway.map_look import DIM, PRETTY, Glyphs, cut
from swarm.gateway.map_memory import MapMemory
from swarm.gateway.map_rows import (
    Sort,
    event_line,
    link_lines,
    matches,
    node_lines,
    session_line,
    sorted_nodes,
)
from swarm.gateway.map_trace import trace_lines, trace_said
from swarm.notes import printable
from swarm.terms import short

Json = dict[str, Any]

REPLICA_ROWS = 3
"""Height of a coverage strip at most."""
EVENTS_DRAWN = 200
HELP = """\
 s  sort nodes by the next column        S  the other way round
 /  show only what has these words       Esc  show all again
 t  trace of the chosen answer           l  links   e  events
 up, down  choose an answer              p  pause, and go on
 Tab  next pane                          PgUp, PgDn  scroll it
 ?  this help                            q  quit

 Layers of a model run from left to right; each row is one more machine
 that serves them. Letters and colours say how fast, ! that nobody does.
 Below stand the answers that this node is the origin of, each hop under
 the layers it runs; a hop that was lost is crossed out, one that took
 its place is shown in reverse. * marks the node that is asked."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the person at the keys has chosen."""

    sort: Sort = Sort.NAME
    backwards: bool = False
    wanted: str = ""
    session: str = ""
    """Id of the answer that is traced; empty: the latest."""
    bottom: Bottom = Bottom.EVENTS
    paused: bool = False
    glyphs: Glyphs = PRETTY
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class Pane:
    name: str
    said: str
    lines: list[Text] = field(default_factory=list)


def scene(memory: MapMemory, choices: Choices, width: int) -> dict[str, Pane]:
    """All panes of a terminal that is so wide."""
    left, right = widths(width)
    if memory.state is None:
        waits = Pane("nodes", "", [Text(" waiting for the gateway", style=DIM)])
        names = ("cover", "links", "sessions", "events", "trace")
        return {"nodes": waits, **{name: Pane(name, "") for name in names}}
    return {
        "nodes": _nodes(memory, choices, width),
        "cover": _cover(memory, choices, width),
        "links": _links(memory.state, choices, right),
        "sessions": _sessions(memory, choices, left),
        "events": _events(memory, choices, right),
        "trace": _trace(memory, choices, left),
    }


def top_line(memory: MapMemory, choices: Choices, link_state: str, width: int) -> Text:
    """What is watched, and whether the picture is fresh."""
    line = Text(" swarm", style="bold")
    state = memory.state
    if state is not None:
        tag = "the open swarm" if state["open"] else state["swarm"]
        line.append(f" {printable(tag)}", style="bold")
        line.append(f" seen from {printable(state['name'])} {short(state['node_id'])}", style=DIM)
        alive = sum(node["state"] == "alive" for node in state["nodes"])
        answers = len(state["sessions"])
        line.append(f"  {alive} of {len(state['nodes'])} alive, {answers} answering")
    if choices.paused:
        right = Text("PAUSED", style="bold reverse")
    else:
        right = Text(
            printable(link_state), style="green" if link_state == "live" else "bold yellow"
        )
    right = cut(right, max(1, width - 8))
    line = cut(line, width - right.cell_len - 2)
    return cut(
        line.append(" " * max(1, width - line.cell_len - right.cell_len - 1)).append(right), width
    )


def key_line(choices: Choices, width: int) -> Text:
    """The keys that matter, as many as have room."""
    keys = [
        ("q", "quit"),
        ("?", "help"),
        ("p", "go on" if choices.paused else "pause"),
        ("s", f"sort:{choices.sort.value}"),
        ("/", f"filter:{choices.wanted}" if choices.wanted else "filter"),
        ("t", "trace"),
        ("l", "links"),
        ("e", "events"),
        ("up/down", "choose"),
    ]
    line = Text()
    for key, said in keys:
        line.append(f" {key}", style="bold").append(f" {printable(said)} ", style=DIM)
    return cut(line, width)


def chosen(memory: MapMemory, choices: Choices) -> Json | None:
    """The answer that is traced: the one that was picked, else the latest."""
    known = memory.traceable
    picked = [session for session in known if session["id"] == choices.session] or known
    return picked[0] if picked else None


def choose_next(memory: MapMemory, choices: Choices, step: int) -> Choices:
    """Pick the answer above or below."""
    known = [session["id"] for session in memory.traceable]
    if not known:
        return choices
    present = chosen(memory, choices)
    at = known.index(present["id"]) if present else 0
    return replace(choices, session=known[max(0, min(len(known) - 1, at + step))])


# ---------------------------------------------------------------- panes


def _nodes(memory: MapMemory, choices: Choices, width: int) -> Pane:
    assert memory.state is not None
    nodes = sorted_nodes(memory.state, choices.sort, backwards=choices.backwards)
    lines = node_lines(memory, nodes, width, choices.glyphs, choices.wanted)
    said = _of(len(lines) - 1, len(nodes))
    foreign = memory.state["foreign_swarms"]
    said += f", {len(foreign)} other swarm{'s' * (len(foreign) != 1)} heard" if foreign else ""
    return Pane("nodes", f"{said}, by {choices.sort.value}", lines)


def _cover(memory: MapMemory, choices: Choices, width: int) -> Pane:
    assert memory.state is not None
    asked = [session["model"] for session in memory.sessions]
    models = sorted(memory.state["models"], key=lambda model: model["name"] not in asked)
    lines: list[Text] = []
    for model in models:
        name = Text(f" {printable(model['name'])} ", style="bold")
        said = missing_said(model)
        name.append(f"{model['layers']} layers, ", style=DIM)
        name.append(said, style="green" if model["covered"] else "bold red")
        lines.append(cut(name, width))
        lines += cover_lines(memory, model, width, REPLICA_ROWS, choices.glyphs)
        for session in memory.sessions:
            if session["model"] != model["name"]:
                continue
            if memory.reroute(session["id"]) is not None:
                lines.append(former_lane(memory, session, model["layers"], width, choices.glyphs))
            lines.append(lane(memory, session, model["layers"], width, choices.glyphs))
    if not models:
        lines.append(Text(" no models yet: join with --model DIR", style=DIM))
    else:
        lines.append(cut(legend(choices.glyphs), width))
    return Pane("layers", f"{len(models)} model{'s' * (len(models) != 1)}", lines)


def _links(state: Json, choices: Choices, width: int) -> Pane:
    lines = link_lines(state, width, choices.wanted)
    return Pane("links", _of(len(lines) - 1, len(state["links"])), lines)


def _sessions(memory: MapMemory, choices: Choices, width: int) -> Pane:
    assert memory.state is not None
    present = chosen(memory, choices)
    running = memory.state["sessions"]
    lines = [
        session_line(memory, session, width, choices.glyphs, is_chosen=session is present)
        for session in memory.traceable
        if matches(choices.wanted, session["id"], session["model"], session["phase"])
    ]
    hops = len(memory.state["hops"])
    said = f"{len(running)} running, {hops} hop{'s' * (hops != 1)} here"
    return Pane("answers", said, lines or [Text(" none yet", style=DIM)])


def _events(memory: MapMemory, choices: Choices, width: int) -> Pane:
    wanted = [
        happening
        for happening in memory.happenings
        if matches(choices.wanted, happening.event, happening.session, happening.detail)
    ]
    lines = [
        event_line(happening, width, choices.zone) for happening in reversed(wanted[-EVENTS_DRAWN:])
    ]
    said = "the last one first"
    said += f", {memory.missed} missed" if memory.missed else ""
    return Pane("events", said, lines or [Text(" nothing happened yet", style=DIM)])


def _trace(memory: MapMemory, choices: Choices, width: int) -> Pane:
    assert memory.state is not None
    session = chosen(memory, choices)
    if session is None:
        return Pane("trace", "", [Text(" no answer yet", style=DIM)])
    lines = trace_lines(memory.state, session, width, choices.glyphs)
    return Pane("trace", trace_said(session), lines)


def _of(shown: int, all_of_them: int) -> str:
    return str(shown) if shown == all_of_them else f"{shown} of {all_of_them}"
