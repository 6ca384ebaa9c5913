"""Layers by plan: near the optimum of a solver, within every node's room, the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from swarm.routing.placement import (
    PRECISION,
    Capacity,
    Served,
    choose_layers,
    plan_layers,
    throughput,
)
from swarm.terms import LayerRange

MEDIAN_MIN = 0.9
WORST_MIN = 0.75


def mixed_swarm(seed: int) -> tuple[int, list[Capacity]]:
    """3 to 8 nodes of very different room and speed, which together have room for all layers."""
    rng = Random(seed)
    while True:
        layer_count = rng.choice([12, 16, 24, 30])
        nodes = [
            Capacity(
                rng.randrange(max(1, layer_count // 6), layer_count + 1),
                0.001 * rng.choice([0.05, 0.2, 0.5, 1.0, 2.0, 5.0]) * rng.uniform(0.8, 1.2),
            )
            for _ in range(rng.randrange(3, 9))
        ]
        if sum(node.fit_count for node in nodes) >= layer_count:
            return layer_count, nodes


def served(nodes: Sequence[Capacity], plan: Sequence[LayerRange | None]) -> list[Served]:
    return [
        Served(layers, node.decode_s_per_layer)
        for node, layers in zip(nodes, plan, strict=True)
        if layers is not None
    ]


def optimum(layer_count: int, nodes: Sequence[Capacity]) -> float:
    """The largest throughput of any placement: which window each node takes (binary), and how it
    divides its time over those layers (continuous)."""
    windows = [(i, start) for i, node in enumerate(nodes)
               for start in range(layer_count - min(node.fit_count, layer_count) + 1)]  # fmt: skip
    first_use = 1 + len(windows)
    count = first_use + len(nodes) * layer_count
    rows: list[tuple[dict[int, float], float, float]] = []
    for i, node in enumerate(nodes):
        rate, width = 1.0 / node.decode_s_per_layer, min(node.fit_count, layer_count)
        mine = {1 + w: start for w, (owner, start) in enumerate(windows) if owner == i}
        uses = [first_use + i * layer_count + layer for layer in range(layer_count)]
        rows.append((dict.fromkeys(mine, 1.0), 1.0, 1.0))
        rows.append((dict.fromkeys(uses, 1.0), -np.inf, rate))
        for layer, use in enumerate(uses):
            over = {w: -rate for w, start in mine.items() if start <= layer < start + width}
            rows.append(({use: 1.0, **over}, -np.inf, 0.0))
    for layer in range(layer_count):
        uses = [first_use + i * layer_count + layer for i in range(len(nodes))]
        rows.append(({0: -1.0, **dict.fromkeys(uses, 1.0)}, 0.0, np.inf))
    matrix = lil_matrix((len(rows), count))
    for number, (entries, _, _) in enumerate(rows):
        for column, value in entries.items():
            matrix[number, column] = value
    binary = np.zeros(count)
    binary[1:first_use] = 1
    upper = np.where(binary > 0, 1.0, np.inf)
    goal = np.zeros(count)
    goal[0] = -1.0
    limits = LinearConstraint(matrix.tocsr(), [low for _, low, _ in rows], [h for _, _, h in rows])
    found = milp(goal, constraints=limits, integrality=binary, bounds=Bounds(0.0, upper),
                 options={"mip_rel_gap": 0.01})  # fmt: skip
    assert found.success, found.message
    return float(-found.fun)


def ratios(seeds: Sequence[int]) -> list[float]:
    found = []
    for seed in seeds:
        layer_count, nodes = mixed_swarm(seed)
        plan = plan_layers(layer_count, nodes)
        found.append(throughput(layer_count, served(nodes, plan)) / optimum(layer_count, nodes))
    return found


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(200), marks=pytest.mark.slow)], ids=len
)
def test_plans_are_near_the_optimum(seeds: Sequence[int]) -> None:
    found = ratios(seeds)
    assert median(found) >= MEDIAN_MIN
    assert min(found) >= WORST_MIN


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_every_plan_keeps_to_its_nodes(seed: int) -> None:
    """Within the room of each, covering all, the same again, and never slower for its slowest."""
    layer_count, nodes = mixed_swarm(seed)
    plan = plan_layers(layer_count, nodes)
    for node, layers in zip(nodes, plan, strict=True):
        assert layers is not None
        assert len(layers) <= node.fit_count
        assert layers.stop <= layer_count
    speed = throughput(layer_count, served(nodes, plan))
    assert speed > 0
    assert plan_layers(layer_count, list(nodes)) == plan
    slowest = max(range(len(nodes)), key=lambda i: nodes[i].decode_s_per_layer)
    others = [node for i, node in enumerate(nodes) if i != slowest]
    without = plan_layers(layer_count, others)
    assert speed >= throughput(layer_count, served(others, without)) * (1 - 3 * PRECISION)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_throughput_is_what_the_fractions_allow(seed: int) -> None:
    """Against the optimum of a placement in which nobody has a choice."""
    rng = Random(seed)
    layer_count = rng.randrange(1, 8)
    placed = []
    for _ in range(rng.randrange(1, 5)):
        start = rng.randrange(layer_count)
        stop = rng.randrange(start + 1, layer_count + 1)
        placed.append(Served(LayerRange(start, stop), rng.choice([0.1, 1.0, 3.0])))
    bound = min(
        sum(s.rate for s in placed if any(layer in s.layers for layer in chosen)) / len(chosen)
        for chosen in _subsets(layer_count)
    )
    found = throughput(layer_count, placed)
    assert bound * (1 - 2 * PRECISION) <= found <= bound * (1 + PRECISION)


def _subsets(count: int) -> list[tuple[int, ...]]:
    """Hall's condition: no set of layers may want more than its holders supply."""
    bits = product([False, True], repeat=count)
    return [tuple(i for i, b in enumerate(each) if b) for each in bits if any(each)]


def test_only_layers_that_are_to_be_had_are_chosen() -> None:
    had = frozenset({2, 3, 4, 7})
    assert choose_layers(10, Capacity(2, 1.0), [], had) == LayerRange(2, 4)
    assert choose_layers(10, Capacity(5, 1.0), [], had) == LayerRange(2, 5)
    beside = [Served(LayerRange(0, 6), 1.0)]
    assert choose_layers(10, Capacity(3, 1.0), beside, had) == LayerRange(7, 8)
    assert choose_layers(10, Capacity(3, 1.0), [], frozenset()) is None


def test_joining_nodes_that_see_the_same_take_different_layers() -> None:
    nodes = [Capacity(4, 0.001)] * 3
    plan = plan_layers(12, nodes)
    assert sorted(str(layers) for layers in plan) == ["0:4", "4:8", "8:12"]
    beside = plan_layers(12, nodes[:2], [Served(LayerRange(4, 8), 0.001)])
    assert sorted(str(layers) for layers in beside) == ["0:4", "8:12"]
