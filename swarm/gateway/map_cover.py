"""Who covers a model's layers, and how answers walk across them, as lines of a terminal. Pure.

Layers run from left to right, replicas upwards. Below stand the routes of running answers, each
hop above the layers that it runs:

    2             ##########
    1   ####################!!!!!!!!!!##########
        0         10        20        30
    a3f2 anna-------->bert-->         carl----->
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from swarm.gateway.map_look import (
    DIM,
    FRESH_STYLE,
    GAP_STYLE,
    LOST_STYLE,
    NODE_COLOURS,
    SPEED_STYLES,
    Glyphs,
    cut,
    fit,
)
from swarm.gateway.map_memory import MapMemory
from swarm.notes import printable
from swarm.terms import short

Json = dict[str, Any]

LABEL = 9
"""Columns left of the layers."""
CELLS_MAX = 4
"""Columns of one layer at most: wider ones say no more."""
HALF, SLOW = 1.5, 3.0
"""Times the fastest replica's time per layer from which a layer counts as half as fast, as slow."""
SETTLED = frozenset({"running", "done"})


@dataclass(frozen=True, slots=True)
class Column:
    """The layers below one column: what the worst of them has."""

    replicas: tuple[int, ...]
    """Speed class of each replica, fastest first: 0, 1, 2."""
    loading: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How a model's layers lie in the columns."""

    layers: int
    width: int

    @property
    def cells(self) -> int:
        """Columns of one layer; 0 where several layers share one."""
        return min(CELLS_MAX, self.width // self.layers)

    @property
    def columns(self) -> int:
        return self.layers * self.cells if self.cells else self.width

    def column(self, layer: int) -> int:
        return layer * self.columns // self.layers

    def layers_of(self, column: int) -> range:
        if self.cells:
            layer = column // self.cells
            return range(layer, layer + 1)
        start = column * self.layers // self.columns
        return range(start, max(start + 1, (column + 1) * self.layers // self.columns))


def columns(state: Json, model: Json, scale: Scale) -> list[Column]:
    """What stands on each column of a model's strip."""
    speeds, loading = _by_layer(state, model)
    result = []
    for column in range(scale.columns):
        worst = min(scale.layers_of(column), key=lambda layer: len(speeds[layer]))
        result.append(Column(speeds[worst], loading[worst]))
    return result


def cover_lines(
    memory: MapMemory, model: Json, width: int, height: int, glyphs: Glyphs
) -> list[Text]:
    """The strip of a model with its axis, `height` rows of replicas at most."""
    assert memory.state is not None
    scale = Scale(model["layers"], max(1, width - LABEL - 1))
    stand = columns(memory.state, model, scale)
    tallest = max((len(column.replicas) + column.loading for column in stand), default=1)
    rows = max(1, min(height, tallest))
    lines = [
        _row(stand, level, is_top=level == rows - 1, glyphs=glyphs)
        for level in reversed(range(rows))
    ]
    return [*lines, _axis(scale, width)]


def lane(memory: MapMemory, session: Json, layers: int, width: int, glyphs: Glyphs) -> Text:
    """The route of an answer below the layers that each hop runs."""
    assert memory.state is not None
    scale = Scale(layers, max(1, width - LABEL - 1))
    line = Text(
        " " + fit(short(session["id"]), LABEL), style="" if _is_settled(session) else "bold"
    )
    colours = node_colours(memory.state)
    names = {node["id"]: node["name"] for node in memory.state["nodes"]}
    reroute = memory.reroute(session["id"])
    former = {(hop["node"], hop["start"], hop["stop"]) for hop in reroute.former} if reroute else ()
    end = 0
    for hop in session["route"]:
        start, stop = scale.column(hop["start"]), scale.column(hop["stop"])
        is_lost = memory.is_lost(session["id"], hop["node"]) and not _is_settled(session)
        is_fresh = reroute and (hop["node"], hop["start"], hop["stop"]) not in former
        style = colours.get(hop["node"], "")
        style = LOST_STYLE if is_lost else f"{FRESH_STYLE} {style}" if is_fresh else style
        name = printable(names.get(hop["node"]) or short(hop["node"]))
        line.append(" " * max(0, start - end))
        line.append(_segment(name, stop - max(start, end), glyphs, is_lost=is_lost), style=style)
        end = max(end, stop)
    if not session["route"]:
        line.append("no route yet", style=DIM)
    return cut(line, width)


def former_lane(memory: MapMemory, session: Json, layers: int, width: int, glyphs: Glyphs) -> Text:
    """Where it ran until a moment ago: hops that it left are crossed out."""
    reroute = memory.reroute(session["id"])
    assert reroute is not None and memory.state is not None
    scale = Scale(layers, max(1, width - LABEL - 1))
    names = {node["id"]: node["name"] for node in memory.state["nodes"]}
    kept = {(hop["node"], hop["start"], hop["stop"]) for hop in session["route"]}
    line = Text(" " + fit("  before", LABEL), style=DIM)
    end = 0
    for hop in reroute.former:
        start, stop = scale.column(hop["start"]), scale.column(hop["stop"])
        is_left = (hop["node"], hop["start"], hop["stop"]) not in kept
        name = printable(names.get(hop["node"]) or short(hop["node"]))
        line.append(" " * max(0, start - end))
        segment = _segment(name, stop - max(start, end), glyphs, is_lost=is_left)
        line.append(segment, style=LOST_STYLE if is_left else DIM)
        end = max(end, stop)
    return cut(line, width)


def legend(glyphs: Glyphs) -> Text:
    text = Text(" " * (LABEL + 1), style=DIM)
    for glyph, style, said in zip(
        glyphs.speeds, SPEED_STYLES, ("fast", "half as fast", "slow"), strict=True
    ):
        text.append(glyph, style=style)
        text.append(f" {said}  ")
    text.append(glyphs.loading).append(" loading  ")
    text.append(glyphs.gap, style=GAP_STYLE)
    return text.append(" nobody")


def missing_said(model: Json) -> str:
    """In a title: whether the model can be asked, and if not, why."""
    if model["covered"]:
        return "covered"
    layers = ", ".join(f"{part['start']}:{part['stop']}" for part in model["missing"])
    return f"NOT COVERED: layers {layers}" if layers else "NOT COVERED: embedding or head"


def node_colours(state: Json) -> Mapping[str, str]:
    """Each node has one, the same everywhere on the map."""
    order = sorted(node["id"] for node in state["nodes"])
    return {node: NODE_COLOURS[i % len(NODE_COLOURS)] for i, node in enumerate(order)}


# ---------------------------------------------------------------- inside


def _by_layer(state: Json, model: Json) -> tuple[list[tuple[int, ...]], list[int]]:
    """Per layer the speed classes of those that serve it, and how many are loading it."""
    times: list[list[float]] = [[] for _ in range(model["layers"])]
    loading = [0] * model["layers"]
    for node in state["nodes"]:
        for shard in node["shards"]:
            if shard["model_id"] != model["id"] or node["state"] != "alive":
                continue
            inside = range(max(0, shard["start"]), min(model["layers"], shard["stop"]))
            for layer in inside:
                if shard["state"] == "serving":
                    times[layer].append(shard["decode_s_per_layer"] or 0.0)
                else:
                    loading[layer] += 1
    fastest = min((time for layer in times for time in layer if time > 0), default=0.0)
    return [tuple(sorted(_class(time, fastest) for time in layer)) for layer in times], loading


def _class(time_s: float, fastest_s: float) -> int:
    if time_s < HALF * fastest_s or fastest_s == 0.0:
        return 0
    return 1 if time_s < SLOW * fastest_s else 2


def _row(stand: Sequence[Column], level: int, *, is_top: bool, glyphs: Glyphs) -> Text:
    line = Text(f" {level + 1:>{LABEL - 1}} ", style=DIM)
    for column in stand:
        count = len(column.replicas)
        if level == 0 and not count and not column.loading:
            line.append(glyphs.gap, style=GAP_STYLE)
        elif is_top and count > level + 1:
            line.append(glyphs.more, style=SPEED_STYLES[column.replicas[level]])
        elif level < count:
            speed = column.replicas[level]
            line.append(glyphs.speeds[speed], style=SPEED_STYLES[speed])
        elif level < count + column.loading:
            line.append(glyphs.loading, style=DIM if level else GAP_STYLE)
        else:
            line.append(" ")
    return line


def _axis(scale: Scale, width: int) -> Text:
    """Numbers below the layers, as many as have room."""
    step = next((s for s in (1, 2, 5, 10, 20, 50, 100, 200) if scale.column(s) >= 5), scale.layers)
    marks = range(0, scale.layers, step)
    line = " " * (LABEL + 1)
    for layer in marks:
        at = LABEL + 1 + scale.column(layer)
        line = line.ljust(at) + str(layer)
    end, last = LABEL + 1 + scale.columns, str(scale.layers)
    line = line.ljust(end) + last if len(line) < end and end + len(last) <= width else line
    return cut(Text(line, style=DIM), width)


def _segment(name: str, width: int, glyphs: Glyphs, *, is_lost: bool) -> str:
    """One hop in exactly so many columns: its name, then a line to the next one."""
    if width <= 0:
        return ""
    fill = glyphs.lost if is_lost else glyphs.line
    end = fill if is_lost else glyphs.arrow
    if width < 3:
        return fill * (width - 1) + end
    label = fit(name, min(len(name), width - 1)).rstrip() or name[:1]
    return (label + fill * width)[: width - 1] + end


def _is_settled(session: Json) -> bool:
    return session["phase"] in SETTLED
