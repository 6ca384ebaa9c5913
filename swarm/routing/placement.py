"""Which layers a joining node takes: first what nobody serves, then what is slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.terms import LayerRange


@dataclass(frozen=True, slots=True)
class Served:
    """Layers that some other node serves or has said it will serve, and how fast."""

    layers: LayerRange
    decode_s_per_layer: float


def layers_that_fit(budget_bytes: int, layer_bytes: int, fixed_bytes: int) -> int:
    """How many layers a weight budget holds beside `fixed_bytes` (embedding and head)."""
    return max(0, (budget_bytes - fixed_bytes) // max(1, layer_bytes))


def choose_layers(
    layer_count: int,
    fit_count: int,
    others: Sequence[Served],
    obtainable: frozenset[int] | None = None,
) -> LayerRange | None:
    """The window of at most `fit_count` layers that helps most, or None when nothing fits.

    obtainable  layers whose weights are to be had; None: all

    Deterministic: ties go to the lower layers.
    """
    windows = _windows(layer_count, min(fit_count, layer_count), obtainable)
    if not windows:
        return None
    rates = [
        sum(1.0 / max(o.decode_s_per_layer, 1e-9) for o in others if layer in o.layers)
        for layer in range(layer_count)
    ]
    fastest = max(rates) or 1.0
    gain = [1.0 - rate / fastest if rate else 0.0 for rate in rates]
    uncovered = [rate == 0.0 for rate in rates]

    def score(window: LayerRange) -> tuple[int, float, int, int]:
        layers = slice(window.start, window.stop)
        return (
            sum(uncovered[layers]), round(sum(gain[layers]), 9), len(window), -window.start
        )  # fmt: skip

    return max(windows, key=score)


def _windows(layer_count: int, width: int, obtainable: frozenset[int] | None) -> list[LayerRange]:
    """In each run of obtainable layers all windows of that width, or the run if it is shorter."""
    if width <= 0:
        return []
    found: list[LayerRange] = []
    start = 0
    for layer in range(layer_count + 1):
        if layer < layer_count and (obtainable is None or layer in obtainable):
            continue
        if layer > start:
            size = min(width, layer - start)
            found += [LayerRange(at, at + size) for at in range(start, layer - size + 1)]
        start = layer + 1
    return found
