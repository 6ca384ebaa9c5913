"""A folder with all figures: plots, one HTML page to look at, and the same figures as JSON."""

from __future__ import annotations

import html
import json
import os
import platform
from pathlib import Path

from rich.text import Text

from sims import plots
from sims.figure import Cell, Figure, plain, show
from sims.figures import FAILED, KINDS, OK
from sims.wishes import Wishes
from swarm.errors import ConfigError

REPORTED = ("speed", "failover", "gossip", "heal")
"""Those that take minutes; the others take hours and are asked for by name."""
PAGE = "index.html"
DATA = "figures.json"

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ccc; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; }
.missed { color: #b00020; font-weight: bold; }
.note, .command { color: #555; font-size: .9rem; margin: .2rem 0; }
"""


def write_report(wishes: Wishes, folder: str | os.PathLike[str]) -> int:
    """Measure, print and write everything. Raises ConfigError where the folder cannot be written;
    returns 1 when an aim was missed."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / DATA).touch()
    except OSError as error:
        raise ConfigError(f"cannot write into {place}: {error.strerror}") from error
    figures: dict[str, Figure] = {}
    for name in REPORTED:
        figures[name] = KINDS[name].measure(wishes)
        show(wishes.console, figures[name])
    shown: dict[str, str] = {}
    if plots.is_available():
        shown = plots.draw(figures, place)
    else:
        wishes.console.print(plots.MISSING)
    data = {"machine": machine(), "figures": {n: f.as_json() for n, f in figures.items()}}
    (place / DATA).write_text(json.dumps(data, indent=1) + "\n")
    (place / PAGE).write_text(page(figures, shown))
    wishes.console.print(Text(f"written: {place / PAGE}"), soft_wrap=True)
    return FAILED if any(figure.is_met is False for figure in figures.values()) else OK


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def page(figures: dict[str, Figure], shown: dict[str, str]) -> str:
    """One HTML page; the plots lie beside it."""
    drawn_from = {file: plots.PLOTS[file][0] for file in shown}
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>The simulated swarm: figures</title><style>{STYLE}</style></head><body>",
        "<h1>The simulated swarm: figures</h1>",
        f"<p>Measured on: {html.escape(machine())}."
        f" The same as JSON: <a href='{DATA}'>{DATA}</a>.</p>",
    ]
    for name, figure in figures.items():
        parts.append(f"<h2>{html.escape(figure.title)}</h2>{_table(figure)}")
        parts += [f"<p class='note'>{html.escape(note)}</p>" for note in figure.notes]
        parts.append(f"<p class='command'>Again: <code>{html.escape(figure.command)}</code></p>")
        parts += [
            f"<figure><img src='{file}' alt='{html.escape(caption)}'></figure>"
            for file, caption in shown.items()
            if drawn_from[file] == name
        ]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _table(figure: Figure) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in figure.columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in figure.rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return "<td>-</td>"
        case bool():
            return "<td>yes</td>" if cell else "<td class='missed'>no</td>"
        case float():
            return f"<td>{plain(cell)}</td>"
        case _:
            return f"<td>{html.escape(str(cell))}</td>"
