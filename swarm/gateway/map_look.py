"""How a map draws: its letters, its colours, and text that is cut to fit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from swarm.notes import printable


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Every letter beyond the plain ones, so that a terminal without them has others."""

    speeds: str
    """Of a served layer: near the fastest, half as fast, slower."""
    gap: str
    loading: str
    more: str
    """More replicas than there is height."""
    line: str
    arrow: str
    lost: str
    rule: str
    dot: str
    bar_full: str
    bar_rest: str
    wait: str
    compute: str
    wire: str
    cursor: str


PRETTY = Glyphs(
    speeds="█▓▒",
    gap="!",
    loading="·",
    more="+",
    line="─",
    arrow="▶",
    lost="╳",
    rule="─",
    dot="·",
    bar_full="━",
    bar_rest="─",
    wait="░",
    compute="█",
    wire="~",
    cursor="▸",
)
PLAIN = Glyphs(
    speeds="#=:",
    gap="!",
    loading=".",
    more="+",
    line="-",
    arrow=">",
    lost="x",
    rule="-",
    dot="-",
    bar_full="=",
    bar_rest=".",
    wait=".",
    compute="#",
    wire="~",
    cursor=">",
)

SPEED_STYLES = ("green", "yellow", "red")
GAP_STYLE = "bold white on red"
LOST_STYLE = "bold red"
FRESH_STYLE = "bold reverse"
DIM = "dim"
STATE_STYLES = {"alive": "green", "suspect": "yellow", "dead": "red", "left": "dim"}
LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "bold red"}
NODE_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red")
"""Of nodes in routes, in turn."""


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly `width` columns, whatever letters it has; cut with a dot where it is longer."""
    text = printable(text)
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "." * (width > 0)
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def milliseconds(value: float | None) -> str:
    """Few digits, all of which count."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(count: float) -> str:
    """Bytes for people, in powers of 1024."""
    for unit in "BKM":
        if count < 1024:
            return f"{count:.0f}{unit}"
        count /= 1024
    return f"{count:.1f}G" if count < 100 else f"{count:.0f}G"


def rate(bytes_s: float | None) -> str:
    return "-" if bytes_s is None else f"{bytes_s / 1e6:.0f} MB/s"


def title(name: str, said: str, width: int, glyphs: Glyphs) -> Text:
    """A rule that carries the name of what is below it."""
    text = Text(f"{glyphs.rule} ", style=DIM)
    text.append(printable(name), style="bold")
    if said:
        text.append(f" {glyphs.dot} {printable(said)}", style=DIM)
    rest = width - text.cell_len - 1
    if rest > 0:
        text.append(" " + glyphs.rule * rest, style=DIM)
    return cut(text, width)


def cut(text: Text, width: int) -> Text:
    if text.cell_len > width:
        text.truncate(max(0, width - 1))
        text.append("." * (width > 0))
    return text
