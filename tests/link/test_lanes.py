"""The link table by facts and orders, and two tables against each other in every order of news."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest

from swarm.link.dial_round import DialRound
from swarm.link.handshake import Established
from swarm.link.lanes import (
    CloseConnection,
    LinkDown,
    LinkTable,
    LinkUp,
    OpenDataLane,
    TableEffect,
    TableLimits,
)
from swarm.link.link_io import ALREADY_LINKED, SELF_DIALLED, Peer
from swarm.link.noise import Cipher
from swarm.messages import Lane
from swarm.terms import Address, Incarnation, NodeId

SMALL, LARGE = NodeId("a" * 32), NodeId("b" * 32)
YOUNG_S = 3.0
HERE = Address("10.0.0.1", 7000)


def table(own: NodeId, links_max: int = 10) -> LinkTable:
    return LinkTable(own, TableLimits(links_max, YOUNG_S))


def found(node: NodeId, lane: Lane, binding: bytes, incarnation: int = 1) -> Established:
    return Established(
        node, b"", Incarnation(incarnation), 7000, 1, lane, binding, Cipher.AES_GCM, b"", b"", False
    )


def peer(node: NodeId, dialled: bool, incarnation: int = 1) -> Peer:
    return Peer(node, b"", Incarnation(incarnation), HERE, 1, dialled)


def bring_up(
    links: LinkTable, node: NodeId, numbers: tuple[int, int], *, dialled: bool, now: float = 0.0
) -> list[TableEffect]:
    """A link that nothing disturbs."""
    binding = bytes([numbers[0]]) * 32
    links.control_ready(numbers[0], peer(node, dialled), binding, now)
    shown = found(node, Lane.DATA, binding)
    effects = links.data_ready(numbers[1], shown, dialled=dialled, now=now)
    return effects or links.heard(numbers[0], now)


@pytest.mark.parametrize("dialled", [True, False])
def test_the_smaller_id_settles_and_speaks(dialled: bool) -> None:
    links = table(SMALL)
    effects = bring_up(links, LARGE, (1, 2), dialled=dialled)
    assert effects == [LinkUp(peer(LARGE, dialled), 1, 2, speak=True)]
    assert links.connections(LARGE) == (1, 2)
    assert links.peers() == (peer(LARGE, dialled),)


@pytest.mark.parametrize("frame_first", [True, False])
def test_the_larger_id_waits_to_be_spoken_to(frame_first: bool) -> None:
    links = table(LARGE)
    assert links.control_ready(1, peer(SMALL, True), b"x", 0.0) == [OpenDataLane(1, b"x")]
    data = found(SMALL, Lane.DATA, b"x")
    if frame_first:
        assert links.heard(1, 0.0) == []
        effects = links.data_ready(2, data, dialled=True, now=0.0)
    else:
        assert links.data_ready(2, data, dialled=True, now=0.0) == []
        assert links.peers() == ()
        effects = links.heard(2, 0.0)
    assert effects == [LinkUp(peer(SMALL, True), 1, 2, speak=False)]
    assert links.heard(1, 0.0) == []


def test_a_data_lane_may_overtake_its_control_lane() -> None:
    links = table(SMALL)
    data = found(LARGE, Lane.DATA, b"x")
    assert links.objection(data, dialled=False, now=0.0) is None
    assert links.data_ready(2, data, dialled=False, now=0.0) == []
    assert links.control_ready(8, peer(LARGE, False), b"another", 0.0) == []
    up = LinkUp(peer(LARGE, False), 1, 2, speak=True)
    assert links.control_ready(1, peer(LARGE, False), b"x", 0.0)[0] == up


@pytest.mark.parametrize("lost", [1, 2])
def test_either_lane_takes_the_link_with_it(lost: int) -> None:
    links = table(SMALL)
    bring_up(links, LARGE, (1, 2), dialled=True)
    assert links.lost(lost, "reset", False) == [
        CloseConnection(3 - lost, "reset", tell=False),
        LinkDown(LARGE, "reset", False),
    ]
    assert links.lost(3 - lost, "again", False) == []
    assert links.connections(LARGE) is None


def test_closing_says_goodbye_on_both_lanes() -> None:
    links = table(SMALL)
    bring_up(links, LARGE, (1, 2), dialled=True)
    assert links.close(LARGE, "leaving") == [
        CloseConnection(1, "leaving", tell=True),
        CloseConnection(2, "leaving", tell=True),
        LinkDown(LARGE, "leaving", True),
    ]
    assert links.close(LARGE, "leaving") == []


@pytest.mark.parametrize("own", [SMALL, LARGE])
@pytest.mark.parametrize("dialled", [True, False])
def test_a_higher_incarnation_replaces_at_once(own: NodeId, dialled: bool) -> None:
    other = LARGE if own == SMALL else SMALL
    links = table(own)
    bring_up(links, other, (1, 2), dialled=True)
    again = found(other, Lane.CONTROL, b"y", incarnation=2)
    assert links.objection(again, dialled=dialled, now=0.1) is None
    links.control_ready(3, peer(other, dialled, 2), b"y", 0.1)
    shown = found(other, Lane.DATA, b"y", incarnation=2)
    effects = links.data_ready(4, shown, dialled=dialled, now=0.1) or links.heard(3, 0.1)
    cause = "replaced by incarnation 2"
    assert effects[:4] == [
        CloseConnection(1, cause, tell=False),
        CloseConnection(2, cause, tell=False),
        LinkDown(other, cause, False),
        LinkUp(peer(other, dialled, 2), 3, 4, speak=own == SMALL),
    ]
    older = found(other, Lane.CONTROL, b"z", incarnation=1)
    assert links.objection(older, dialled=False, now=99.0) == ALREADY_LINKED


def test_a_node_that_dials_again_in_one_life_has_lost_its_link() -> None:
    """Unless the link is so young that the dial may have been under way before it."""
    links = table(SMALL)
    bring_up(links, LARGE, (1, 2), dialled=True, now=10.0)
    again = found(LARGE, Lane.CONTROL, b"y")
    assert links.objection(again, dialled=False, now=10.0 + YOUNG_S) == ALREADY_LINKED
    assert links.objection(again, dialled=False, now=10.1 + YOUNG_S) is None
    assert links.objection(again, dialled=True, now=99.0) == ALREADY_LINKED


def test_what_is_refused() -> None:
    links = table(SMALL, links_max=1)
    assert links.objection(found(SMALL, Lane.CONTROL, b"x"), dialled=True, now=0) == SELF_DIALLED
    data = found(LARGE, Lane.DATA, b"x")
    lonely = "a data lane without its control lane"
    assert links.objection(data, dialled=True, now=0) == lonely
    assert links.objection(data, dialled=False, now=0) is None
    links.data_ready(7, data, dialled=False, now=0)
    assert links.objection(data, dialled=False, now=0) == lonely
    assert links.lost(7, "too late", False) == []
    links.control_ready(1, peer(LARGE, True), b"x", 0.0)
    again = found(LARGE, Lane.CONTROL, b"y")
    assert links.objection(again, dialled=True, now=0) == ALREADY_LINKED
    third = found(NodeId("c" * 32), Lane.CONTROL, b"z")
    assert "1 links" in str(links.objection(third, dialled=False, now=0))


@dataclass
class _End:
    """One node of the modelled pair: a table, and what it was told."""

    links: LinkTable
    incarnation: int
    ups: list[int] = field(default_factory=list)
    downs: list[str] = field(default_factory=list)


class _Network:
    """Two tables; news travels in order per connection and in any order between connections."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ends = {SMALL: _End(table(SMALL), 1), LARGE: _End(table(LARGE), 1)}
        self.queues: dict[tuple[int, NodeId], deque[str]] = defaultdict(deque)
        self.data_of: dict[int, int] = {}
        self.dialler_of: dict[int, NodeId] = {}
        self.closed: set[tuple[int, NodeId]] = set()
        self.numbers = iter(range(1, 10_000))
        self.now = 0.0

    def dial(self, own: NodeId) -> None:
        number = next(self.numbers)
        self.dialler_of[number] = own
        self.queues[number, own].append("answer")

    def run(self) -> None:
        while waiting := sorted(key for key, queue in self.queues.items() if queue):
            self.step(*self.rng.choice(waiting))

    def step(self, number: int, own: NodeId) -> None:
        news = self.queues[number, own].popleft()
        if (number, own) in self.closed:
            return
        end, other = self.ends[own], self.other(own)
        if news == "closed":
            self.closed.add((number, own))
            self.carry_out(own, end.links.lost(number, "closed", False))
        elif news == "frame":
            self.carry_out(own, end.links.heard(number, self.now))
        else:
            self.authenticated(number, own, dialled=news == "answer", other=other)

    def authenticated(self, number: int, own: NodeId, *, dialled: bool, other: NodeId) -> None:
        end = self.ends[own]
        control = next((c for c, d in self.data_of.items() if d == number), None)
        lane = Lane.CONTROL if control is None else Lane.DATA
        binding = str(control or number).encode()
        shown = found(other, lane, binding, self.ends[other].incarnation)
        if end.links.objection(shown, dialled=dialled, now=self.now) is not None:
            self.close(number, own)
            return
        if dialled:
            self.queues[number, other].append("proof")
        if lane is Lane.CONTROL:
            who = peer(other, dialled, shown.incarnation)
            self.carry_out(own, end.links.control_ready(number, who, binding, self.now))
        else:
            effects = end.links.data_ready(number, shown, dialled=dialled, now=self.now)
            self.carry_out(own, effects)

    def carry_out(self, own: NodeId, effects: list[TableEffect]) -> None:
        for effect in effects:
            match effect:
                case OpenDataLane(control):
                    number = next(self.numbers)
                    self.data_of[control] = number
                    self.queues[number, own].append("answer")
                case CloseConnection(number):
                    self.close(number, own)
                case LinkUp(control=control, speak=speak):
                    self.ends[own].ups.append(control)
                    if speak:
                        self.queues[control, self.other(own)].append("frame")
                case LinkDown(cause=cause):
                    self.ends[own].downs.append(cause)

    def close(self, number: int, own: NodeId) -> None:
        if (number, own) not in self.closed:
            self.closed.add((number, own))
            self.queues[number, self.other(own)].append("closed")

    def other(self, own: NodeId) -> NodeId:
        return LARGE if own == SMALL else SMALL


@pytest.mark.parametrize("dials", ["ab", "ba", "abab", "aabb", "a", "b", "aabbab"])
def test_crossing_dials_always_end_in_one_link_and_never_flap(dials: str) -> None:
    for seed in range(300):
        network = _Network(seed)
        for who in dials:
            network.dial(NodeId(who * 32))
            for _ in range(network.rng.randrange(4)):
                waiting = sorted(key for key, queue in network.queues.items() if queue)
                if waiting:
                    network.step(*network.rng.choice(waiting))
        network.run()
        small, large = network.ends[SMALL], network.ends[LARGE]
        assert small.downs == large.downs == [], seed
        assert len(small.ups) == 1, seed
        assert small.ups == large.ups, seed
        assert small.links.connections(LARGE) == large.links.connections(SMALL), seed


@pytest.mark.parametrize("restarted", [SMALL, LARGE])
@pytest.mark.parametrize("dials", ["ab", "ba", "a", "b"])
def test_a_restart_always_ends_linked_to_the_new_life(restarted: NodeId, dials: str) -> None:
    for seed in range(200):
        network = _Network(seed)
        network.dial(SMALL)
        network.run()
        # The old process is gone without a word: nothing closes its connections.
        end = network.ends[restarted]
        end.links, end.incarnation, end.ups = table(restarted), 2, []
        for who in dials:
            network.dial(NodeId(who * 32))
        network.run()
        small, large = network.ends[SMALL], network.ends[LARGE]
        assert small.links.connections(LARGE) == large.links.connections(SMALL), seed
        assert small.links.connections(LARGE) is not None, seed
        stayed = network.ends[network.other(restarted)]
        assert stayed.links.peers()[0].incarnation == 2
        assert stayed.downs == ["replaced by incarnation 2"]


A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))


def test_a_round_takes_the_first_and_fails_when_all_failed() -> None:
    round_ = DialRound.start((A, B), None)
    assert not round_.failed(A, "refused")
    assert round_.failed(B, "no answer in time")
    assert round_.reason == "10.0.0.1:1: refused; 10.0.0.1:2: no answer in time"
    assert not round_.failed(B, "twice")


def test_a_round_that_has_chosen_drops_the_slower() -> None:
    round_ = DialRound.start((A, B, C), LARGE)
    assert not round_.failed(C, "refused")
    assert round_.reached(B)
    assert not round_.reached(A)
    assert not round_.failed(A, "another address answered first")
    round_.linked(B)
    assert not round_.failed(B, "the link went down later")


def test_a_chosen_address_that_fails_before_the_link_is_up_ends_the_round() -> None:
    round_ = DialRound.start((A, B), None)
    assert round_.reached(A)
    assert round_.failed(A, "its data lane was refused")


def test_who_is_a_stranger_to_a_round() -> None:
    assert DialRound.start((A,), LARGE).is_stranger(SMALL)
    assert not DialRound.start((A,), LARGE).is_stranger(LARGE)
    assert not DialRound.start((A,), None).is_stranger(SMALL)
