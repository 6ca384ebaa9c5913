"""What a node says about itself: the bodies of its two signed records.

Static: who it is and what it serves. Dynamic: how fast it is now. Either travels as a
`messages.SignedRecord` whose body is the msgpack array of the dataclass below.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.terms import Address, HubShare, LinkSpeed, ModelSpec, ShardInfo, ShardSpeed


@dataclass(frozen=True, slots=True)
class StaticRecord:
    name: str
    """Chosen by the owner (default: host name); for people only."""
    version: str
    protocol_min: int
    protocol_max: int
    addresses: tuple[Address, ...]
    device: str
    memory_bytes: int
    models: tuple[ModelSpec, ...]
    """Models whose text files this node can hand out."""
    shards: tuple[ShardInfo, ...]
    leaving: bool
    """Announced departure: no new session may be routed here."""
    departs_in_s: float = 0.0
    """It will leave so long after this was said, about; 0: no such thing is known."""
    hub: tuple[HubShare, ...] = ()
    """Models of the hub that this node wants, fetches or has."""


@dataclass(frozen=True, slots=True)
class DynamicRecord:
    speeds: tuple[ShardSpeed, ...]
    links: tuple[LinkSpeed, ...]
    local_health: int
    """0 is well; more means that this node's own loop lags and its suspicions count less."""
