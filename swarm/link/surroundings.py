"""What the world lends to the links of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.link.connection_io import Decode
from swarm.link.handshake import Entropy
from swarm.messages import decode
from swarm.notes import NoteSink


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the world lends: a monotonic clock (seconds), secure randomness, a place for notes.

    `decode`: another one may do its work once for what comes to several nodes of one process.
    `wall_clock`: seconds since 1970 for peers that compare clocks; 0: none.
    """

    clock: Callable[[], float]
    entropy: Entropy
    notes: NoteSink
    decode: Decode = decode
    wall_clock: Callable[[], float] = float
