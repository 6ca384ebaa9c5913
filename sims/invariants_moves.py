"""Invariants about which machine serves which layers."""

from __future__ import annotations

from sims.inside import served_layers
from sims.invariants import Invariant
from sims.node import SimNode
from swarm.notes import Note

KNOWN_S = 3.0
"""A loss so recent need not be known where the move is made."""


class MovesKeepCover(Invariant):
    """Repairs are made while the model lacks layers anyhow: they are not judged by this."""

    name = "moves keep cover"
    says = "who gives up layers to make the swarm faster leaves none of them without a holder"

    def on_note(self, node: SimNode, entry: Note) -> None:
        if entry.event != "shard.moves" or entry.get("repair"):
            return
        since_s = self.world.now_s - KNOWN_S
        if any(fault.at_s >= since_s for fault in reversed(self.world.truth.faults)):
            return
        others = [n for n in self.world.running() if n is not node and n.is_up]
        held = {layer for other in others for layers in served_layers(other)
                for layer in range(layers.start, layers.stop)}  # fmt: skip
        lacking = set(range(self.world.model.layer_count)) - held
        if lacking:
            self.violated(f"{node} moves, and nobody has {sorted(lacking)} any more")
