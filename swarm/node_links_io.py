"""What a node's shell reads off its links."""

from __future__ import annotations

from collections.abc import Iterator

from swarm.link.link_io import Links
from swarm.link.traffic import KINDS, TrafficCounts
from swarm.snapshot import Vitals
from swarm.terms import LinkSpeed


def vitals(links: Links | None, stalls: int, stall_s: float) -> Vitals:
    traffic = TrafficCounts() if links is None else links.traffic()
    return Vitals(
        stalls,
        stall_s,
        tuple(zip(KINDS, traffic.received, strict=True)),
        tuple(zip(KINDS, traffic.sent, strict=True)),
    )


def link_speeds(links: Links | None, unknown_goodput_bytes_s: float) -> Iterator[LinkSpeed]:
    """Of all links whose round trip is known."""
    for peer in links.peers() if links is not None else ():
        stats = links.stats(peer.node) if links is not None else None
        if stats is not None and stats.rtt_s is not None:
            goodput_bytes_s = stats.goodput_bytes_s or unknown_goodput_bytes_s
            yield LinkSpeed(peer.node, stats.rtt_s, goodput_bytes_s, peer.via is not None)
