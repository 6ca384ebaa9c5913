"""The keys of one swarm over time, and the nodes it has put out. Pure.

A swarm keeps its tag for life; its key may be changed. For a while after that the older key is
accepted as well, by whoever has not heard. States merge: the later generation is the key, the
earlier end of an older key holds, and who was put out by anybody is out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from swarm.errors import CapacityError
from swarm.link.identity import SwarmKey
from swarm.messages import KeyNotice, OlderKey
from swarm.terms import NodeId

OLDER_MAX = 4
"""Keys accepted beside the present one; each costs a stranger one more AEAD check."""
REVOKED_MAX = 512
GENERATION_LIMIT = 1 << 31
REVOKED = "this node was put out of the swarm"
RIVAL_S = 86_400.0
"""Of two keys made at the same time one loses; it is accepted for this long."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """`until_s`: of older keys, seconds since 1970."""

    key: SwarmKey
    generation: int = 0
    older: tuple[OlderKey, ...] = field(default=(), repr=False)
    revoked: frozenset[NodeId] = frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether nothing has ever been changed: there is nothing to tell."""
        return not self.generation and not self.revoked

    def accepted(self, now_s: float) -> tuple[SwarmKey, ...]:
        """Older keys that still open a handshake."""
        return tuple(
            SwarmKey(old.secret, self.key.tag) for old in self.older if old.until_s > now_s
        )

    def rotated(self, secret: bytes, until_s: float) -> KeyRing:
        """With a fresh key; the present one is accepted until then."""
        older = (OlderKey(self.key.secret, until_s), *self.older)
        key = SwarmKey(secret, self.key.tag)
        return KeyRing(key, self.generation + 1, older[:OLDER_MAX], self.revoked)

    def without(self, node: NodeId, secret: bytes) -> KeyRing:
        """`node` is put out, and every key that it knows ends now. Raises CapacityError."""
        if len(self.revoked) >= REVOKED_MAX:
            raise CapacityError(f"{REVOKED_MAX} nodes are put out already; start a new swarm")
        ended = tuple(OlderKey(old.secret, 0.0) for old in self.older)
        ring = replace(self, older=ended, revoked=self.revoked | {node})
        return ring.rotated(secret, 0.0)

    def notice(self) -> KeyNotice:
        return KeyNotice(
            self.key.tag, self.generation, self.key.secret, self.older, tuple(sorted(self.revoked))
        )

    def merged(self, notice: KeyNotice, now_s: float) -> KeyRing:
        """With what another member, or this node's own disk, says."""
        theirs = KeyRing(
            SwarmKey(notice.secret, self.key.tag),
            notice.generation,
            notice.older,
            frozenset(notice.revoked),
        )
        later, earlier = (self, theirs) if self._rank > theirs._rank else (theirs, self)
        revoked = frozenset(sorted(self.revoked | theirs.revoked)[:REVOKED_MAX])
        ends: dict[bytes, float] = {}
        for old in (*later.older, *earlier.older):
            ends[old.secret] = min(old.until_s, ends.get(old.secret, old.until_s))
        if earlier.key.secret not in ends:
            ends[earlier.key.secret] = now_s + RIVAL_S if earlier.generation else 0.0
        ends.pop(later.key.secret, None)
        return KeyRing(later.key, later.generation, _kept(ends, later.older), revoked)

    @property
    def _rank(self) -> tuple[int, bytes]:
        return (self.generation, hashlib.blake2s(self.key.secret).digest())


def _kept(ends: dict[bytes, float], first: Iterable[OlderKey]) -> tuple[OlderKey, ...]:
    """Those that last longest; of ended ones the latest, so that nobody takes them for new."""
    order = {old.secret: place for place, old in enumerate(first)}
    ranked = sorted(ends, key=lambda s: (-ends[s], order.get(s, OLDER_MAX), s))
    return tuple(OlderKey(secret, ends[secret]) for secret in ranked[:OLDER_MAX])
