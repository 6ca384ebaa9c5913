"""One key, several machines: how a copied identity is told from a restarted one. Pure.

Each start of a node draws an *instance*, which its handshakes show and nothing keeps. A key that
shows another instance is a restart when the old life is over, and a copy (a cloned disk, a copied
home folder) when it still answers. Of two copies that meet, the one that started later by its own
clock gives the identity up (docs/decisions/014-copied-identity.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_STARTED = struct.Struct(">Q")
_RANDOM_BYTES = 8
INSTANCE_BYTES = _STARTED.size + _RANDOM_BYTES


def draw_instance(entropy: Callable[[int], bytes], started_at_s: float = 0.0) -> bytes:
    """`started_at_s`: seconds since 1970. Only who keeps the key depends on it being right."""
    return _STARTED.pack(max(0, int(started_at_s * 1000))) + entropy(_RANDOM_BYTES)


def is_fit(instance: bytes) -> bool:
    """Whether a peer may show this; nodes that know no instances show none."""
    return len(instance) in (0, INSTANCE_BYTES)


def are_two_starts(one: bytes, other: bytes) -> bool:
    """Whether two handshakes under one key are of two starts. False where either is unknown."""
    return bool(one and other) and one != other


def must_yield(own: bytes, other: bytes) -> bool:
    """Whether `own` gives the identity up when it meets `other`; both sides agree on one."""
    return own > other
