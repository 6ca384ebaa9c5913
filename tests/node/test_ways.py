"""How a node comes to a link: dials and ways by third nodes, side by side."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Hashable

import pytest

from swarm.config import Config
from swarm.discovery.addresses import Interest, Source
from swarm.discovery.upgrades import LASTING_S, LOOK_S, SETTLE_S
from swarm.effects import Dial, DialVia, OpenChannel
from swarm.node_ways import Ways
from swarm.terms import Address, LinkKind, LinkSpeed, NodeId, Way

CONFIG = Config()
ME, PEER, MIDDLE, OTHER = (NodeId(name) for name in ("me", "peer", "middle", "other"))
PLACE = Address("10.0.0.2", 7700)
SLOW_S = CONFIG.routing.detour_after_s


class Sight:
    def __init__(self) -> None:
        self.links: dict[NodeId, LinkSpeed | None] = {MIDDLE: None, OTHER: None}
        self.relayed: dict[NodeId, NodeId] = {}

    def middles(self, peer: NodeId) -> list[NodeId]:
        return [MIDDLE, OTHER]

    def life_of(self, node: NodeId) -> Hashable:
        return "a life"


def ways(sight: Sight) -> Ways:
    """A session needs a link to `PEER`, who is being dialled for it since 0.0 s."""
    it = Ways(ME, CONFIG, sight, random.Random(1))
    it.book.stands(PEER, Interest.RESTING, 0.0)
    it.book.sighted(PEER, (PLACE,), Source.MDNS, 0.0)
    it.tick(frozenset(), 0.0)
    it.take_effects()
    assert it.reach_out([PEER], 0.0) == []
    it.take_effects()
    return it


def later(it: Ways, now: float) -> list[NodeId]:
    it.reach.tick(lambda _: "a life", now)
    return it.reach_out([], now)


def test_a_dial_without_an_answer_is_hedged_by_a_way_by_a_third_node() -> None:
    it = ways(Sight())
    assert later(it, SLOW_S - 0.01) == []
    assert it.take_effects() == []
    assert later(it, SLOW_S) == []
    assert it.take_effects() == [DialVia(PEER, MIDDLE)]


def test_one_that_was_answered_is_not() -> None:
    sight = Sight()
    it = ways(sight)
    sight.links[PEER] = None
    it.link_up(PEER, PLACE, Way(), 0.5)
    it.reach.link_up(PEER)
    assert later(it, SLOW_S) == []
    assert it.take_effects() == []


def test_ways_that_come_to_nothing_are_no_verdict_while_the_dial_may_be_answered() -> None:
    it = ways(Sight())
    later(it, SLOW_S)
    assert it.relay_failed(PEER, MIDDLE, SLOW_S + 0.01) is None
    assert it.take_effects() == [DialVia(PEER, MIDDLE), DialVia(PEER, OTHER)]
    assert it.relay_failed(PEER, OTHER, SLOW_S + 0.02) is None
    assert it.take_effects() == []
    assert it.dial_failed((PLACE,), PEER, SLOW_S + 0.1) is None, "they are asked once more"
    assert it.take_effects() == [DialVia(PEER, MIDDLE)]
    assert it.relay_failed(PEER, MIDDLE, SLOW_S + 0.11) is None
    assert it.relay_failed(PEER, OTHER, SLOW_S + 0.12) == PEER


def test_a_failed_dial_says_nothing_of_a_peer_whose_own_dial_came_through() -> None:
    sight = Sight()
    it = ways(sight)
    sight.links[PEER] = None
    it.link_up(PEER, None, Way(), 0.1)
    it.reach.link_up(PEER)
    assert it.dial_failed((PLACE,), PEER, 0.2) is None
    assert it.take_effects() == []


def test_the_dial_is_the_one_that_is_under_way() -> None:
    it = Ways(ME, CONFIG, Sight(), random.Random(1))
    it.book.stands(PEER, Interest.RESTING, 0.0)
    it.book.sighted(PEER, (PLACE,), Source.MDNS, 0.0)
    it.reach_out([PEER], 0.0)
    assert it.take_effects() == [Dial((PLACE,), PEER)]
    it.reach_out([PEER], 0.1)
    assert it.take_effects() == []


# ---------------------------------------------------------------- from relayed to a channel

RELAYED, CHANNEL = Way(LinkKind.RELAYED, MIDDLE), Way(LinkKind.WEBRTC, MIDDLE)
NEAR, FAR = NodeId("a"), NodeId("z")
"""Of ids smaller and larger than `me`, who is the one to try with `FAR` alone."""


def upgrading(webrtc: str = "auto", peer: NodeId = FAR, rtt_s: float | None = 0.01) -> Ways:
    """`peer` has been linked by way of `MIDDLE` since 0.0 s."""
    sight = Sight()
    sight.links[peer] = None if rtt_s is None else LinkSpeed(peer, rtt_s, 1e7, relayed=True)
    sight.relayed[peer] = MIDDLE
    config = dataclasses.replace(CONFIG, link=dataclasses.replace(CONFIG.link, webrtc=webrtc))
    it = Ways(NodeId("me"), config, sight, random.Random(1))
    it.link_up(peer, None, RELAYED, 0.0)
    return it


def tried(it: Ways, now: float, in_use: frozenset[NodeId] = frozenset()) -> list[NodeId]:
    it.tick(in_use, now)
    return [e.peer for e in it.take_effects() if isinstance(e, OpenChannel)]


@pytest.mark.parametrize(
    ("webrtc", "peer", "rtt_s", "expected"),
    [
        ("auto", FAR, 0.01, [FAR]),
        ("auto", NEAR, 0.01, []),
        ("auto", FAR, 0.0005, []),
        ("auto", FAR, None, []),
        ("on", FAR, 0.0005, [FAR]),
        ("on", FAR, None, [FAR]),
        ("off", FAR, 0.01, []),
    ],
)
def test_which_relayed_links_are_tried_as_channels(
    webrtc: str, peer: NodeId, rtt_s: float | None, expected: list[NodeId]
) -> None:
    it = upgrading(webrtc, peer, rtt_s)
    assert tried(it, SETTLE_S - 0.1) == []
    assert tried(it, SETTLE_S) == expected


def test_a_relayed_link_in_use_is_left_alone_until_it_rests() -> None:
    it = upgrading()
    used = frozenset({FAR})
    assert tried(it, SETTLE_S, used) == tried(it, SETTLE_S + LOOK_S, used) == []
    assert it.next_deadline() is not None
    assert tried(it, SETTLE_S + 2 * LOOK_S) == [FAR]


def test_attempts_that_come_to_nothing_become_rare() -> None:
    it = upgrading()
    moments = [now for now in range(3000) if tried(it, float(now))]
    gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
    retry_s = CONFIG.link.webrtc_retry_s
    assert gaps == [retry_s * factor for factor in (1, 2, 4, 8, 16, 16)]


@pytest.mark.parametrize(("lasted_s", "wait_s"), [(LASTING_S, SETTLE_S), (LASTING_S - 1, 240.0)])
def test_a_channel_that_lasted_is_tried_anew_soon(lasted_s: float, wait_s: float) -> None:
    """Its end is no different from that of a relayed link: another way is sought at once."""
    it = upgrading()
    assert tried(it, SETTLE_S) == [FAR]
    it.link_down(FAR, orderly=True, now=4.0)
    it.link_up(FAR, None, CHANNEL, 4.0)
    assert tried(it, 1000.0) == []
    ended = 4.0 + lasted_s
    it.link_down(FAR, orderly=False, now=ended)
    assert DialVia(FAR, MIDDLE) in it.take_effects()
    it.link_up(FAR, None, RELAYED, ended)
    assert tried(it, ended + wait_s - 0.1) == []
    assert tried(it, ended + wait_s) == [FAR]


def test_a_direct_link_needs_no_channel() -> None:
    it = upgrading()
    it.link_down(FAR, orderly=True, now=1.0)
    it.link_up(FAR, PLACE, Way(), 1.0)
    assert tried(it, 100.0) == []
