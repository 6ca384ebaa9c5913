"""Nodes, links, answers and events as rows of a terminal: state in, lines out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import Enum
from typing import Any

from rich.text import Text

from swarm.gateway.map_cover import node_colours
from swarm.gateway.map_look import (
    DIM,
    LEVEL_STYLES,
    STATE_STYLES,
    Glyphs,
    cut,
    fit,
    milliseconds,
    number,
    rate,
    size,
)
from swarm.gateway.map_memory import Happening, MapMemory
from swarm.gateway.status_text import layers_text
from swarm.terms import short

Json = dict[str, Any]

BAR, SHORT_BAR = 12, 6
"""Columns of an answer's progress bar, where there is room and where there is little."""
ROOMY = 70
"""Columns from which the fields of events stand below each other."""


class Sort(Enum):
    """What the nodes are ordered by."""

    NAME = "name"
    STATE = "state"
    SPEED = "speed"
    MEMORY = "memory"
    RTT = "rtt"

    @property
    def next(self) -> Sort:
        order = list(Sort)
        return order[(order.index(self) + 1) % len(order)]


@dataclass(frozen=True, slots=True)
class Cell:
    """A column of a table: its head, its width, and on which side its text stands."""

    head: str
    width: int
    right: bool = False


def sorted_nodes(state: Json, sort: Sort, *, backwards: bool = False) -> list[Json]:
    """Nodes without the figure in question come last either way."""
    keys: dict[Sort, Callable[[Json], float | str | None]] = {
        Sort.NAME: lambda node: node["name"],
        Sort.STATE: lambda node: STATES.get(node["state"], len(STATES)),
        Sort.SPEED: _speed,
        Sort.MEMORY: lambda node: -node["memory_bytes"],
        Sort.RTT: lambda node: 0.0 if node["self"] else node["rtt_ms"],
    }
    key = keys[sort]
    known = [node for node in state["nodes"] if key(node) is not None]
    known.sort(key=lambda node: (key(node), node["name"], node["id"]), reverse=backwards)
    return known + [node for node in state["nodes"] if key(node) is None]


DIRECT = "direct"
STATES = {"dead": 0, "suspect": 1, "left": 2, "alive": 3}
"""Trouble first."""


def matches(wanted: str, *texts: str) -> bool:
    """Whether all words that are looked for are somewhere in the texts."""
    said = " ".join(texts).lower()
    return all(word in said for word in wanted.lower().split())


def node_lines(
    memory: MapMemory, nodes: Sequence[Json], width: int, glyphs: Glyphs, wanted: str = ""
) -> list[Text]:
    """The head and a line for each node that has what is looked for."""
    assert memory.state is not None
    cells = _node_cells(width)
    colours = node_colours(memory.state)
    used = _uses(memory)
    lines = [_head(cells, width)]
    for node in nodes:
        serves = f" {glyphs.dot} ".join(_shard(shard) for shard in node["shards"]) or "-"
        if not matches(wanted, node["name"], node["id"], node["state"], node["device"], serves):
            continue
        values = {
            "node": ("*" if node["self"] else " ") + (node["name"] or short(node["id"])),
            "id": short(node["id"]),
            "state": _state(node),
            "rtt ms": "self" if node["self"] else milliseconds(node["rtt_ms"]),
            "device": node["device"] or "-",
            "memory": size(node["memory_bytes"]),
            "ms/layer": milliseconds(_milli(_speed(node))),
            "kv free": _kv_free(node),
            "used": str(used.get(node["id"], 0) or "-"),
            "serves": serves,
        }
        styles = {
            "node": colours.get(node["id"], ""),
            "state": STATE_STYLES.get(node["state"], ""),
            "id": DIM,
        }
        lines.append(_line(cells, values, styles, width))
    return lines


def link_lines(state: Json, width: int, wanted: str = "") -> list[Text]:
    """Each measured pair of nodes, the slowest first; with their ways where not all are direct."""
    names = {node["id"]: node["name"] or short(node["id"]) for node in state["nodes"]}
    ways = {link.get("kind", DIRECT) for link in state["links"]} - {DIRECT}
    name = max(8, min(20, (width - (30 if ways else 22)) // 2))
    cells = [Cell("from", name), Cell("to", name), Cell("rtt ms", 6, True)]
    cells += [Cell("goodput", 10, True), *([Cell("way", 7)] if ways else [])]
    lines = [_head(cells, width)]
    for link in sorted(state["links"], key=lambda link: -link["rtt_ms"]):
        ends = [names.get(link[end], short(link[end])) for end in ("node", "peer")]
        if matches(wanted, *ends):
            values = {
                "from": ends[0],
                "to": ends[1],
                "rtt ms": milliseconds(link["rtt_ms"]),
                "goodput": rate(link["goodput_bytes_s"]),
                "way": link.get("kind", DIRECT),
            }
            lines.append(_line(cells, values, {}, width))
    return lines


def session_line(
    memory: MapMemory, session: Json, width: int, glyphs: Glyphs, *, is_chosen: bool
) -> Text:
    """One answer: how far it is, how fast, and what became of it."""
    generated = max(0, session["position"] - session["prompt_count"])
    limit = max(1, session["token_limit"])
    bar = BAR if width >= ROOMY + 10 else SHORT_BAR
    full = min(bar, generated * bar // limit)
    line = Text(glyphs.cursor if is_chosen else " ", style="bold")
    line.append(fit(short(session["id"]), 9), style="bold" if is_chosen else "")
    line.append(fit(session["model"], 10))
    line.append(" " + glyphs.bar_full * full, style="green")
    line.append(glyphs.bar_rest * (bar - full), style=DIM)
    line.append(fit(f" {generated}/{session['token_limit']}", 10) + " ")
    pace = memory.pace(session["id"])
    line.append(fit("" if pace is None else f"{number(pace)}/s", 8))
    line.append_text(_phase(session))
    if session["reroutes"]:
        pauses = " + ".join(milliseconds(pause) for pause in session["stall_ms"]) or "?"
        times = f"{session['reroutes']} reroute{'s' * (session['reroutes'] != 1)}"
        line.append(f" {times}, {pauses} ms", style="yellow")
    if not session["exact"]:
        line.append("  not exact", style="yellow")
    return cut(line, width)


def event_line(happening: Happening, width: int, zone: tzinfo = UTC) -> Text:
    clock = datetime.fromtimestamp(happening.at, zone).strftime("%H:%M:%S")
    line = Text(f" {clock} ", style=DIM)
    event = happening.event if width < ROOMY else fit(happening.event, 18)
    line.append(f"{event} ", style=LEVEL_STYLES.get(happening.level, ""))
    if happening.session:
        line.append(happening.session + " ", style="bold")
    line.append(happening.detail)
    return cut(line, width)


# ---------------------------------------------------------------- inside


def _node_cells(width: int) -> list[Cell]:
    """Columns by what there is room for; what is served takes the rest."""
    cells = [
        Cell("node", 11),
        Cell("state", 7),
        Cell("rtt ms", 6, True),
        Cell("device", 16 if width >= 110 else 6),
    ]
    cells.append(Cell("memory", 6, True))
    cells.append(Cell("ms/layer", 8, True))
    if width >= 96:
        cells.insert(1, Cell("id", 8))
    if width >= 90:
        cells += [Cell("kv free", 7, True), Cell("used", 4, True)]
    used = sum(cell.width + 1 for cell in cells) + 1
    return [*cells, Cell("serves", max(8, width - used - 1))]


def _head(cells: Sequence[Cell], width: int) -> Text:
    return _line(cells, {cell.head: cell.head for cell in cells}, {}, width, style=DIM)


def _line(
    cells: Sequence[Cell],
    values: dict[str, str],
    styles: dict[str, str],
    width: int,
    style: str = "",
) -> Text:
    line = Text(style=style)
    for cell in cells:
        line.append(" ")
        text = fit(values[cell.head], cell.width, right=cell.right)
        line.append(text, style=styles.get(cell.head, ""))
    line.rstrip()
    return cut(line, width)


def _state(node: Json) -> str:
    if node["penalty_s"] > 0:
        return "avoided"
    is_going = node["state"] == "alive" and node["departs_in_s"] > 0
    return "departs" if is_going else str(node["state"])


def _shard(shard: Json) -> str:
    ends = "".join(letter for name, letter in (("embed", "E"), ("head", "H")) if shard[name])
    said = f"{shard['model']} {layers_text(shard)}{' ' + ends if ends else ''}"
    return said if shard["state"] == "serving" else f"{said} ({shard['state']})"


def _speed(node: Json) -> float | None:
    """Of its fastest shard, seconds per layer."""
    times = [shard["decode_s_per_layer"] for shard in node["shards"]]
    return min((time for time in times if time), default=None)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _kv_free(node: Json) -> str:
    free = [shard["kv_free_bytes"] for shard in node["shards"]]
    known = [count for count in free if count is not None]
    return size(sum(known)) if known else "-"


def _uses(memory: MapMemory) -> dict[str, int]:
    """How many of this node's answers run through each node."""
    assert memory.state is not None
    counts: dict[str, int] = {}
    for session in memory.state["sessions"]:
        for hop in session["route"]:
            counts[hop["node"]] = counts.get(hop["node"], 0) + 1
    return counts


def _phase(session: Json) -> Text:
    if session["outcome"]:
        good = session["outcome"] in ("stop", "length")
        return Text(session["outcome"], style="green" if good else "red")
    style = "green" if session["phase"] == "running" else "bold yellow"
    return Text(session["phase"], style=style)
