"""The seam between links and whatever carries a data channel. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarm.messages import ChannelEnd

LANES = 2
"""Of a channel: control and data, in this order. Weights go by the relay."""


@dataclass(frozen=True, slots=True)
class WireEvents:
    """What a wire tells, on the event loop.

    arrived  a frame of a lane, in sending order per lane
    drained  something of what was given to it has left
    lost     told once, when it ends by itself; nothing follows
    """

    arrived: Callable[[int, bytes], None]
    drained: Callable[[], None]
    lost: Callable[[str], None]


class Wire(Protocol):
    """One end of a pair of data channels, reliable and ordered each: gathered, then connected."""

    async def gather(self) -> ChannelEnd:
        """This end's addresses and names. Raises OSError where there are none."""

    async def connect(self, other: ChannelEnd, events: WireEvents) -> None:
        """Returns when frames can pass. Raises OSError, and then, or when cancelled, is over."""

    @property
    def outstanding_bytes(self) -> int:
        """Given to it, and not yet on its way."""

    def send(self, lane: int, frame: bytes) -> None:
        """Nothing happens when it is over."""

    async def close(self) -> None:
        """End it, at any stage, more than once too; nothing is told any more."""


MakeWire = Callable[[bool], Wire]
"""A new end; True for the one that has offered."""
