"""How a change of the swarm's key is told. Import these names from `messages`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from swarm.message_base import Message
from swarm.terms import NodeId

KEY_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class OlderKey:
    """Accepted until then, seconds since 1970; a time that is past: no more."""

    secret: bytes = field(repr=False)
    until_s: float


@dataclass(frozen=True, slots=True)
class KeyNotice(Message):
    """The sender's keys and whom it holds for put out. Sent as a link comes up, where there is
    anything to tell, and to all links on a change. It is sealed as everything is."""

    NUMBER: ClassVar[int] = 74
    tag: str
    generation: int
    secret: bytes = field(repr=False)
    older: tuple[OlderKey, ...] = field(repr=False)
    revoked: tuple[NodeId, ...]
