"""A measured figure: a table for people, the same as JSON, and samples for a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sims.wishes import Wishes

Cell = str | int | float | bool | None
Samples = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """`samples`: by name, what a plot draws. `is_met` None: there is no aim."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    command: str
    notes: tuple[str, ...] = ()
    is_met: bool | None = None
    samples: Samples = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "command": self.command,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
            "is_met": self.is_met,
            "samples": {
                name: [x if math.isfinite(x) else None for x in values]
                for name, values in self.samples.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure that can be asked for."""

    name: str
    says: str
    measure: Callable[[Wishes], Figure]


def show(console: Console, figure: Figure) -> None:
    console.print(Text(figure.title, style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, column in enumerate(figure.columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in figure.rows:
        table.add_row(*(_text(cell) for cell in row))
    console.print(table)
    for note in figure.notes:
        console.print(Text(note, style="dim"))
    console.print(Text(f"again: {figure.command}", style="dim"), soft_wrap=True)
    console.print()


def _text(cell: Cell) -> Text:
    match cell:
        case None:
            return Text("-")
        case bool():
            return Text("yes", style="green") if cell else Text("NO", style="bold red")
        case float():
            return Text(plain(cell))
        case int():
            return Text(f"{cell:,}")
        case _:
            return Text(cell)


def plain(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    if value != 0 and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def spread_of(values: Sequence[float]) -> str:
    """Median, with the least and the most in brackets."""
    if not values:
        return "none"
    ends = f"{plain(min(values))} to {plain(max(values))}"
    return f"{plain(statistics.median(values))} ({ends})"


def quantile(values: Sequence[float], share: float) -> float:
    """The least sample that so large a share of all does not exceed; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered), math.ceil(share * len(ordered))) - 1]


def command(name: str, wishes: Wishes) -> str:
    """What measures a figure again."""
    words = ["scripts/sim", "--figures", name]
    if wishes.seeds is not None:
        words += ["--seeds", str(wishes.seeds)]
    if wishes.options.node_count is not None:
        words += ["--nodes", str(wishes.options.node_count)]
    if wishes.options.minutes is not None:
        words += ["--minutes", f"{wishes.options.minutes:g}"]
    return " ".join(words)
