"""Plots of measured figures, where matplotlib is installed (the `sim` extra brings it)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sims.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (7.0, 4.2)
DOTS_PER_INCH = 100
MISSING = (
    "matplotlib is not installed, so no plots are drawn; `pip install 'swarm[sim]'` brings it."
)


def is_available() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw(figures: Mapping[str, Figure], folder: Path) -> dict[str, str]:
    """PNGs into the folder; file name to caption, in the order in which they are shown."""
    import matplotlib

    matplotlib.use("Agg")
    drawn: dict[str, str] = {}
    for file, (needs, caption, paint) in PLOTS.items():
        figure = figures.get(needs)
        if figure is not None and _save(folder / file, caption, paint, figure):
            drawn[file] = caption
    return drawn


def _save(file: Path, title: str, paint: Painter, figure: Figure) -> bool:
    """False where the figure has nothing to draw."""
    from matplotlib.figure import Figure as Sheet

    sheet = Sheet(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    axes = sheet.add_subplot()
    if not paint(axes, figure):
        return False
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    if axes.get_xscale() == "log":
        axes.xaxis.set_major_formatter("{x:g}")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        sheet.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    sheet.savefig(file, metadata={"Software": ""})
    return True


# ---------------------------------------------------------------- painters


def _cdf(axes: Axes, label: str, values: list[float]) -> bool:
    """Share of samples that are at most x."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return False
    count = len(ordered)
    shares = [(index + 1) / count for index in range(count)]
    axes.step([ordered[0], *ordered], [0.0, *shares], where="post", label=f"{label} ({count})")
    return True


def _cdfs(prefix: str, x_label: str, *, log: bool = True) -> Painter:
    def paint(axes: Axes, figure: Figure) -> bool:
        chosen = {n: v for n, v in figure.samples.items() if n.startswith(prefix)}
        drawn = [_cdf(axes, name.removeprefix(prefix), values) for name, values in chosen.items()]
        axes.set_xlabel(x_label)
        axes.set_ylabel("share of samples at most so long")
        if log:
            axes.set_xscale("log")
        return any(drawn)

    return paint


def _reroutes(axes: Axes, figure: Figure) -> bool:
    rows = figure.as_json()["rows"]
    names = [str(row["scenario"]) for row in rows]
    axes.barh(names, [float(row["reroutes per loss"] or 0.0) for row in rows], height=0.6)
    axes.set_xlabel("reroutes per loss")
    axes.invert_yaxis()
    return bool(rows)


def _bytes(axes: Axes, figure: Figure) -> bool:
    nodes = figure.samples["nodes"]
    for name in ("idle bytes per s", "busy bytes per s"):
        axes.plot(
            nodes, [b / 1000 for b in figure.samples[name]], marker="o", label=name.split()[0]
        )
    axes.set_xscale("log")
    axes.set_xlabel("nodes")
    axes.set_ylabel("gossip sent by one node, kB/s")
    axes.set_ylim(bottom=0)
    return True


def _rates(axes: Axes, figure: Figure) -> bool:
    chosen = {n: v for n, v in figure.samples.items() if n.startswith("idle ") and v}
    for name, values in chosen.items():
        axes.bar(name.replace("idle ", "") + " nodes", max(values), width=0.5)
    axes.set_ylabel("virtual seconds per real second, idle")
    axes.set_yscale("log")
    return bool(chosen)


Painter = Callable[["Axes", Figure], bool]
PLOTS: dict[str, tuple[str, str, Painter]] = {
    "stalls.png": ("failover", "Pause of an answer after a loss", _cdfs("stall ", "milliseconds")),
    "detection.png": (
        "failover", "From a loss to the reroute", _cdfs("detection ", "milliseconds"),
    ),
    "reroutes.png": ("failover", "Reroutes per loss", _reroutes),
    "convergence.png": (
        "gossip", "A layer range that changes is known everywhere, by swarm size",
        _cdfs("change ", "seconds"),
    ),
    "gossip-bytes.png": ("gossip", "Gossip bytes by the size of the swarm", _bytes),
    "heal.png": (
        "heal", "From the end of a partition to identical views, by swarm size",
        _cdfs("heal ", "seconds"),
    ),
    "speed.png": ("speed", "Speed of the simulator", _rates),
}  # fmt: skip
"""File name to: the figure it is drawn from, its caption, who draws it."""
