"""Why a route was chosen, as a person reads it: JSON of `/swarm/explain` in, tables out. Pure."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from swarm.terms import short

Json = dict[str, Any]
PARTS = {"compute_ms": "computing", "queue_ms": "waiting in queues", "link_ms": "the links"}
ONCE = {
    "once_prefill_ms": "computing the prompt",
    "once_rows_ms": "sending the prompt's rows",
    "once_dial_ms": "dialling",
}
NEAR = 0.01
"""Parts of a difference below this share of it are not worth a word."""


def explain_view(told: Json) -> RenderableType:
    """One table a route, then why the first is the first."""
    asked = f"{told['model']}: {told['prompt_tokens']} tokens in, {told['max_tokens']} out"
    if not told["routes"]:
        return Text(f"{asked}: no route is to be had now; `swarm status` shows what is missing")
    parts: list[RenderableType] = [Text(asked, style="bold")]
    for number, route in enumerate(told["routes"], 1):
        parts += [Text(), Text(_headline(number, route), style="bold"), _table(route)]
    return Group(*parts, Text(), *(Text(line) for line in reasons(told["routes"])))


def _headline(number: int, route: Json) -> str:
    way = " → ".join(f"{_name(hop)} {hop['start']}:{hop['stop']}" for hop in route["hops"])
    return (
        f"{number}. {way}: first token {route['first_token_ms']:.0f} ms, then"
        f" {route['token_ms']:.1f} ms each ({route['tokens_per_s']} tokens/s)"
    )


def _table(route: Json) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("   ms of each token:")
    for column in ("queue", "compute", "link", "  once: prompt", "rows", "dial"):
        table.add_column(column, justify="right")
    for hop in route["hops"]:
        keys = [*("queue_ms", "compute_ms", "link_ms"), *ONCE]
        table.add_row(
            Text(f"   {_name(hop)} {hop['start']}:{hop['stop']}"), *(_figure(hop[k]) for k in keys)
        )
    table.add_row("   back to the origin", "", "", _figure(route["back_ms"]))
    return table


def reasons(routes: list[Json]) -> list[str]:
    """For every route but the first, what it loses by; sums of the whole answer."""
    best = _sums(routes[0])
    lines = []
    for number, route in enumerate(routes[1:], 2):
        other = _sums(route)
        behind = route["total_ms"] - routes[0]["total_ms"]
        tokens = route["expected_tokens"]
        losses = {part: other[part] - best[part] for part in other}
        named = [
            f"{abs(loss):.0f} ms {'more' if loss > 0 else 'less'} for {part}"
            for part, loss in sorted(losses.items(), key=lambda item: -abs(item[1]))
            if abs(loss) > NEAR * max(behind, 1.0)
        ]
        costs = ", ".join(named) or "nothing but the number of hops and names"
        lines.append(f"Route {number} costs {behind:.0f} ms more over {tokens} tokens: {costs}.")
    return lines or ["There is no other route."]


def _sums(route: Json) -> dict[str, float]:
    tokens = route["expected_tokens"]
    each = {word: tokens * sum(hop[key] for hop in route["hops"]) for key, word in PARTS.items()}
    each["the links"] += tokens * route["back_ms"]
    return each | {word: sum(hop[key] for hop in route["hops"]) for key, word in ONCE.items()}


def _name(hop: Json) -> str:
    return str(hop["name"] or short(hop["node"]))


def _figure(ms: float) -> str:
    return f"{ms:.1f}" if ms else "-"
