"""The leaves of the partial mesh: buckets, rumours, and which links are wanted."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from gossip_world import dynamic_record, node_id_of, signer_of, static_record

from swarm.config import GossipConfig
from swarm.effects import Send
from swarm.errors import RemoteProtocolError
from swarm.gossip import buckets
from swarm.gossip.heartbeat import Heartbeats
from swarm.gossip.membership import Membership
from swarm.gossip.neighbours import MESH_SLACK, PATIENCE_S, Neighbours
from swarm.gossip.rumours import Rumours
from swarm.gossip.sealing import Version, content_of, seal
from swarm.gossip.spread import Spread
from swarm.gossip.store import RecordStore
from swarm.messages import (
    CONTROL_FRAME_LIMIT,
    Message,
    Records,
    SignedRecord,
    Summary,
    Suspicion,
    Verdict,
    encode,
)
from swarm.terms import Incarnation, LinkSpeed, NodeId

CONFIG = GossipConfig()
ONE = Incarnation(1)


def named(number: int) -> NodeId:
    return NodeId(f"{number:032d}")


ME = named(999)


def sealed(number: int, sequence: int = 1, *, dynamic: bool = False) -> SignedRecord:
    content = dynamic_record() if dynamic else static_record(number)
    return seal(signer_of(number), content, Version(ONE, sequence), 1 << 16)


def stored(*records: SignedRecord) -> RecordStore:
    store = RecordStore()
    for record in records:
        store.put(node_id_of(record.public_key), record, content_of(record))
    return store


# ---------------------------------------------------------------- buckets


@pytest.mark.parametrize(
    ("nodes", "count"), [(0, 1), (3, 1), (10, 2), (40, 8), (1000, 128), (9999, 256)]
)
def test_a_summary_is_as_fine_as_the_swarm_is_large(nodes: int, count: int) -> None:
    assert buckets.division(nodes) == count


def test_summaries_of_any_division_show_the_buckets_that_differ() -> None:
    here = stored(*(sealed(number) for number in range(40)))
    there = stored(*(sealed(number) for number in range(40) if number != 7), sealed(3, 2))
    odd = {buckets.bucket_of(node_id_of(signer_of(n).public_key)) for n in (3, 7)}
    for count in (1, 8, 64, 256):
        mask = buckets.differing(here.summary(count), there.summary(count))
        shown = {bucket for bucket in range(256) if buckets.holds(mask, bucket)}
        assert shown == {b for b in range(256) if b % count in {o % count for o in odd}}
    assert buckets.differing(here.summary(64), here.summary(64)) == b""


@pytest.mark.parametrize("length", [0, 3, 12, 4 * 512])
def test_a_malformed_summary_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        buckets.count_of(bytes(length))


def test_a_digest_of_some_buckets_speaks_of_no_others() -> None:
    here = stored(*(sealed(number) for number in range(30)))
    there = stored(*(sealed(number) for number in range(30) if number not in (4, 9)))
    mask = buckets.mask_of([buckets.bucket_of(node_id_of(signer_of(4).public_key))])
    (digest,) = there.digests(reply=True, mask=mask)
    assert here.compare(digest).newer == (sealed(4),)
    assert here.compare(digest).behind == b""
    (digest,) = here.digests(reply=True, mask=mask)
    assert there.compare(digest).behind == mask
    assert there.compare(digest).newer == ()


def test_comparing_a_thousand_nodes_costs_little_where_little_differs() -> None:
    record = sealed(0)
    here, there = RecordStore(), RecordStore()
    for number in range(1000):
        for store in (here, there):
            store.put(named(number), record, content_of(record))
    for number in range(5):
        there.put(named(number), sealed(0, 2), content_of(record))
    summary = Summary(there.summary())
    mask = buckets.differing(here.summary(buckets.count_of(summary.hashes)), summary.hashes)
    parts = here.digests(reply=True, mask=mask)
    frames = [sum(len(piece) for piece in encode(message)) for message in (summary, *parts)]
    assert frames[0] < 1100 and sum(frames) < 4000
    everything = [sum(len(p) for p in encode(part)) for part in here.digests(reply=False)]
    assert all(size < CONTROL_FRAME_LIMIT for size in everything)


# ---------------------------------------------------------------- rumours


class Mouth:
    """Rumours over links to peers 0 .. count - 1, and what was sent to whom."""

    def __init__(self, count: int, seed: int = 1) -> None:
        beats = Heartbeats(0.5, 3, 1.0)
        for number in range(count):
            beats.add(named(number), 0.0)
        self.spread = Spread(beats, CONFIG.records_per_message)
        self.rumours = Rumours(self.spread, CONFIG, Random(seed))
        self.now = 0.0

    def round(self) -> dict[NodeId, list[Message]]:
        self.rumours.tick(self.now)
        self.now += CONFIG.rumour_interval_s
        told: dict[NodeId, list[Message]] = {}
        for effect in self.spread.take():
            assert isinstance(effect, Send)
            told.setdefault(effect.peer, []).append(effect.message)
        return told


def test_a_rumour_goes_to_three_at_a_time_and_to_nobody_twice() -> None:
    mouth = Mouth(20)
    mouth.rumours.news("key", sealed(1), [named(4)], 40)
    rounds = list(itertools.takewhile(bool, (mouth.round() for _ in range(20))))
    told = [peer for once in rounds for peer in once]
    assert all(len(once) <= 3 for once in rounds)
    assert len(told) == len(set(told)) == 10, "six times the logarithm"
    assert named(4) not in told
    assert mouth.rumours.next_deadline() is None


def test_a_rumour_that_everybody_has_dies_at_once() -> None:
    mouth = Mouth(3)
    mouth.rumours.news("key", sealed(1), [named(0), named(1)], 100)
    mouth.rumours.held_by("key", sealed(1), named(2))
    assert mouth.round() == {} and mouth.rumours.next_deadline() is None


def test_a_newer_record_replaces_the_older_on_its_way() -> None:
    mouth = Mouth(9)
    mouth.rumours.news("key", sealed(1), [], 100)
    mouth.round()
    mouth.rumours.news("key", sealed(1, 2), [], 100)
    mouth.rumours.held_by("key", sealed(1), named(0))
    told = {peer: messages for _ in range(5) for peer, messages in mouth.round().items()}
    assert len(told) == 9
    assert all(messages == [Records((sealed(1, 2),))] for messages in told.values())


def test_figures_are_passed_on_fewer_times_than_news() -> None:
    counts = []
    for tell in (Rumours.figures, Rumours.news):
        mouth = Mouth(30)
        tell(mouth.rumours, "key", sealed(1, dynamic=True), [], 1000)
        counts.append(sum(len(mouth.round()) for _ in range(20)))
    assert counts == [5, 18]


def test_peers_of_one_round_get_one_object() -> None:
    mouth = Mouth(12)
    for number in range(5):
        mouth.rumours.news(number, sealed(number), [], 100)
    first = mouth.round()
    assert len({id(message) for messages in first.values() for message in messages}) == 1


def test_a_flood_of_rumours_is_cut_to_frames_and_records_come_before_words() -> None:
    mouth = Mouth(4)
    big = static_record(1, device="x" * 512)
    for number in range(200):
        record = seal(signer_of(1), big, Version(ONE, number + 1), 1 << 16)
        mouth.rumours.news(number, record, [], 1000)
    mouth.rumours.news("word", Suspicion(named(1), ONE, named(2)), [], 1000)
    mouth.rumours.news("left", Verdict(named(3), ONE, True), [], 1000)
    for messages in mouth.round().values():
        kinds = [type(message) for message in messages]
        assert kinds == sorted(kinds, key=lambda kind: kind is not Records)
        assert sum(len(p) for m in messages for p in encode(m)) < CONTROL_FRAME_LIMIT


# ---------------------------------------------------------------- neighbours


class Place:
    """One node's choice of links among `count` others."""

    def __init__(self, count: int, me: NodeId = ME) -> None:
        self.members = Membership(me, ONE, 600.0)
        self.beats = Heartbeats(0.5, 3, 1.0)
        self.store = RecordStore()
        self.choice = Neighbours(CONFIG, self.members, self.beats, self.store, Random(3))
        for number in range(count):
            self.members.risen(named(number), ONE, 0.0)
        self.now = 1.0
        self.choice.tick(self.now)

    def wanted(self) -> set[NodeId]:
        entries = self.members.others(*{entry.state for entry in self.members.entries()})
        return {entry.node for entry in entries if self.choice.wants(entry.node)}

    def link(self, node: NodeId, *, is_dialled: bool = True) -> None:
        self.members.set_linked(node, True)
        self.choice.link_up(node, self.now, is_dialled=is_dialled)

    def later(self, seconds: float) -> list[NodeId]:
        """Peers whose links were to be closed meanwhile; they are."""
        closed: list[NodeId] = []
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for peer in self.choice.tick(self.now):
                closed.append(peer)
                self.members.set_linked(peer, False)
                self.choice.link_down(peer, self.now, is_released=False)
        return closed


@pytest.mark.parametrize(("count", "wanted"), [(5, 5), (31, 31), (32, 16), (300, 16)])
def test_everybody_is_wanted_up_to_the_size_of_a_full_mesh(count: int, wanted: int) -> None:
    assert len(Place(count).wanted()) == wanted


def test_who_cannot_be_linked_is_replaced_and_stays_wanted() -> None:
    place = Place(100)
    first = place.wanted()
    place.later(PATIENCE_S + 1)
    assert first < place.wanted() and len(place.wanted()) == 32
    for node in place.wanted():
        place.link(node)
    place.later(1)
    assert len(place.wanted()) == 16


def test_only_the_dialler_closes_after_a_rest_and_never_below_what_is_wanted() -> None:
    place = Place(100)
    for number in range(40):
        place.link(named(number), is_dialled=number % 2 == 0)
    wanted = place.wanted()
    assert place.later(CONFIG.link_rest_s - 1) == []
    closed = place.later(2 * CONFIG.link_rest_s)
    assert closed and not wanted & set(closed)
    assert all(int(peer) % 2 == 0 for peer in closed)


def test_links_in_use_and_links_of_swarms_near_the_limit_are_not_closed() -> None:
    place = Place(100)
    for number in range(40):
        place.link(named(number))
    used = frozenset(named(number) for number in range(40))
    place.choice.keep(used, (), place.now)
    assert place.later(200) == []
    place = Place(CONFIG.full_mesh_max + MESH_SLACK - 1)
    for number in range(30):
        place.link(named(number))
    assert place.later(200) == []


def test_who_released_a_link_is_not_chosen_again_at_once() -> None:
    place = Place(100)
    node = sorted(place.wanted())[0]
    place.link(node)
    place.members.set_linked(node, False)
    place.choice.link_down(node, place.now, is_released=True)
    place.later(1)
    assert node not in place.wanted()


def test_the_nearest_are_wanted_and_told() -> None:
    place = Place(100)
    for number in range(60):
        place.link(named(number))
        place.choice.measured(named(number), 0.0004 if number < 8 else 0.020)
    place.later(1)
    assert {named(number) for number in range(8)} <= place.wanted()
    links = tuple(LinkSpeed(named(number), 0.001, 1e8) for number in range(60))
    told = place.choice.nearest(links)
    assert len(told) == CONFIG.dynamic_links_max
    assert all(int(link.peer) < 8 for link in told)


def test_noise_in_round_trips_moves_nothing() -> None:
    place = Place(100)
    for number in range(100):
        place.link(named(number))
        place.choice.measured(named(number), 0.004)
    place.later(1)
    before, rng = place.wanted(), Random(2)
    for _ in range(50):
        for number in range(100):
            place.choice.measured(named(number), 0.004 * (0.65 + 0.8 * rng.random()))
        place.later(0.5)
        assert place.wanted() == before


@pytest.mark.parametrize("seed", range(20))
def test_the_links_that_all_want_across_make_one_graph(seed: int) -> None:
    count = 33 + 9 * seed
    names = [NodeId(f"{seed}-{number}".rjust(32, "x")) for number in range(count)]
    around: dict[NodeId, set[NodeId]] = {name: set() for name in names}
    for me in names:
        members = Membership(me, ONE, 600.0)
        choice = Neighbours(
            GossipConfig(links_near=0), members, Heartbeats(0.5, 3, 1.0), RecordStore(), Random(1)
        )
        for other in names:
            if other != me:
                members.risen(other, ONE, 0.0)
        choice.tick(1.0)
        for other in names:
            if other != me and choice.wants(other):
                around[me].add(other)
                around[other].add(me)
    seen, todo = {names[0]}, [names[0]]
    while todo:
        fresh = around[todo.pop()] - seen
        seen |= fresh
        todo += sorted(fresh)
    assert len(seen) == count
    assert max(len(peers) for peers in around.values()) <= 32
