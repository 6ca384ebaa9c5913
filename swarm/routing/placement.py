"""Which layers nodes take: first what nobody serves, then what makes the whole fastest.

The throughput of a placement is the rate T at which every layer can be run, when each node divides
its time over its layers as it likes: node i supplies 1 / decode_s_per_layer layers a second to the
layers it holds, every layer wants T. What one window supplies where it helps most is found by
serving layers from the first on, each by the holders whose windows end soonest, which is right for
supplies that are intervals (Glover, "Maximum matching in a convex bipartite graph", 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.terms import LayerRange

PRECISION = 0.01
"""Of a throughput, relative."""
WINDOWS_MAX = 12
"""Windows that are compared by throughput; those that fill the slowest layers best."""
SWEEPS_MAX = 4
"""Times that every node of a joint plan may choose again."""
MIN_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Served:
    """Layers that some other node serves or has said it will serve, and how fast."""

    layers: LayerRange
    decode_s_per_layer: float

    @property
    def rate(self) -> float:
        """Layers a second."""
        return 1.0 / max(self.decode_s_per_layer, MIN_SECONDS)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node could take: at most `fit_count` layers, and how fast it runs one."""

    fit_count: int
    decode_s_per_layer: float


def layers_that_fit(budget_bytes: int, layer_bytes: int, fixed_bytes: int) -> int:
    """How many layers a weight budget holds beside `fixed_bytes` (embedding and head)."""
    return max(0, (budget_bytes - fixed_bytes) // max(1, layer_bytes))


def throughput(layer_count: int, placed: Sequence[Served]) -> float:
    """Tokens a second that a placement can carry, to `PRECISION`; 0 with a layer uncovered."""
    held = _held(layer_count, placed)
    if not all(held):
        return 0.0
    rates = [served.rate for served in placed]
    ends = [served.layers.stop for served in placed]
    order = [sorted(holders, key=lambda i: ends[i]) for holders in held]
    high = min(sum(rates[i] for i in holders) for holders in held)
    high = min(high, sum(rates) / layer_count)
    low = high / (2 * max(1, len(placed)) * layer_count)
    while not _carries(low, order, rates):
        low /= 4
    if _carries(high, order, rates):
        return high
    while high > low * (1 + PRECISION):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _carries(middle, order, rates) else (low, middle)
    return low


def _held(layer_count: int, placed: Sequence[Served]) -> list[list[int]]:
    """Who holds each layer."""
    held: list[list[int]] = [[] for _ in range(layer_count)]
    for number, served in enumerate(placed):
        for layer in range(served.layers.start, min(served.layers.stop, layer_count)):
            held[layer].append(number)
    return held


def _carries(wanted: float, order: Sequence[Sequence[int]], rates: Sequence[float]) -> bool:
    """Whether every layer can be run so often. `order`: holders per layer, soonest end first."""
    left = list(rates)
    for holders in order:
        lacking = wanted
        for number in holders:
            taken = min(left[number], lacking)
            left[number] -= taken
            lacking -= taken
            if lacking <= 0.0:
                break
        if lacking > wanted * 1e-9:
            return False
    return True


def choose_layers(
    layer_count: int,
    own: Capacity,
    others: Sequence[Served],
    obtainable: frozenset[int] | None = None,
    copies: int = 1,
) -> LayerRange | None:
    """The window that helps most beside the others, or None when nothing fits.

    obtainable  layers whose weights are to be had; None: all
    copies      how often every layer is wanted

    What is uncovered counts first, then copies that are wanted and lack, then the throughput, then
    what is slowest. Deterministic: ties go to the lower layers.
    """
    windows = _windows(layer_count, min(own.fit_count, layer_count), obtainable)
    if not windows:
        return None
    rates = _rates(layer_count, others)
    lacks = [len(holders) < copies for holders in _held(layer_count, others)]
    filled = {window: _fills(window, rates, lacks) for window in windows}
    best = sorted(windows, key=lambda w: (*filled[w], -w.start), reverse=True)
    covered, wanted = filled[best[0]][:2]
    best = [window for window in best if filled[window][:2] == (covered, wanted)][:WINDOWS_MAX]
    if len(best) == 1 or covered < sum(rate == 0.0 for rate in rates):
        return best[0]
    speeds = {
        w: throughput(layer_count, [*others, Served(w, own.decode_s_per_layer)]) for w in best
    }
    top = max(speeds.values())
    return next(window for window in best if speeds[window] >= top * (1 - PRECISION))


def copies_held(layer_count: int, placed: Sequence[Served], copies: int) -> int:
    """Copies of all layers together, of each at most as many as are wanted."""
    return sum(min(len(holders), copies) for holders in _held(layer_count, placed))


def _rates(layer_count: int, others: Sequence[Served]) -> list[float]:
    """Per layer what its holders supply, each dividing itself evenly over its layers."""
    rates = [0.0] * layer_count
    for other in others:
        for layer in range(other.layers.start, min(other.layers.stop, layer_count)):
            rates[layer] += other.rate / len(other.layers)
    return rates


def _fills(
    window: LayerRange, rates: Sequence[float], lacks: Sequence[bool]
) -> tuple[int, int, float, int]:
    """Uncovered layers in it, layers of which a wanted copy lacks, what it adds where others are
    slow, and its length."""
    fastest = max(rates) or 1.0
    inside = rates[window.start : window.stop]
    gain = sum(1.0 - rate / fastest for rate in inside if rate)
    wanted = sum(lacks[window.start : window.stop])
    return (sum(rate == 0.0 for rate in inside), wanted, round(gain, 9), len(window))


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


def plan_layers(
    layer_count: int,
    nodes: Sequence[Capacity],
    fixed: Sequence[Served] = (),
    obtainable: frozenset[int] | None = None,
    copies: int = 1,
) -> tuple[LayerRange | None, ...]:
    """A placement of all nodes at once, near the fastest; the same for whoever has this view.

    Of two orders of choosing (fast ones first, large ones first) the better is taken, each improved
    until nobody's choosing again helps the whole. None for a node that nothing fits on.

    fixed  what others serve already, which stays
    """
    numbers = range(len(nodes))
    fast_first = sorted(numbers, key=lambda i: (nodes[i].decode_s_per_layer, i))
    large_first = sorted(numbers, key=lambda i: (-nodes[i].fit_count, i))
    board = _Board(layer_count, nodes, fixed, obtainable, copies)
    plans = [board.settled(order) for order in (fast_first, large_first)]
    values = [board.value(plan) for plan in plans]
    return tuple(plans[_is_better(values[1], values[0])])


@dataclass(frozen=True, slots=True)
class _Board:
    """What a joint plan is made for."""

    layer_count: int
    nodes: Sequence[Capacity]
    fixed: Sequence[Served]
    obtainable: frozenset[int] | None
    copies: int

    def settled(self, order: Sequence[int]) -> list[LayerRange | None]:
        """Everybody chooses in turn, then again while the whole gains by it."""
        plan: list[LayerRange | None] = [None] * len(self.nodes)
        for number in order:
            plan[number] = self._choice(number, plan)
        value = self.value(plan)
        for _ in range(SWEEPS_MAX):
            before = value
            for number in order:
                kept, plan[number] = plan[number], None
                plan[number] = self._choice(number, plan)
                now = self.value(plan)
                if _is_better(now, value):
                    value = now
                else:
                    plan[number] = kept
            if value == before:
                break
        return plan

    def value(self, plan: Sequence[LayerRange | None]) -> tuple[int, float]:
        """Wanted copies that are there (of one each the speed tells), and the throughput."""
        served = self._served(plan)
        held = copies_held(self.layer_count, served, self.copies) if self.copies > 1 else 0
        return held, throughput(self.layer_count, served)

    def _choice(self, number: int, plan: Sequence[LayerRange | None]) -> LayerRange | None:
        return choose_layers(
            self.layer_count, self.nodes[number], self._served(plan), self.obtainable, self.copies
        )

    def _served(self, plan: Sequence[LayerRange | None]) -> list[Served]:
        placed = (
            Served(layers, node.decode_s_per_layer)
            for node, layers in zip(self.nodes, plan, strict=True)
            if layers is not None
        )
        return [*self.fixed, *placed]


def _is_better(value: tuple[int, float], than: tuple[int, float]) -> bool:
    """By more than what throughputs are known to."""
    return value[0] > than[0] or (value[0] == than[0] and value[1] > than[1] * (1 + PRECISION))
