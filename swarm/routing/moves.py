"""Who should serve other layers than now: where some are lost, and where the whole gains. Pure.

Everybody who sees the same records names the same moves. A move never leaves a layer without a
holder that has one; it makes the covered layers more, or else the wanted copies, or else the
throughput by a stated factor, so that moves come to an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from swarm.routing.placement import (
    Capacity,
    Served,
    choose_layers,
    copies_held,
    plan_layers,
    throughput,
)
from swarm.terms import LayerRange, NodeId

VERIFIED_MAX = 3
"""Moves whose throughput is computed; the others look worse by a coarser sum."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A node and the layers that it serves, or will when what it is about is done."""

    node: NodeId
    layers: LayerRange
    decode_s_per_layer: float
    is_steady: bool
    """It serves them now, and is about nothing else."""
    room_layers: int = 0
    """How many it could serve instead; 0: it does not move."""
    load_s: float = 0.0

    @property
    def served(self) -> Served:
        return Served(self.layers, self.decode_s_per_layer)

    @property
    def capacity(self) -> Capacity:
        return Capacity(self.room_layers, self.decode_s_per_layer)

    @property
    def may_move(self) -> bool:
        return self.is_steady and self.room_layers > 0


@dataclass(frozen=True, slots=True)
class Move:
    node: NodeId
    layers: LayerRange


def repairs(
    layer_count: int, holders: Sequence[Holder], *, may_plan_anew: bool = True
) -> tuple[Move, ...]:
    """What brings lost layers back: one after the other who brings most and is ready soonest.

    Where that does not bring all, one plan for all who may move, if that does and `may_plan_anew`:
    as long as a layer lacks the model answers nobody. Empty when all layers are held.
    """
    placed = {holder.node: holder for holder in sorted(holders, key=lambda h: h.node)}
    moves: list[Move] = []
    while (covered := _covered(layer_count, placed.values())) < layer_count:
        found = [
            (_covered(layer_count, [*rest, replace(holder, layers=window)]), holder, window)
            for holder in placed.values()
            if holder.may_move
            for rest in [[other for other in placed.values() if other is not holder]]
            if (window := _rescue(layer_count, holder, rest)) is not None
        ]
        found = [entry for entry in found if entry[0] > covered]
        if not found:
            return _joint(layer_count, placed, moves) if may_plan_anew else tuple(moves)
        _, holder, window = min(found, key=lambda e: (-e[0], e[1].load_s, e[1].node))
        moves.append(Move(holder.node, window))
        placed[holder.node] = replace(holder, layers=window, is_steady=False)
    return tuple(moves)


def _rescue(layer_count: int, holder: Holder, rest: Sequence[Holder]) -> LayerRange | None:
    """The window that a holder would take for what the rest lacks, if it gives up nothing."""
    window = choose_layers(layer_count, holder.capacity, [other.served for other in rest])
    if window is None:
        return None
    held = _counts(layer_count, rest)
    given_up = (layer for layer in _span(holder.layers, layer_count) if not held[layer])
    return window if all(layer in window for layer in given_up) else None


def _joint(
    layer_count: int, placed: dict[NodeId, Holder], moves: Sequence[Move]
) -> tuple[Move, ...]:
    """All who may move choose anew, where they then hold all; else what was found so far."""
    free = [holder for holder in placed.values() if holder.may_move]
    fixed = [holder.served for holder in placed.values() if not holder.may_move]
    plan = list(plan_layers(layer_count, [holder.capacity for holder in free], fixed))
    _keep_places(free, plan)
    anew = [
        replace(holder, layers=layers)
        for holder, layers in zip(free, plan, strict=True)
        if layers is not None
    ]
    stay = [holder for holder in placed.values() if not holder.may_move]
    if _covered(layer_count, [*stay, *anew]) < layer_count:
        return tuple(moves)
    changed = (h for h in anew if h.layers != placed[h.node].layers)
    return (*moves, *(Move(holder.node, holder.layers) for holder in changed))


def _keep_places(free: Sequence[Holder], plan: list[LayerRange | None]) -> None:
    """Let who has a range of the plan keep it, where two can change roles for that."""
    for number, holder in enumerate(free):
        if holder.layers not in plan or plan[number] == holder.layers:
            continue
        other, mine = plan.index(holder.layers), plan[number]
        fits = mine is None or len(mine) <= free[other].room_layers
        if fits and len(holder.layers) <= holder.room_layers:
            plan[number], plan[other] = plan[other], mine


def improvement(
    layer_count: int, holders: Sequence[Holder], copies: int, gain: float
) -> Move | None:
    """The move that helps most while all are steady and all layers are held; None: none is worth
    it. Who moves has nothing that another does not serve as well.

    gain  by what factor the throughput must rise where no wanted copy is won
    """
    counts = _counts(layer_count, holders)
    if not all(counts) or not all(holder.is_steady for holder in holders):
        return None
    now = [holder.served for holder in holders]
    sums = _Sums(layer_count, holders, copies)
    found = []
    for holder in holders:
        if not holder.may_move or any(counts[n] < 2 for n in _span(holder.layers, layer_count)):
            continue
        value, window = sums.best(holder)
        if window != holder.layers:
            found.append((value, holder, window))
    found.sort(key=lambda entry: (*(-part for part in entry[0]), entry[1].load_s, entry[1].node))
    before = (copies_held(layer_count, now, copies), throughput(layer_count, now))
    for _, holder, window in found[:VERIFIED_MAX]:
        after = [h.served for h in holders if h is not holder]
        after.append(Served(window, holder.decode_s_per_layer))
        held, speed = copies_held(layer_count, after, copies), throughput(layer_count, after)
        if held > before[0] or (held == before[0] and speed >= gain * before[1]):
            return Move(holder.node, window)
    return None


class _Sums:
    """A coarse value of windows: wanted copies, and the rate of the slowest layer when each node
    divides itself evenly over its layers."""

    def __init__(self, layer_count: int, holders: Sequence[Holder], copies: int) -> None:
        self._count, self._copies = layer_count, copies
        self._held = _counts(layer_count, holders)
        self._rates = [0.0] * layer_count
        for holder in holders:
            for layer in _span(holder.layers, layer_count):
                self._rates[layer] += holder.served.rate / len(holder.layers)

    def best(self, holder: Holder) -> tuple[tuple[int, float], LayerRange]:
        width = min(holder.room_layers, self._count)
        own = holder.served.rate / width
        rates, held = list(self._rates), list(self._held)
        for layer in _span(holder.layers, self._count):
            rates[layer] -= holder.served.rate / len(holder.layers)
            held[layer] -= 1
        before = [float("inf"), *accumulate(rates, min)]
        after = [float("inf"), *accumulate(reversed(rates), min)][::-1]
        values = []
        for start in range(self._count - width + 1):
            stop = start + width
            slowest = min(before[start], after[stop], min(rates[start:stop]) + own)
            wanted = sum(count < self._copies for count in held[start:stop])
            window = LayerRange(start, stop)
            values.append(((wanted, round(slowest, 9)), window == holder.layers, -start, window))
        value, _, _, window = max(values, key=lambda entry: entry[:3])
        return value, window


def _covered(layer_count: int, holders: Iterable[Holder]) -> int:
    return sum(count > 0 for count in _counts(layer_count, holders))


def _counts(layer_count: int, holders: Iterable[Holder]) -> list[int]:
    """How many hold each layer."""
    counts = [0] * layer_count
    for holder in holders:
        for layer in _span(holder.layers, layer_count):
            counts[layer] += 1
    return counts


def _span(layers: LayerRange, layer_count: int) -> range:
    return range(layers.start, min(layers.stop, layer_count))
