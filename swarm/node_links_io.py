"""What a node's shell reads off its links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from swarm.effects import CloseLink, Dial, DialVia, OpenChannel
from swarm.link.link_io import Links
from swarm.link.traffic import KINDS, TrafficCounts
from swarm.snapshot import Vitals
from swarm.terms import LinkKind, LinkSpeed


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
            is_relayed, is_channel = (peer.kind is k for k in (LinkKind.RELAYED, LinkKind.WEBRTC))
            yield LinkSpeed(peer.node, stats.rtt_s, goodput_bytes_s, is_relayed, is_channel)


def order(links: Links | None, effect: Dial | DialVia | OpenChannel | CloseLink) -> None:
    if links is None:
        return
    match effect:
        case Dial(addresses, expected):
            links.dial(addresses, expected)
        case DialVia(peer, via):
            links.dial_via(peer, via)
        case OpenChannel(peer):
            links.open_channel(peer)
        case CloseLink(peer, reason):
            links.close(peer, reason)
        case _:
            assert_never(effect)
