"""What a gateway takes from the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.access.keys_io import KeyStore
from swarm.access.usage_io import UsageStore
from swarm.terms import ModelId, NodeId


@dataclass(frozen=True, slots=True)
class Sources:
    """Clocks and seeds, from whoever puts the gateway together."""

    clock: Callable[[], float]
    """Monotonic, seconds."""
    wall_clock: Callable[[], float]
    """Seconds since 1970, UTC."""
    seed: Callable[[], int]
    """A fresh non-negative number for a request that brings no seed."""
    keys: KeyStore | None = None
    """Keys of the API; None: there are none."""
    usage: UsageStore | None = None
    """Where usage is written down; None: nowhere."""
    consumed: Callable[[NodeId, ModelId, int], None] | None = None
    """Told of every layer-token that a node runs for a session of this gateway."""
