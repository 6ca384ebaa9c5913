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


def choose_layers(layer_count: int, fit_count: int, others: Sequence[Served]) -> LayerRange | None:
    """The window of at most `fit_count` layers that helps most, or None when nothing fits.

    Deterministic: ties go to the lower layers.
    """
    if fit_count <= 0:
        return None
    width = min(fit_count, layer_count)
    rates = [
        sum(1.0 / max(o.decode_s_per_layer, 1e-9) for o in others if layer in o.layers)
        for layer in range(layer_count)
    ]
    fastest = max(rates) or 1.0
    gain = [1.0 - rate / fastest if rate else 0.0 for rate in rates]
    uncovered = [rate == 0.0 for rate in rates]

    def score(start: int) -> tuple[int, float]:
        window = slice(start, start + width)
        return (sum(uncovered[window]), round(sum(gain[window]), 9))

    best = max(range(layer_count - width + 1), key=lambda start: (*score(start), -start))
    return LayerRange(best, best + width)
