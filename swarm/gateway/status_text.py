"""The state of a swarm as people read it: JSON of `/swarm/state` in, tables out. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarm.terms import short

Json = dict[str, Any]

MIB, GIB = 1 << 20, 1 << 30
WANTED = {
    "wanted": "waits for its turn at the hub",
    "fetching": "downloads it from the hub",
    "whole": "downloaded from the hub",
    "paused": "takes it from a peer, or tries again soon",
    "unable": "the hub does not give it to this node",
}
STATE_STYLES = {"alive": "green", "suspect": "yellow", "dead": "red", "left": "dim"}


def status_view(state: Json) -> RenderableType:
    """Who is there, what each serves, which models are whole, what runs."""
    kind = "the open swarm" if state["open"] else "swarm"
    head = Text.assemble(
        f"{kind} {state['swarm']}, seen from ",
        (state["name"], "bold"),
        f" {short(state['node_id'])}",
    )
    parts: list[RenderableType] = [head, _nodes(state), _models(state)]
    if state["sessions"]:
        parts.append(_sessions(state))
    if state["foreign_swarms"]:
        tags = ", ".join(state["foreign_swarms"])
        parts.append(Text(f"also heard, but without a key for it: {tags}", style="dim"))
    return Group(*parts)


def route_text(route: list[Json], names: dict[str, str]) -> str:
    """`anna 0:10 → bert 10:20`."""
    return " → ".join(
        f"{names.get(hop['node'], short(hop['node']))} {hop['start']}:{hop['stop']}"
        for hop in route
    )


def span_text(span_s: float) -> str:
    """A time in its largest unit that it holds twice, as people say it."""
    for unit, length_s in (("h", 3600.0), ("min", 60.0)):
        if span_s >= 2 * length_s:
            return f"{span_s / length_s:.0f} {unit}"
    return f"{span_s:.0f} s"


def names_of(state: Json) -> dict[str, str]:
    return {node["id"]: node["name"] for node in state["nodes"]}


def layers_text(shard: Json) -> str:
    """Of a shard; where several devices of its node share them, `|` is between these."""
    ends = [shard["start"], *shard.get("cuts", ()), shard["stop"]]
    return "|".join(f"{start}:{stop}" for start, stop in pairwise(ends))


def missing_text(model: Json) -> str:
    """Why a model is not covered."""
    layers = ", ".join(f"{part['start']}:{part['stop']}" for part in model["missing"])
    return f"layers {layers} missing" if layers else "embedding or head missing"


def _nodes(state: Json) -> Table:
    table = _table("node", "id", "state", "rtt", "device", "memory", "serves")
    for node in state["nodes"]:
        rtt = "self" if node["self"] else _rtt(node["rtt_ms"])
        table.add_row(
            Text(node["name"]),
            short(node["id"]),
            Text(_state(node), style=STATE_STYLES.get(node["state"], "")),
            rtt,
            Text(node["device"]),
            f"{node['memory_bytes'] / GIB:.1f} GiB",
            Text("\n".join([*map(_shard, node["shards"]), *map(_want, node["wants"])]) or "-"),
        )
    return table


def _state(node: Json) -> str:
    if node["state"] != "alive" or not node["departs_in_s"]:
        return str(node["state"])
    return f"alive, leaves in about {span_text(node['departs_in_s'])}"


def _rtt(rtt_ms: float | None) -> str:
    return "-" if rtt_ms is None else f"{rtt_ms:.1f} ms"


def _shard(shard: Json) -> str:
    ends = [name for name in ("embed", "head") if shard[name]]
    words = [shard["model"], layers_text(shard), *ends]
    speed = shard["decode_s_per_layer"]
    if shard["state"] != "serving":
        words.append(f"({shard['state']})")
    elif speed:
        words.append(f"{speed * 1e3:.2f} ms/layer")
    return " ".join(words)


def _want(want: Json) -> str:
    """Of a model of the hub that is not there yet."""
    words = WANTED[want["state"]]
    if want["done_bytes"]:
        words += f", {want['done_bytes'] / MIB:.0f} MiB so far"
    return f"{want['model']} ({words})"


def _models(state: Json) -> RenderableType:
    if not state["models"]:
        is_coming = any(node["wants"] for node in state["nodes"])
        hint = "" if is_coming else ": join with --model DIR"
        return Text(f"no models yet{hint}", style="dim")
    table = _table("model", "layers", "context", "state")
    for model in state["models"]:
        whole = Text("covered", style="green")
        holed = Text(missing_text(model), style="red")
        table.add_row(
            Text(model["name"]),
            str(model["layers"]),
            str(model["context_length"]),
            whole if model["covered"] else holed,
        )
    return table


def _sessions(state: Json) -> Table:
    names = names_of(state)
    table = _table("session", "model", "position", "reroutes", "route")
    for session in state["sessions"]:
        table.add_row(
            short(session["id"]),
            Text(session["model"]),
            str(session["position"]),
            str(session["reroutes"]),
            Text(route_text(session["route"], names) or "-"),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    return table
