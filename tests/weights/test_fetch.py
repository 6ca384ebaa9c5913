"""Which piece is asked of whom: fast, in turn, again elsewhere, and never of a liar twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.config import MIB, WeightsConfig
from swarm.terms import NodeId
from swarm.weights.fetch import Ask, Drop, Fetch, Outcome
from swarm.weights.layout import PieceSpec

CONFIG = WeightsConfig()
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def pieces(tensors: int, each: int = 1, per_file: int = 1) -> list[PieceSpec]:
    return [
        PieceSpec(tensor, index, f"file{tensor // per_file}", 0, MIB, b"")
        for tensor in range(tensors)
        for index in range(each)
    ]


def asks(fetch: Fetch) -> list[tuple[NodeId, int]]:
    return [(o.source, o.piece) for o in fetch.take_orders() if isinstance(o, Ask)]


def all_of(count: int) -> frozenset[int]:
    return frozenset(range(count))


def test_a_source_gets_more_at_a_time_as_it_delivers() -> None:
    fetch = Fetch(pieces(40), CONFIG)
    fetch.holds(A, all_of(40), 0.0)
    assert asks(fetch) == [(A, 0), (A, 1)]
    fetch.ended(A, 0, Outcome.GOOD, 0.01)
    assert asks(fetch) == [(A, 2), (A, 3)]
    now = 0.01
    for piece in range(1, 30):
        now += 0.005
        fetch.ended(A, piece, Outcome.GOOD, now)
    fetch.take_orders()
    assert fetch.done_bytes == 30 * MIB


def test_a_slow_source_keeps_two_pieces() -> None:
    fetch = Fetch(pieces(40), CONFIG)
    fetch.holds(A, all_of(40), 0.0)
    for piece in range(8):
        fetch.ended(A, piece, Outcome.GOOD, 2.0 * (piece + 1))
    outstanding = 0
    for order in fetch.take_orders():
        outstanding += isinstance(order, Ask)
    assert outstanding - 8 <= 3


def test_what_few_hold_comes_first() -> None:
    fetch = Fetch(pieces(5), CONFIG)
    fetch.holds(A, frozenset({0, 1, 2, 3}), 0.0)
    assert asks(fetch) == [(A, 0), (A, 1)]
    fetch.holds(B, all_of(5), 0.0)
    assert asks(fetch) == [(B, 4), (B, 2)]


def test_nodes_begin_at_different_files() -> None:
    first = [Fetch(pieces(6), CONFIG, salt) for salt in (0, 2)]
    for fetch in first:
        fetch.holds(A, all_of(6), 0.0)
    assert [asks(fetch)[0][1] for fetch in first] == [0, 2]


def test_a_liar_is_never_asked_again() -> None:
    fetch = Fetch(pieces(4), CONFIG)
    fetch.holds(A, all_of(4), 0.0)
    fetch.take_orders()
    fetch.ended(A, 0, Outcome.BAD, 0.1)
    assert fetch.take_orders() == [Drop(A, 1)]
    assert fetch.liars == (A,)
    fetch.holds(A, all_of(4), 1.0)
    assert asks(fetch) == []
    fetch.holds(B, all_of(4), 2.0)
    assert sorted(piece for _, piece in asks(fetch)) == [0, 1]


def test_a_silent_source_is_rested_longer_each_time() -> None:
    fetch = Fetch(pieces(2), CONFIG)
    fetch.holds(A, all_of(2), 0.0)
    fetch.take_orders()
    fetch.progressed(A, 0, 3.0)
    silent = 3.0 + CONFIG.piece_silence_s
    assert fetch.next_deadline() == silent
    fetch.tick(silent)
    assert fetch.take_orders() == [Drop(A, 0), Drop(A, 1)]
    assert fetch.is_starved
    wakes = silent + CONFIG.source_rest_s
    assert fetch.next_deadline() == wakes
    fetch.tick(wakes)
    assert len(asks(fetch)) == 2
    fetch.tick(wakes + CONFIG.piece_silence_s)
    assert fetch.next_deadline() == wakes + CONFIG.piece_silence_s + 2 * CONFIG.source_rest_s


def test_the_last_pieces_are_asked_of_two() -> None:
    fetch = Fetch(pieces(2), CONFIG)
    fetch.holds(A, all_of(2), 0.0)
    fetch.take_orders()
    fetch.holds(B, all_of(2), 0.1)
    assert asks(fetch) == [(B, 0), (B, 1)]
    fetch.ended(B, 0, Outcome.GOOD, 0.2)
    assert Drop(A, 0) in fetch.take_orders()
    fetch.ended(A, 0, Outcome.GOOD, 0.3)
    assert fetch.done_bytes == MIB
    fetch.ended(A, 1, Outcome.GOOD, 0.4)
    assert fetch.is_done


def test_what_was_here_is_not_asked_for() -> None:
    fetch = Fetch(pieces(3), CONFIG)
    fetch.had([0, 2], 0.0)
    fetch.holds(A, all_of(3), 0.0)
    assert asks(fetch) == [(A, 1)]


def test_a_source_that_lacks_a_piece_may_have_others() -> None:
    fetch = Fetch(pieces(2, each=2), CONFIG)
    fetch.holds(A, all_of(2), 0.0)
    assert asks(fetch) == [(A, 0), (A, 1)]
    fetch.ended(A, 0, Outcome.ABSENT, 0.1)
    assert asks(fetch) == [(A, 2)]
    fetch.lost(A, 0.2)
    assert fetch.is_starved


@dataclass
class Peer:
    """A source of some kind, in virtual time."""

    kind: str
    held: frozenset[int]
    piece_s: float
    free_at: float = 0.0
    sent: list[int] = field(default_factory=list)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_everything_that_an_honest_peer_has_comes(seed: int) -> None:
    """Whatever liars, stallers, the dead and the slow do beside it; nothing false counts."""
    rng = Random(seed)
    count = rng.randrange(1, 40)
    specs = pieces(rng.randrange(1, 8), count // 4 + 1, rng.randrange(1, 4))
    tensors = max(piece.tensor for piece in specs) + 1
    config = WeightsConfig(in_flight_bytes_max=rng.choice([2, 8, 32]) * MIB)
    peers = {
        NodeId(f"n{i}"): Peer(
            rng.choice(["honest", "liar", "mute", "dying", "busy", "poor"]),
            frozenset(t for t in range(tensors) if rng.random() < 0.7),
            rng.choice([0.002, 0.05, 1.0]),
        )
        for i in range(rng.randrange(1, 6))
    }
    peers[NodeId("good")] = Peer("honest", all_of(tensors), rng.choice([0.01, 0.5]))
    fetch = Fetch(specs, config, rng.randrange(100))
    world = World(fetch, specs, peers, rng)
    world.run()
    assert fetch.is_done
    assert world.kept == set(range(len(specs)))
    assert world.in_flight_max <= config.in_flight_bytes_max
    assert not any(fetch._sources[n].is_liar for n, p in peers.items() if p.kind != "liar")


class World:
    """Carries out the orders of a fetch against its peers."""

    def __init__(
        self, fetch: Fetch, specs: list[PieceSpec], peers: dict[NodeId, Peer], rng: Random
    ) -> None:
        self.fetch, self.specs, self.peers, self.rng = fetch, specs, peers, rng
        self.kept: set[int] = set()
        self.under_way: dict[tuple[NodeId, int], float] = {}
        self.in_flight_max = 0
        self.events: list[tuple[float, int, NodeId, int]] = []
        self.asked = 0

    def run(self) -> None:
        now = 0.0
        for node, peer in self.peers.items():
            self.fetch.holds(node, peer.held, now)
        while not self.fetch.is_done:
            self.carry_out(now)
            due = self.fetch.next_deadline()
            if self.events and (due is None or self.events[0][0] <= due):
                now, _, node, piece = heappop(self.events)
                self.happens(node, piece, now)
            else:
                assert due is not None, "nothing is under way and nothing is missing a source"
                now = max(now, due)
                self.fetch.tick(now)
            assert now < 5000 and self.asked < 50 * len(self.specs) + 1000

    def carry_out(self, now: float) -> None:
        for order in self.fetch.take_orders():
            key = (order.source, order.piece)
            if isinstance(order, Drop):
                self.under_way.pop(key, None)
                continue
            self.asked += 1
            assert self.specs[order.piece].tensor in self.peers[order.source].held
            self.under_way[key] = now
            peer = self.peers[order.source]
            if peer.kind != "mute":
                peer.free_at = max(peer.free_at, now) + peer.piece_s
                heappush(self.events, (peer.free_at, self.asked, *key))
        flying = sum(self.specs[piece].byte_count for _, piece in self.under_way)
        self.in_flight_max = max(self.in_flight_max, flying)

    def happens(self, node: NodeId, piece: int, now: float) -> None:
        peer = self.peers[node]
        if self.under_way.pop((node, piece), None) is None:
            return
        peer.sent.append(piece)
        outcome = Outcome.GOOD
        if peer.kind == "liar" and self.rng.random() < 0.5:
            outcome = Outcome.BAD
        elif peer.kind == "busy" and self.rng.random() < 0.5:
            outcome = Outcome.BUSY
        elif peer.kind == "poor" and self.rng.random() < 0.5:
            outcome = Outcome.ABSENT
        elif peer.kind == "dying" and len(peer.sent) > 3:
            for key in [key for key in self.under_way if key[0] == node]:
                del self.under_way[key]
            self.fetch.lost(node, now)
            return
        if outcome is Outcome.GOOD:
            self.kept.add(piece)
        self.fetch.ended(node, piece, outcome, now)
