"""Which of a shard's layers lie on which device of its node. Pure.

The layers of a node are contiguous, and so are those of each of its devices, in the order in which
the owner named them: rows pass the devices one after the other, as they pass the hops of a route.
Layers are dealt so that the KV of all devices holds equally many positions, since a session needs
room on each. A device that `spills` gets no more than what the others cannot hold: a CPU beside a
GPU is ten times slower, so each layer there is one too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.terms import LayerRange, Parts

NARROW_FACTOR = 4.0
"""Times the KV that must be gained for a device to be left out, which then computes nothing."""


@dataclass(frozen=True, slots=True)
class Berth:
    """A device, as far as one model is concerned. Sizes in bytes, in the dtype used there."""

    weight_room: int
    """What weights may take."""
    room: int
    """What weights and KV may take together."""
    layer: int
    embed: int
    head: int
    kv_per_token_layer: int
    spills: bool = False


def fit_count(berths: Sequence[Berth], *, embed: bool = True, head: bool = True) -> int:
    """How many layers fit on all devices together, beside embedding and head."""
    return max(
        sum(_caps(berths, _usable(berths, chosen, embed, head), embed, head).values())
        for chosen in _choices(berths)
    )


def spread(layers: LayerRange, berths: Sequence[Berth], *, embed: bool, head: bool) -> Parts | None:
    """None: they do not fit. `embed`, `head`: they lie with the first and with the last layer."""
    task = _Task(len(layers), berths, embed, head)
    for chosen in _choices(berths):
        used = _usable(berths, chosen, embed, head)
        if len(used) > len(layers):
            roomiest = sorted(used, key=lambda d: (-berths[d].weight_room, d))[: len(layers)]
            used = _usable(berths, sorted(roomiest), embed, head)
        counts = _deal(task, used)
        if counts is not None:
            return _cut(layers, len(berths), _without_narrow(task, counts))
    return None


@dataclass(frozen=True, slots=True)
class _Task:
    """So many layers are to be dealt to these."""

    count: int
    berths: Sequence[Berth]
    embed: bool
    head: bool

    def positions(self, d: int, layer_count: int, used: Sequence[int]) -> float:
        """That the KV of this device holds, with so many layers."""
        berth = self.berths[d]
        fixed = _fixed(berth, d, used, self.embed, self.head)
        left = berth.room - fixed - layer_count * berth.layer
        return left / (layer_count * max(1, berth.kv_per_token_layer))


def _choices(berths: Sequence[Berth]) -> list[list[int]]:
    """Sets of devices to be tried, the best first."""
    every = list(range(len(berths)))
    firm = [d for d in every if not berths[d].spills]
    return [firm, every] if firm and firm != every else [every]


def _fixed(berth: Berth, d: int, used: Sequence[int], embed: bool, head: bool) -> int:
    """Of embedding and head, what lies on this device."""
    first = berth.embed if embed and d == used[0] else 0
    return first + (berth.head if head and d == used[-1] else 0)


def _usable(berths: Sequence[Berth], chosen: Sequence[int], embed: bool, head: bool) -> list[int]:
    """Without those that have no room for one layer."""
    used = list(chosen)
    while used:
        caps = _caps(berths, used, embed, head)
        full = next((d for d in used if caps[d] < 1), None)
        if full is None:
            break
        used.remove(full)
    return used


def _caps(berths: Sequence[Berth], used: Sequence[int], embed: bool, head: bool) -> dict[int, int]:
    """Layers that each of these devices can hold, all of them being used."""
    return {
        d: (berths[d].weight_room - _fixed(berths[d], d, used, embed, head))
        // max(1, berths[d].layer)
        for d in used
    }


def _deal(task: _Task, used: Sequence[int]) -> dict[int, int] | None:
    """Layers for each of these devices: one at least, the others one by one where most KV is left.
    None where they do not fit."""
    caps = _caps(task.berths, used, task.embed, task.head)
    if not used or sum(caps.values()) < task.count or min(caps.values()) < 1:
        return None
    if len(used) > task.count:
        return None
    counts = dict.fromkeys(used, 1)
    for _ in range(task.count - len(used)):
        free = [d for d in used if counts[d] < caps[d]]

        def merit(d: int) -> tuple[bool, float, int]:
            return not task.berths[d].spills, task.positions(d, counts[d] + 1, used), -d

        counts[max(free, key=merit)] += 1
    return counts


def _without_narrow(task: _Task, counts: dict[int, int]) -> dict[int, int]:
    """Leave out devices so small that their KV would be the limit of all, where others of their
    kind can take over."""

    def narrowest(dealt: dict[int, int]) -> float:
        return min(task.positions(d, count, list(dealt)) for d, count in dealt.items())

    def spilled(dealt: dict[int, int]) -> int:
        return sum(count for d, count in dealt.items() if task.berths[d].spills)

    while len(counts) > 1:
        fewer = [_deal(task, [d for d in counts if d != out]) for out in counts]
        better = [dealt for dealt in fewer if dealt and spilled(dealt) <= spilled(counts)]
        best = max(better, key=narrowest, default=None)
        if best is None or narrowest(best) <= NARROW_FACTOR * max(0.0, narrowest(counts)):
            break
        counts = best
    return counts


def _cut(layers: LayerRange, device_count: int, counts: dict[int, int]) -> Parts:
    parts: list[LayerRange | None] = []
    start = layers.start
    for d in range(device_count):
        stop = start + counts.get(d, 0)
        parts.append(LayerRange(start, stop) if stop > start else None)
        start = stop
    return tuple(parts)
