"""What a look at an address found (`probe_io`). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarm.link.handshake import ProtocolRange
from swarm.terms import Address, NodeId


class Outcome(Enum):
    """How the address answered."""

    MEMBER = "member"
    SILENT = "silent"
    """Nothing came back: a firewall that drops, a host that is off, or another network."""
    CLOSED = "closed"
    """The host is there and nothing listens on the port."""
    NO_WAY = "no way"
    """This machine has no route to it, or knows no such name."""
    OTHER_KEY = "other key"
    """It hung up at the first message, as a node does that has another swarm key."""
    OTHER_VERSION = "other version"
    MUTE = "mute"
    """It takes connections and does not speak."""


@dataclass(frozen=True, slots=True)
class Found:
    """`is_reached_back`, `clock_offset_s` (its clock less ours): None where it did not say."""

    address: Address
    outcome: Outcome
    detail: str = ""
    node: NodeId = NodeId("")
    protocol: ProtocolRange | None = None
    is_reached_back: bool | None = None
    back_detail: str = ""
    clock_offset_s: float | None = None
