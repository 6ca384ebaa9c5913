"""What the programs here share: the tests' process harness, and figures as a table."""

from __future__ import annotations

import platform
import signal
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "acceptance"))

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def worst(self) -> float:
        return max(self.values)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.values):.2f} to {self.worst:.2f})"


def spread(values: Iterable[float]) -> Spread:
    return Spread(tuple(values))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(table)


def end_orderly() -> None:
    """A signal ends the program the ordinary way, so that the processes it started end too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def print_machine() -> None:
    import os
    from importlib.metadata import version

    console.print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()},"
        f" torch {version('torch')}; median (least to most)",
        style="dim",
    )
