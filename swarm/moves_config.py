"""The section of the config about when nodes take other layers than they serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MovesConfig:
    repair_after_s: float = 0.4
    """Layers must lack for this long before others load them, from when their holder was suspected,
    or fell silent if it is suspected by then; most false suspicions end before."""
    repair_intention_s: float = 0.3
    """How long the intention to load lost layers waits for rival ones."""
    repair_patience_s: float = 2.0
    """Who is named to load lost layers and says nothing of it is left out after this time."""
    look_s: float = 10.0
    """How often a node looks whether a move would pay."""
    window_s: float = 60.0
    """For so long the same move must pay before it is made, and up to half of that longer, by
    node. Shorter follows every change of load; longer leaves the swarm slow for longer."""
    gain: float = 1.2
    """By what factor the throughput must rise: above what measured speeds wander by."""
    pause_s: float = 300.0
    """A node that has moved to make the whole faster stays for so long. Repairs do not wait."""
    barred_s: float = 60.0
    """A node that could not get what it was to load stays with what it has for so long."""
