"""How a node comes to a link: dials and ways by third nodes, side by side."""

from __future__ import annotations

import random
from collections.abc import Hashable

from swarm.config import Config
from swarm.discovery.addresses import Interest, Source
from swarm.effects import Dial, DialVia
from swarm.node_ways import Ways
from swarm.terms import Address, NodeId

CONFIG = Config()
ME, PEER, MIDDLE, OTHER = (NodeId(name) for name in ("me", "peer", "middle", "other"))
PLACE = Address("10.0.0.2", 7700)
SLOW_S = CONFIG.routing.detour_after_s


class Sight:
    def __init__(self) -> None:
        self.links: dict[NodeId, object] = {MIDDLE: None, OTHER: None}
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
    it.link_up(PEER, PLACE, None, 0.5)
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
    it.link_up(PEER, None, None, 0.1)
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
