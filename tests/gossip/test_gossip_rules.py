"""The leaves of gossip: tables, stores, holders."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest
from gossip_world import dynamic_record, node_id_of, signer_of, static_record

from swarm.config import GossipConfig
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.gossip.health import LocalHealth
from swarm.gossip.heartbeat import AwakeTime, Heartbeats
from swarm.gossip.membership import _MOVES, Happening, Membership
from swarm.gossip.pace import DynamicPace, differs
from swarm.gossip.probes import Probes
from swarm.gossip.records import DynamicRecord
from swarm.gossip.sealing import Version, check_shape, check_signature, content_of, seal
from swarm.gossip.spread import BATCH_BYTES_MAX, batches
from swarm.gossip.store import DIGEST_NODES_MAX, TOMBSTONE_SEQUENCE, RecordStore
from swarm.gossip.suspicion import AccuserWatch, Suspicions, minimum_s, suspicion_s
from swarm.messages import (
    CONTROL_FRAME_LIMIT,
    PEER_MESSAGES,
    Digest,
    Lane,
    ProbeAnswer,
    RecordKind,
    SignedRecord,
    decode,
    encode,
)
from swarm.terms import Incarnation, LinkSpeed, MemberState, NodeId

BODY_MAX = GossipConfig().record_body_bytes_max
A, B, C, D = (NodeId(letter * 32) for letter in "abcd")


def sealed(number: int = 0, incarnation: int = 1, sequence: int = 1) -> SignedRecord:
    version = Version(Incarnation(incarnation), sequence)
    return seal(signer_of(number), static_record(number), version, BODY_MAX)


# ---------------------------------------------------------------- sealing


def test_a_sealed_record_checks_out_and_reads_back() -> None:
    record = sealed()
    check_shape(record, BODY_MAX)
    check_signature(signer_of(1), record)
    assert content_of(record) == static_record(0)
    assert node_id_of(record.public_key) == node_id_of(signer_of(0).public_key)


@pytest.mark.parametrize(
    "change",
    [
        {"incarnation": 2},
        {"sequence": 2},
        {"kind": RecordKind.DYNAMIC},
        {"body": b"\x90"},
        {"public_key": signer_of(1).public_key},
        {"signature": bytes(64)},
    ],
)
def test_any_altered_field_is_a_forgery(change: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="forged"):
        check_signature(signer_of(1), replace(sealed(), **change))  # type: ignore[arg-type]


def test_a_record_of_another_swarm_is_a_forgery_here() -> None:
    with pytest.raises(RemoteProtocolError, match="forged"):
        check_signature(signer_of(1, tag=b"another swarm"), sealed())


@pytest.mark.parametrize(
    "change",
    [
        {"public_key": b"short"},
        {"signature": b""},
        {"body": bytes(BODY_MAX + 1)},
        {"incarnation": 0},
        {"incarnation": 1 << 60},
        {"sequence": 0},
        {"sequence": TOMBSTONE_SEQUENCE},
    ],
)
def test_fields_out_of_their_limits_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        check_shape(replace(sealed(), **change), BODY_MAX)  # type: ignore[arg-type]


def test_an_own_record_too_large_to_send_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError):
        seal(signer_of(0), static_record(0, device="x" * 4000), Version(Incarnation(1), 1), 3000)


# ---------------------------------------------------------------- store


def stored(*records: SignedRecord) -> RecordStore:
    store = RecordStore()
    for record in records:
        store.put(node_id_of(record.public_key), record, content_of(record))
    return store


def test_the_hash_is_independent_of_order_and_sees_every_version() -> None:
    records = [sealed(0), sealed(1), sealed(2, sequence=9)]
    hashes = {stored(*order).state_hash() for order in itertools.permutations(records)}
    assert len(hashes) == 1 and len(hashes.pop()) == 8
    newer = stored(*records, sealed(1, sequence=2))
    assert newer.state_hash() != stored(*records).state_hash()
    straight = stored(sealed(0), sealed(1, sequence=2), sealed(2, sequence=9))
    assert newer.state_hash() == straight.state_hash()


def test_buried_nodes_leave_the_hash_and_return() -> None:
    store, node = stored(sealed(0), sealed(1)), node_id_of(signer_of(1).public_key)
    before = store.state_hash()
    store.bury(node, Incarnation(1))
    assert store.state_hash() == stored(sealed(0)).state_hash()
    assert store.static(node) is not None, "addresses are kept"
    store.unbury(node)
    assert store.state_hash() == before
    store.forget(node)
    assert store.state_hash() == stored(sealed(0)).state_hash()
    assert store.static(node) is None
    store.bury(node, Incarnation(1))
    store.put(node, sealed(1, sequence=3), static_record(1))
    store.drop_older(node, Incarnation(2))
    store.forget(node)
    assert store.state_hash() == stored(sealed(0)).state_hash()


def test_a_digest_shows_what_is_newer_where() -> None:
    here = stored(sealed(0), sealed(1, sequence=5), sealed(2))
    there = stored(sealed(0), sealed(1, sequence=4), sealed(3))
    (digest,) = there.digests(reply=False)
    assert set(here.compare(digest).newer) == {sealed(1, sequence=5), sealed(2)}
    (digest,) = here.digests(reply=False)
    assert there.compare(digest).newer == (sealed(3),)


def test_tombstones_in_digests_stop_the_old_and_not_the_new() -> None:
    node = node_id_of(signer_of(1).public_key)
    here, there = stored(sealed(0), sealed(1)), stored(sealed(0), sealed(1))
    there.bury(node, Incarnation(1))
    (digest,) = there.digests(reply=False)
    shown = here.compare(digest)
    assert shown.newer == () and [entry.node for entry in shown.buried_there] == [node]
    (digest,) = here.digests(reply=False)
    assert there.compare(digest).buried_here == (node,)
    here.put(node, sealed(1, incarnation=2), static_record(1))
    (digest,) = there.digests(reply=False)
    assert here.compare(digest).newer == (sealed(1, incarnation=2),)
    (digest,) = here.digests(reply=False)
    assert there.compare(digest).buried_here == ()


def test_a_large_digest_travels_in_parts_within_the_limits() -> None:
    store, record = RecordStore(), sealed(0)
    nodes = [NodeId(f"{number:032d}") for number in range(2 * DIGEST_NODES_MAX + 7)]
    for node in nodes:
        store.put(node, record, static_record(0))
        dynamic = replace(record, kind=RecordKind.DYNAMIC)
        store.put(node, dynamic, dynamic_record())
    parts = store.digests(reply=True)
    assert len(parts) == 3
    for part in parts:
        frame = b"".join(bytes(piece) for piece in encode(part))
        assert len(frame) < CONTROL_FRAME_LIMIT
        assert decode(frame, PEER_MESSAGES, Lane.CONTROL) == part
        assert store.compare(part).newer == ()
    empty = [RecordStore().compare(part).newer for part in parts]
    assert empty == [(), (), ()]
    nothing = Digest((), False)
    assert len(store.compare(nothing).newer) == 2 * len(nodes)
    covered = [entry for part in parts for entry in store.compare(replace(part, entries=())).newer]
    assert len(covered) == 2 * len(nodes), "each node falls into one part"


def test_batches_fit_the_wire_whatever_the_records() -> None:
    small = [sealed(0)] * 100
    assert [len(batch.records) for batch in batches(small, 32)] == [32, 32, 32, 4]
    large = [replace(sealed(0), body=bytes(BODY_MAX))] * 10
    for batch in batches(large, 32):
        assert len(b"".join(bytes(piece) for piece in encode(batch))) < CONTROL_FRAME_LIMIT
    assert sum(len(batch.records) for batch in batches(large, 32)) == 10
    assert BODY_MAX < BATCH_BYTES_MAX


# ---------------------------------------------------------------- membership


def in_state(state: MemberState) -> Membership:
    members = Membership(A, Incarnation(1), 600.0)
    members.risen(B, Incarnation(5), 0.0)
    if state in (MemberState.SUSPECT, MemberState.DEAD):
        members.accused(B, 1.0)
    if state is MemberState.DEAD:
        members.expired(B, 2.0)
    if state is MemberState.LEFT:
        members.departed(B, 2.0)
    return members


@pytest.mark.parametrize(("state", "happening"), list(itertools.product(MemberState, Happening)))
def test_every_move_of_the_table_and_no_other(state: MemberState, happening: Happening) -> None:
    members = in_state(state)
    moves = {
        Happening.RISEN: lambda: members.risen(B, Incarnation(6), 3.0),
        Happening.ACCUSED: lambda: members.accused(B, 3.0),
        Happening.EXPIRED: lambda: members.expired(B, 3.0),
        Happening.DEPARTED: lambda: members.departed(B, 3.0),
        Happening.CLEARED: lambda: members.cleared(B, 3.0),
    }
    expected = _MOVES.get((state, happening))
    if expected is None:
        with pytest.raises(LocalProtocolError):
            moves[happening]()
        return
    moves[happening]()
    entry = members.get(B)
    assert entry is not None and entry.state is expected


def test_an_incarnation_never_falls() -> None:
    members = in_state(MemberState.ALIVE)
    with pytest.raises(LocalProtocolError):
        members.risen(B, Incarnation(5), 1.0)


def test_changes_and_notes_are_taken_once() -> None:
    members = in_state(MemberState.DEAD)
    assert members.take_changes() == (A, B)
    assert members.take_changes() == ()
    events = [entry.event for entry in members.take_notes()]
    assert events == ["member.alive", "member.suspect", "member.dead"]
    assert members.take_notes() == []


def test_a_tombstone_stands_until_its_time_or_until_room_is_needed() -> None:
    members = in_state(MemberState.DEAD)
    assert members.next_deadline() == 602.0
    assert members.forget_expired(601.9) == []
    assert members.forget_expired(602.0) == [B]
    assert members.get(B) is None and len(members) == 1
    members = in_state(MemberState.LEFT)
    assert members.make_room() == B and members.make_room() is None


# ---------------------------------------------------------------- suspicion


@pytest.mark.parametrize(
    ("confirmations", "wanted", "seconds"),
    [(0, 2, 6.0), (1, 2, 3.161), (2, 2, 1.5), (9, 2, 1.5), (0, 1, 6.0), (1, 1, 1.5), (0, 0, 1.5)],
)
def test_suspicion_falls_with_the_logarithm_of_confirmations(
    confirmations: int, wanted: int, seconds: float
) -> None:
    assert suspicion_s(confirmations, wanted, 1.5, 6.0) == pytest.approx(seconds, abs=0.001)


def test_suspicion_lasts_longer_in_larger_swarms() -> None:
    assert [minimum_s(1.5, count) for count in (1, 2, 10, 100)] == [1.5, 1.5, 1.5, 3.0]


def test_only_believed_accusers_of_this_incarnation_confirm() -> None:
    suspicions = Suspicions(1.5, 4.0)
    suspicions.begin(B, Incarnation(3), 10.0, member_count=10)
    suspicions.accuse(B, C, Incarnation(3))
    suspicions.accuse(B, D, Incarnation(2))
    assert suspicions.deadline(B, 1.0, lambda _: True) == pytest.approx(13.161, abs=0.001)
    assert suspicions.deadline(B, 1.0, lambda _: False) == 16.0
    assert suspicions.deadline(B, 2.0, lambda _: False) == 22.0
    suspicions.accuse(B, D, Incarnation(3))
    assert suspicions.deadline(B, 1.0, lambda _: True) == 11.5
    suspicions.clear(B)
    assert suspicions.subjects() == [] and not suspicions.is_open(B)


def test_accusations_count_against_the_accuser_unless_shared_or_old() -> None:
    watch = AccuserWatch()

    def judged(now: float, shared: set[NodeId]) -> bool:
        return watch.is_discredited(A, 6, now, lambda node: node in shared)

    for subject, when in ((B, 1.0), (C, 1.5), (B, 1.6)):
        watch.accused(A, subject, when)
    assert not judged(2.0, set()), "two of six are a third"
    watch.accused(A, D, 2.0)
    assert judged(2.0, set())
    assert not judged(2.0, {D}), "own evidence agrees"
    assert not judged(3.7, set()), "old ones are forgiven"
    watch.forget(A)
    assert not judged(2.0, set())


# ---------------------------------------------------------------- health, heartbeats, probes


def test_local_health_rises_by_faults_and_recovers_with_time() -> None:
    health = LocalHealth(7)
    assert health.may_accuse and health.next_deadline() is None
    health.lagged(0.05, 0.0)
    assert health.score == 0
    health.lagged(0.3, 0.0)
    assert health.score == 1
    health.lagged(2.0, 0.0)
    assert health.score == 6 and health.factor == 7.0 and not health.may_accuse
    health.fault(0.0, 5)
    assert health.score == 7
    assert health.next_deadline() == 1.0
    health.tick(5.5)
    assert health.score == 2 and health.may_accuse
    health.tick(100.0)
    assert health.score == 0 and health.next_deadline() is None


def test_awake_time_stands_still_while_the_loop_does() -> None:
    awake = AwakeTime()
    assert awake.of(10.0) == 10.0
    awake.stalled(2.0)
    assert awake.of(12.5) == 10.5 and awake.real(10.5) == 12.5


def test_heartbeats_fill_silence_only() -> None:
    beats = Heartbeats(0.5, 3, 2.0)
    beats.add(A, 0.0)
    assert beats.due(0.0) == [A], "at once on a new link"
    beats.beaten(A, 0.0)
    assert beats.due(0.4) == [] and beats.next_deadline(1.0) == 0.5
    beats.sent(A, 0.4)
    assert beats.due(0.8) == [] and beats.due(0.9) == [A]
    for step in range(1, 20):
        beats.sent(A, step * 0.1)
    assert beats.due(1.9) == [] and beats.due(2.0) == [A], "a busy lane carries the hash too"
    beats.beaten(A, 2.0)
    beats.hurry(2.1)
    assert beats.due(2.1) == [A]


def test_silence_is_reported_once_and_later_when_not_well() -> None:
    beats = Heartbeats(0.5, 3, 2.0)
    beats.add(A, 0.0)
    beats.add(B, 0.0)
    beats.heard(B, 1.0)
    assert beats.silent(1.4, 1.0) == []
    assert beats.silent(1.5, 2.0) == [], "more patience with others when we lag"
    assert beats.silent(1.5, 1.0) == [A]
    assert beats.silent(1.6, 1.0) == []
    beats.heard(A, 1.7)
    assert beats.silent(3.2, 1.0) == [A, B]
    beats.remove(A)
    assert A not in beats and beats.peers == [B]


def test_a_probe_ends_by_its_time_with_what_helpers_said() -> None:
    probes = Probes()
    asked = dict(probes.begin(A, [B, C, D], 0.0, 0.3))
    assert probes.is_open(A) and probes.next_deadline() == 0.3
    probes.answered(B, ProbeAnswer(asked[B], False))
    probes.answered(C, ProbeAnswer(asked[D], True))
    probes.answered(C, ProbeAnswer(999, True))
    assert probes.ended(0.2) == []
    (ended,) = probes.ended(0.3)
    assert (ended.subject, ended.helper_count, ended.unanswered) == (A, 3, 2)
    assert not ended.is_reached, "an answer counts from the one that was asked"
    asked = dict(probes.begin(A, [B], 1.0, 0.3))
    probes.answered(B, ProbeAnswer(asked[B], True))
    assert probes.ended(1.3)[0].is_reached
    probes.begin(A, [], 2.0, 0.3)
    assert probes.close(A) and not probes.close(A)
    assert probes.ended(9.0) == []


def test_a_helper_answers_when_it_hears_or_before_the_askers_patience_ends() -> None:
    probes = Probes()
    probes.take_duty(A, B, 7, 0.0, 0.3)
    probes.take_duty(A, C, 8, 0.1, 0.3)
    assert probes.failed_duties(0.23) == []
    assert probes.failed_duties(0.24) == [(B, ProbeAnswer(7, False))]
    assert probes.fulfilled(A) == [(C, ProbeAnswer(8, True))]
    assert probes.fulfilled(A) == [] and probes.next_deadline() is None


# ---------------------------------------------------------------- pace


def linked_record(rtt_s: float, goodput: float) -> DynamicRecord:
    return DynamicRecord((), (LinkSpeed(A, rtt_s, goodput),), 0)


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        (dynamic_record(0.001), dynamic_record(0.00114), False),
        (dynamic_record(0.001), dynamic_record(0.0012), True),
        (dynamic_record(0.001), dynamic_record(0.0008), True),
        (dynamic_record(queue_s=0.0), dynamic_record(queue_s=0.0004), False),
        (dynamic_record(queue_s=0.0), dynamic_record(queue_s=0.1), True),
        (dynamic_record(), DynamicRecord((), (), 0), True),
        (dynamic_record(), replace(dynamic_record(), local_health=1), False),
        (dynamic_record(), replace(dynamic_record(), local_health=2), True),
        (linked_record(0.0002, 1e8), linked_record(0.0004, 1e8), False),
        (linked_record(0.002, 1e8), linked_record(0.004, 1e8), True),
        (linked_record(0.002, 1e8), linked_record(0.002, 5e7), True),
        (linked_record(0.002, 1e8), DynamicRecord((), (), 0), True),
    ],
)
def test_what_is_worth_a_new_dynamic_record(
    old: DynamicRecord, new: DynamicRecord, moved: bool
) -> None:
    assert differs(old, new, 0.15) is moved


def test_dynamic_records_are_paced_by_the_size_of_the_swarm() -> None:
    pace = DynamicPace(GossipConfig(), Random(1))
    assert pace.next_deadline(3) is None and pace.due(0.0, 3) is None
    pace.offer(dynamic_record(0.001))
    assert pace.due(1.0, 3) == dynamic_record(0.001)
    pace.offer(dynamic_record(0.002))
    assert pace.due(2.9, 3) is None and pace.next_deadline(3) == 3.0
    assert pace.next_deadline(100) == 11.0, "at most ten records a second in all"
    assert pace.due(3.0, 3) == dynamic_record(0.002)
    assert pace.next_deadline(3) == 33.0


def test_the_speed_of_a_model_that_is_served_from_now_on_waits_for_nothing() -> None:
    pace = DynamicPace(GossipConfig(), Random(1))
    pace.offer(DynamicRecord((), (), 0))
    assert pace.due(1.0, 100) is not None
    pace.offer(dynamic_record(0.001))
    assert pace.due(1.01, 100) == dynamic_record(0.001)
    pace.offer(DynamicRecord((), (), 0))
    assert pace.due(1.02, 100) is None, "what is gone is said by the other record"


def test_random_stores_even_out_by_digests() -> None:
    rng = Random(5)
    for _ in range(20):
        stores = [RecordStore(), RecordStore()]
        for number in range(8):
            for store in stores:
                if rng.random() < 0.7:
                    record = sealed(number, sequence=rng.randrange(1, 4))
                    store.put(node_id_of(record.public_key), record, content_of(record))
        for here, there in (stores, reversed(stores)):
            (digest,) = there.digests(reply=False)
            for record in here.compare(digest).newer:
                there.put(node_id_of(record.public_key), record, content_of(record))
        assert stores[0].state_hash() == stores[1].state_hash()
