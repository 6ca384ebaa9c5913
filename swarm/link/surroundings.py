"""What the world lends to the links of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.link.channel_port import MakeWire
from swarm.link.connection_io import Decode
from swarm.link.frames import Encode
from swarm.link.handshake import Entropy
from swarm.messages import decode, encode
from swarm.notes import NoteSink


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the world lends: a monotonic clock (seconds), secure randomness, a place for notes.

    `encode`, `decode`: others may do their work once for several nodes of one process.
    `wall_clock`: seconds since 1970 for peers that compare clocks; 0: none. `make_wire`: makes ends
    of data channels, where there are any.
    """

    clock: Callable[[], float]
    entropy: Entropy
    notes: NoteSink
    encode: Encode = encode
    decode: Decode = decode
    wall_clock: Callable[[], float] = float
    make_wire: MakeWire | None = None
