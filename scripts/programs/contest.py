"""Two sides measured in turn, A B A B, so that what else the machine does falls on both alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rig import Spread, console, print_table, spread

HEADINGS = ("what", "ours", "other", "ratio", "bar", "met")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, and the other side's. `bar`: what the ratio ours / other must reach, or, for
    times (`less_is_better`), stay below."""

    what: str
    ours: Callable[[], float]
    other: Callable[[], float]
    bar: float | None = None
    less_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    row: Row
    ours: Spread
    other: Spread

    @property
    def ratios(self) -> Spread:
        """Of each round, so that a slow minute counts on both sides of it."""
        pairs = zip(self.ours.values, self.other.values, strict=True)
        return spread(ours / other for ours, other in pairs)

    @property
    def is_met(self) -> bool | None:
        """None where there is no bar."""
        if self.row.bar is None:
            return None
        ratio = self.ratios.median
        return ratio <= self.row.bar if self.row.less_is_better else ratio >= self.row.bar

    def cells(self) -> Sequence[str]:
        sign = "≤" if self.row.less_is_better else "≥"
        bar = "" if self.row.bar is None else f"{sign} {self.row.bar:g}"
        met = {None: "", True: "yes", False: "no"}[self.is_met]
        return [self.row.what, str(self.ours), str(self.other), str(self.ratios), bar, met]


def measure(row: Row, rounds: int) -> Measured:
    """`rounds` times ours, then the other's, after one of each that does not count."""
    with console.status(row.what):
        row.ours(), row.other()
        pairs = [(row.ours(), row.other()) for _ in range(rounds)]
    result = Measured(row, spread(a for a, _ in pairs), spread(b for _, b in pairs))
    console.print("  ".join(result.cells()), style="dim")
    return result


def report(title: str, results: Sequence[Measured]) -> None:
    print_table(title, HEADINGS, [result.cells() for result in results])


def median_of(times: int, work: Callable[[], float]) -> float:
    return statistics.median(work() for _ in range(times))
