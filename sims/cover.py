"""Whether a model's layers could really be reached from a node, and for how long they could not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sims.inside import has_link, is_penalised, knows_layers, served_layers

if TYPE_CHECKING:
    from sims.node import SimNode
    from sims.world import World

SAMPLE_S = 0.25
RECONNECT_S = 5.0
"""What was in trouble within this time need not be linked again, or trusted; where it is all the
same, it counts at once."""


class CoverLog:
    """Looks at the true state of the world now and then, for each node whose clients wait."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lost: dict[int, list[float]] = {}
        """Per node number the moments at which cover was found missing."""

    async def watch(self) -> None:
        while True:
            waiting = [r.origin for r in self._world.requests if not r.is_over]
            for origin in {origin.number: origin for origin in waiting}.values():
                self.look(origin)
            await asyncio.sleep(SAMPLE_S)

    def look(self, origin: SimNode) -> None:
        """Take down whether there is cover for this node now."""
        if not self.is_covered(origin):
            self._lost.setdefault(origin.number, []).append(self._world.now_s)

    def was_lost(self, origin: SimNode, start_s: float, stop_s: float) -> bool:
        moments = self._lost.get(origin.number, [])
        return any(start_s <= at <= stop_s for at in moments)

    def lost_s(self, origin: SimNode, start_s: float, stop_s: float) -> float:
        """How much of the time cover was missing, and one sample more for its edges."""
        moments = self._lost.get(origin.number, [])
        count = sum(start_s <= at <= stop_s for at in moments)
        return (count + 1) * SAMPLE_S if count else 0.0

    def is_covered(self, origin: SimNode) -> bool:
        """Whether all layers are reached from there: by nodes that are well and stay, and are well
        connected with the origin and with their neighbours."""
        count = self._world.model.layer_count
        spans = [
            (layers.start, layers.stop, node)
            for node in self._world.nodes
            if node.spec.checkpoints
            and node.is_up
            and node.is_well
            and not self._world.truth.has("leaving", node.number)
            for layers in served_layers(node)
            if self._is_usable(origin, node)
        ]
        spans.sort(key=lambda span: (span[0], span[1], span[2].number))
        ways = [span for span in spans if span[0] == 0]
        for stop, node in ((way[1], way[2]) for way in ways):
            if stop >= count:
                return True
            ways += [
                span
                for span in spans
                if span not in ways and span[0] <= stop < span[1] and self._is_linked(node, span[2])
            ]
        return False

    def _is_usable(self, origin: SimNode, node: SimNode) -> bool:
        if origin is node:
            return True
        is_trusted = not is_penalised(origin, node) and knows_layers(origin, node)
        return self._is_linked(origin, node, is_trusted=is_trusted)

    def _is_linked(self, a: SimNode, b: SimNode, *, is_trusted: bool = True) -> bool:
        if a is b:
            return True
        truth, now_s = self._world.truth, self._world.now_s
        quiet_s = truth.direct_quiet_s(now_s, a.number, b.number)
        if quiet_s >= RECONNECT_S:
            return True
        return quiet_s > 0.0 and is_trusted and has_link(a, b) and has_link(b, a)
