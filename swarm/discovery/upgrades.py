"""When a relayed link is worth trying to make a WebRTC data channel of. Pure.

Of the two ends the one with the smaller id tries, so that attempts do not cross. A link that
sessions use is left alone: they would have to move. What came to nothing, or did not last, is tried
again ever more seldom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from swarm.config import LinkConfig
from swarm.terms import LinkKind, LinkSpeed, NodeId

SETTLE_S = 3.0
"""From a relayed link's coming up until it is looked at: its round trip is known by then, and a
direct dial that is under way has come to its end."""
LOOK_S = 5.0
"""Between two looks at a link that sessions use, or whose round trip is short or unknown."""
LASTING_S = 60.0
"""A channel that ends sooner counts as a failed attempt."""
_DOUBLINGS_MAX = 4
_NODES_MAX = 1024


@dataclass(slots=True)
class _Candidate:
    look_at: float | None = None
    """None while there is no relayed link."""
    failures: int = 0
    up_at: float | None = None
    """Since when it is a channel."""


class Upgrades:
    def __init__(self, me: NodeId, config: LinkConfig) -> None:
        self._me = me
        self._config = config
        self._known: dict[NodeId, _Candidate] = {}

    def linked(self, peer: NodeId, kind: LinkKind, now: float) -> None:
        if self._config.webrtc == "off" or self._me > peer:
            return
        if kind is LinkKind.DIRECT:
            self._known.pop(peer, None)
            return
        known = self._known.setdefault(peer, _Candidate())
        if kind is LinkKind.WEBRTC:
            known.look_at, known.up_at = None, now
        else:
            known.look_at = now + (self._pause_s(known) if known.failures else SETTLE_S)
        if len(self._known) > _NODES_MAX:
            del self._known[next(iter(self._known))]

    def down(self, peer: NodeId, now: float) -> None:
        known = self._known.get(peer)
        if known is None:
            return
        if known.up_at is not None:
            has_lasted = now - known.up_at >= LASTING_S
            known.failures = 0 if has_lasted else known.failures + 1
        known.look_at = known.up_at = None

    def tick(
        self, links: Mapping[NodeId, LinkSpeed | None], in_use: frozenset[NodeId], now: float
    ) -> list[NodeId]:
        """To whom a channel is to be tried now. One that comes up is told by `linked`; until then
        the attempt counts as a failed one."""
        wanted = []
        for peer, known in self._known.items():
            if known.look_at is None or now < known.look_at:
                continue
            if peer in in_use or not self._is_worth_it(links.get(peer)):
                known.look_at = now + LOOK_S
                continue
            known.look_at = now + self._pause_s(known)
            known.failures += 1
            wanted.append(peer)
        return wanted

    def next_deadline(self) -> float | None:
        return min((k.look_at for k in self._known.values() if k.look_at is not None), default=None)

    def _is_worth_it(self, speed: LinkSpeed | None) -> bool:
        if self._config.webrtc == "on":
            return True
        return speed is not None and speed.rtt_s >= self._config.webrtc_rtt_min_s

    def _pause_s(self, known: _Candidate) -> float:
        return self._config.webrtc_retry_s * math.ldexp(1.0, min(known.failures, _DOUBLINGS_MAX))
