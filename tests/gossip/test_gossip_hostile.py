"""What a member that lies, replays or is a copy of another can do: nothing that lasts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from gossip_world import World, dynamic_record, node_id_of, signer_of, static_record
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.config import GossipConfig
from swarm.effects import Send, Tell
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.gossip.gossip import GOSSIP_MESSAGES, Gossip, GossipMessage
from swarm.gossip.sealing import Version, seal
from swarm.messages import (
    Digest,
    DigestEntry,
    Heartbeat,
    ProbeAnswer,
    ProbeRequest,
    RecordKind,
    Records,
    SignedRecord,
    Summary,
    Suspicion,
    Verdict,
)
from swarm.terms import Incarnation, MemberState, NodeId

CONFIG = GossipConfig()
IDS = [node_id_of(signer_of(number).public_key) for number in range(8)]
ME, PEER = IDS[0], IDS[1]


def core(number: int = 0, incarnation: int = 5, config: GossipConfig = CONFIG) -> Gossip:
    gossip = Gossip(IDS[number], signer_of(number), config, Incarnation(incarnation), Random(1))
    gossip.publish_static(static_record(number), 0.0)
    return gossip


def linked_core(config: GossipConfig = CONFIG) -> Gossip:
    gossip = core(config=config)
    gossip.link_up(PEER, Incarnation(1), 0.0)
    gossip.take_effects()
    return gossip


def record_of(
    number: int, incarnation: int = 1, sequence: int = 1, **changes: object
) -> SignedRecord:
    content = static_record(number, **changes)
    version = Version(Incarnation(incarnation), sequence)
    return seal(signer_of(number), content, version, 1 << 16)


def notes(gossip: Gossip) -> list[str]:
    return [e.note.event for e in gossip.take_effects() if isinstance(e, Tell)]


@pytest.mark.parametrize(
    "message",
    [
        Records((replace(record_of(2), signature=bytes(64)),)),
        Records((replace(record_of(2), body=record_of(3).body),)),
        Records((replace(record_of(2), public_key=b"x"),)),
        Records((record_of(2, device="x" * CONFIG.record_body_bytes_max),)),
        Records((replace(record_of(2), incarnation=Incarnation(-1)),)),
        Heartbeat(b"short", Incarnation(1)),
        Summary(b""),
        Summary(bytes(3)),
        Summary(bytes(12)),
        Summary(bytes(4 * 512)),
        Digest((), False, buckets=bytes(31)),
        Heartbeat(bytes(8), Incarnation(0)),
        Heartbeat(bytes(8), Incarnation(1 << 62)),
        Suspicion(ME, Incarnation(5 + (1 << 30)), PEER),
        Suspicion(IDS[2], Incarnation(0), PEER),
        Verdict(ME, Incarnation(1 << 50), False),
        Verdict(IDS[2], Incarnation(-4), True),
    ],
)
def test_content_that_no_honest_peer_sends_is_a_protocol_error(message: GossipMessage) -> None:
    gossip = linked_core()
    with pytest.raises(RemoteProtocolError):
        gossip.receive(PEER, message, 1.0)
    assert gossip.member(IDS[2]) is None
    assert gossip.incarnation == 5


def test_a_body_that_does_not_decode_is_its_authors_fault() -> None:
    signer = signer_of(2)
    good = record_of(2)
    from swarm.gossip import sealing

    data = sealing._signed_bytes(
        signer, signer.public_key, good.kind, sealing.version_of(good), b"\x91\x01"
    )
    bad = replace(good, body=b"\x91\x01", signature=signer.sign(data))
    gossip = linked_core()
    gossip.receive(PEER, Records((bad,)), 1.0)
    assert notes(gossip) == ["gossip.unfit"] and gossip.member(IDS[2]) is None
    gossip.link_up(IDS[2], Incarnation(1), 2.0)
    with pytest.raises(RemoteProtocolError, match="StaticRecord"):
        gossip.receive(IDS[2], Records((bad,)), 2.1)


def test_a_replayed_old_record_is_ignored() -> None:
    gossip = linked_core()
    gossip.receive(PEER, Records((record_of(2, 2, 7, name="new"),)), 1.0)
    for old in (record_of(2, 1, 99, name="old"), record_of(2, 2, 6, name="old")):
        gossip.receive(PEER, Records((old,)), 2.0)
    member = gossip.member(IDS[2])
    assert member is not None and member.static is not None
    assert member.static.name == "new" and member.incarnation == 2


def test_messages_of_a_peer_whose_link_is_gone_are_ignored() -> None:
    gossip = linked_core()
    gossip.link_down(PEER, False, 1.0)
    gossip.receive(PEER, Records((record_of(2),)), 1.1)
    assert gossip.member(IDS[2]) is None


def test_news_about_unknown_nodes_makes_no_members() -> None:
    gossip = linked_core()
    gossip.receive(PEER, Verdict(IDS[6], Incarnation(3), False), 1.0)
    gossip.receive(PEER, Suspicion(IDS[6], Incarnation(3), PEER), 1.0)
    gossip.receive(PEER, ProbeRequest(IDS[6], 1), 1.0)
    gossip.receive(PEER, ProbeAnswer(77, True), 1.0)
    assert len(gossip.members()) == 2
    answers = [e.message for e in gossip.take_effects() if isinstance(e, Send)]
    assert answers == [ProbeAnswer(1, False)]


def test_members_are_limited_and_it_is_said_once() -> None:
    gossip = linked_core(GossipConfig(members_max=4))
    for number in range(2, 8):
        gossip.receive(PEER, Records((record_of(number),)), 1.0)
    assert len(gossip.members()) == 4
    assert notes(gossip).count("gossip.full") == 1
    gossip.link_up(IDS[7], Incarnation(1), 2.0)
    assert gossip.member(IDS[7]) is not None, "who stands at the door is let in"


def test_hearsay_of_a_departure_needs_the_leavers_own_word() -> None:
    gossip = linked_core()
    gossip.receive(PEER, Records((record_of(2), record_of(3, leaving=True))), 1.0)
    gossip.receive(PEER, Verdict(IDS[2], Incarnation(1), True), 1.1)
    gossip.receive(PEER, Verdict(IDS[3], Incarnation(1), True), 1.1)
    assert gossip.member(IDS[2]).state is MemberState.ALIVE
    assert gossip.member(IDS[3]).state is MemberState.LEFT


def test_a_liar_cannot_kill_a_node_that_we_hear() -> None:
    world = World(4)
    world.run(1)
    target, liar, victim = world.nodes[:3]
    for _ in range(20):
        verdict = Verdict(victim.node, victim.gossip.incarnation, False)
        target.gossip.receive(liar.node, verdict, world.now)
        target.settle()
        world.run(0.5)
    assert not target.ever(victim, MemberState.SUSPECT)
    assert world.agree()


def test_lies_about_ourselves_raise_our_incarnation_and_nothing_else() -> None:
    gossip = linked_core()
    for step in range(5):
        gossip.receive(PEER, Suspicion(ME, gossip.incarnation, PEER), 1.0 + step)
    assert gossip.incarnation == 10
    gossip.receive(PEER, Suspicion(ME, Incarnation(3), PEER), 7.0)
    assert gossip.incarnation == 10, "an old accusation is answered already"


def test_who_has_left_refutes_nothing() -> None:
    gossip = linked_core()
    gossip.leave(1.0)
    said = [e.message for e in gossip.take_effects() if isinstance(e, Send)]
    assert Verdict(ME, Incarnation(5), True) in said
    gossip.receive(PEER, Verdict(ME, Incarnation(5), True), 1.1)
    gossip.tick(60.0)
    gossip.link_up(IDS[2], Incarnation(1), 61.0)
    gossip.leave(62.0)
    gossip.publish_static(static_record(0, name="late"), 62.0)
    gossip.publish_dynamic(dynamic_record(), 62.0)
    assert gossip.take_effects() == []
    assert gossip.member(ME).state is MemberState.LEFT


def test_a_link_to_ourselves_is_our_bug() -> None:
    with pytest.raises(LocalProtocolError):
        core().link_up(ME, Incarnation(5), 0.0)
    with pytest.raises(LocalProtocolError):
        Gossip(IDS[1], signer_of(0), CONFIG, Incarnation(1), Random(1))


# ---------------------------------------------------------------- clones


class Wires:
    """Cores joined by wires, whatever their ids: two may carry the same."""

    def __init__(self, cores: dict[str, Gossip], wires: list[tuple[str, str]]) -> None:
        self.cores, self.wires, self.now = cores, wires, 0.0
        self.notes: dict[str, list[str]] = {name: [] for name in cores}
        for a, b in wires:
            self._up(a, b)
            self._up(b, a)

    def _up(self, here: str, there: str) -> None:
        other = self.cores[there]
        self.cores[here].link_up(self._id(there), other.incarnation, self.now)

    def _id(self, name: str) -> NodeId:
        return self.cores[name]._own.me

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            for gossip in self.cores.values():
                gossip.tick(self.now)
            for _ in range(10):
                for name in self.cores:
                    self._deliver(name)

    def _deliver(self, name: str) -> None:
        around = [b if a == name else a for a, b in self.wires if name in (a, b)]
        for effect in self.cores[name].take_effects():
            if isinstance(effect, Tell):
                self.notes[name].append(effect.note.event)
            if not isinstance(effect, Send):
                continue
            for other in around:
                if self._id(other) == effect.peer:
                    message = effect.message
                    assert isinstance(message, GOSSIP_MESSAGES)
                    self.cores[other].receive(self._id(name), message, self.now)


def test_a_copied_identity_is_reported_by_both_copies_and_does_not_race() -> None:
    cores = {"one": core(0, 5), "p": core(1), "q": core(2), "two": core(0, 5)}
    cores["two"].publish_static(static_record(0, name="copy"), 0.0)
    world = Wires(cores, [("one", "p"), ("p", "q"), ("q", "two")])
    world.run(20)
    assert "member.cloned" in world.notes["one"]
    assert "member.cloned" in world.notes["two"]
    assert cores["one"].incarnation < 40, "they outbid each other at a walking pace"


def test_two_records_of_one_version_are_told_by_everybody() -> None:
    gossip = linked_core()
    gossip.receive(PEER, Records((record_of(2, name="one"),)), 1.0)
    gossip.receive(PEER, Records((record_of(2, name="two"),)), 1.1)
    assert "member.contradicted" in notes(gossip)


def test_a_second_live_link_of_another_incarnation_is_told() -> None:
    gossip = linked_core()
    gossip.heard(PEER, 1.0)
    gossip.link_up(PEER, Incarnation(2), 1.1)
    assert "member.contradicted" in notes(gossip)


def test_an_echo_of_our_own_record_is_no_clone() -> None:
    gossip = linked_core()
    echo = Records(gossip._own.records())
    gossip.receive(PEER, echo, 1.0)
    gossip.receive(PEER, Records((record_of(0, incarnation=4, sequence=50),)), 1.0)
    assert gossip.incarnation == 5 and notes(gossip) == []


# ---------------------------------------------------------------- anything goes

node_ids = st.sampled_from(IDS)
small = st.integers(0, 9).map(Incarnation)
flags = st.booleans()
record_pool = [
    record_of(number, incarnation, sequence, leaving=leaving)
    for number in range(5)
    for incarnation in (1, 3, 6)
    for sequence in (1, 4)
    for leaving in (False, True)
]
entries = st.builds(
    DigestEntry,
    node_ids,
    st.sampled_from(RecordKind),
    small,
    st.sampled_from([1, 4, 1 << 62]),
)
any_message = st.one_of(
    st.builds(Heartbeat, st.binary(min_size=8, max_size=8), small, flags),
    st.builds(Records, st.lists(st.sampled_from(record_pool), max_size=4).map(tuple)),
    st.builds(Digest, st.lists(entries, max_size=5).map(tuple), flags),
    st.builds(
        Summary, st.sampled_from([4, 8, 64]).flatmap(lambda n: st.binary(min_size=n, max_size=n))
    ),
    st.builds(Suspicion, node_ids, small, node_ids),
    st.builds(Verdict, node_ids, small, flags),
    st.builds(ProbeRequest, node_ids, st.integers(0, 5)),
    st.builds(ProbeAnswer, st.integers(0, 20), flags),
)
peers = st.sampled_from(IDS[1:5])
facts = st.one_of(
    st.tuples(st.just("receive"), peers, any_message),
    st.tuples(st.just("link_up"), peers, small.filter(bool)),
    st.tuples(st.just("link_down"), peers, flags),
    st.tuples(st.just("probe"), node_ids),
    st.tuples(st.just("heard"), peers),
    st.tuples(st.just("loop_lag"), st.floats(0, 3)),
    st.tuples(st.just("leave")),
    st.tuples(st.just("tick")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(facts, st.floats(0, 2)), max_size=60))
def test_no_sequence_of_facts_breaks_the_core(
    steps: list[tuple[tuple[object, ...], float]],
) -> None:
    gossip = core(config=GossipConfig(tombstone_s=5.0, members_max=6))
    now = 0.0
    for (name, *arguments), pause in steps:
        now += pause
        try:
            getattr(gossip, str(name))(*arguments, now)
        except RemoteProtocolError:
            assert name == "receive"
        deadline = gossip.next_deadline()
        if deadline is not None and deadline <= now:
            gossip.tick(now)
        gossip.take_effects()
        gossip.take_changes()
        assert gossip.member(ME).state in (MemberState.ALIVE, MemberState.LEFT)
    if gossip.member(ME).state is MemberState.ALIVE:
        gossip.tick(now + 1000)
        deadline = gossip.next_deadline()
        assert deadline is not None
        gossip.take_effects()
    assert [member.node for member in gossip.members()] == sorted(
        member.node for member in gossip.members()
    )
