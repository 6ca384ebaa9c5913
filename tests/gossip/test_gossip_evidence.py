"""One core, fact by fact: what silence, stalls, links and words make it do."""

from __future__ import annotations

from random import Random

from gossip_world import node_id_of, signer_of, static_record

from swarm.config import GossipConfig
from swarm.effects import CloseLink, Dial, Effect, Send
from swarm.gossip.gossip import Gossip
from swarm.gossip.sealing import Version, seal
from swarm.messages import (
    Digest,
    DigestEntry,
    Heartbeat,
    Message,
    ProbeAnswer,
    ProbeRequest,
    RecordKind,
    Records,
    Summary,
    Suspicion,
    Verdict,
)
from swarm.terms import Incarnation, MemberState, NodeId

CONFIG = GossipConfig()
IDS = [node_id_of(signer_of(number).public_key) for number in range(5)]
ME, A, B, C, D = IDS
ONE = Incarnation(1)
ALIVE, SUSPECT, DEAD = MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD


def records_of(*numbers: int) -> Records:
    return Records(
        tuple(
            seal(signer_of(number), static_record(number), Version(ONE, 1), 1 << 16)
            for number in numbers
        )
    )


def core(*linked: int) -> Gossip:
    """A core that is linked with the given nodes since 0.0, and heard them then."""
    gossip = Gossip(ME, signer_of(0), CONFIG, ONE, Random(1))
    gossip.publish_static(static_record(0), 0.0)
    for number in linked:
        gossip.link_up(IDS[number], ONE, 0.0)
        gossip.receive(IDS[number], records_of(number), 0.0)
    gossip.tick(0.0)
    gossip.take_effects()
    return gossip


def sent(effects: list[Effect], kind: type[Message]) -> list[tuple[NodeId, Message]]:
    sends = [effect for effect in effects if isinstance(effect, Send)]
    return [(send.peer, send.message) for send in sends if isinstance(send.message, kind)]


def probes(effects: list[Effect]) -> list[NodeId]:
    return [peer for peer, m in sent(effects, Heartbeat) if isinstance(m, Heartbeat) and m.reply]


def state(gossip: Gossip, node: NodeId) -> MemberState:
    member = gossip.member(node)
    assert member is not None
    return member.state


def silence(gossip: Gossip, until: float, *others: NodeId) -> list[Effect]:
    """Run the clock in steps; `others` are heard all the time. Returns all effects."""
    effects: list[Effect] = []
    now = 0.0
    while now < until:
        now = round(now + 0.1, 6)
        for other in others:
            gossip.heard(other, now)
        gossip.tick(now)
        effects += gossip.take_effects()
    return effects


def lose(gossip: Gossip, peer: NodeId, now: float, *others: NodeId) -> list[Effect]:
    """The link to `peer` breaks off, nobody answers where it lived, and `others` lost it too."""
    gossip.link_down(peer, False, now)
    effects = gossip.take_effects()
    for helper, request in sent(effects, ProbeRequest):
        assert isinstance(request, ProbeRequest)
        if helper in others:
            gossip.receive(helper, ProbeAnswer(request.nonce, False), now + 0.001)
    gossip.dial_failed(peer, now + 0.002)
    gossip.tick(now + 0.002)
    return effects + gossip.take_effects()


def test_silence_is_probed_directly_and_through_others_then_suspected() -> None:
    gossip = core(1, 2, 3)
    effects = silence(gossip, 1.4, B, C)
    assert probes(effects) == []
    effects = silence(gossip, 1.5, B, C)
    assert probes(effects) == [A]
    assert sorted(peer for peer, _ in sent(effects, ProbeRequest)) == sorted([B, C])
    assert state(gossip, A) is ALIVE
    for peer, request in sent(effects, ProbeRequest):
        assert isinstance(request, ProbeRequest)
        gossip.receive(peer, ProbeAnswer(request.nonce, False), 1.6)
    gossip.tick(1.81)
    assert state(gossip, A) is SUSPECT
    accusations = sent(gossip.take_effects(), Suspicion)
    assert sorted(peer for peer, _ in accusations) == sorted([A, B, C])
    assert {message for _, message in accusations} == {Suspicion(A, ONE, ME)}
    assert gossip.local_health == 0, "its helpers answered: the fault is not ours"


def test_an_unanswered_probe_without_any_word_speaks_against_ourselves() -> None:
    gossip = core(1)
    silence(gossip, 2.0)
    assert state(gossip, A) is SUSPECT
    assert gossip.local_health == 1


def test_any_byte_ends_a_probe() -> None:
    gossip = core(1)
    assert probes(silence(gossip, 1.5)) == [A]
    gossip.heard(A, 1.6)
    gossip.tick(2.0)
    assert state(gossip, A) is ALIVE


def test_an_own_stall_is_nobodys_silence_and_is_made_good_at_once() -> None:
    gossip = core(1, 2)
    silence(gossip, 0.4)
    gossip.loop_lag(10.0, 10.4)
    deadline = gossip.next_deadline()
    assert deadline is not None and deadline <= 10.4
    gossip.tick(10.4)
    effects = gossip.take_effects()
    assert probes(effects) == []
    assert [peer for peer, _ in sent(effects, Heartbeat)] == sorted([A, B])
    gossip.tick(11.3)
    assert probes(gossip.take_effects()) == []
    assert gossip.local_health > 0


def test_a_suspicion_does_not_run_on_while_we_are_stalled() -> None:
    gossip = core(1)
    lose(gossip, A, 1.0)
    assert state(gossip, A) is SUSPECT
    gossip.loop_lag(60.0, 61.1)
    gossip.tick(61.1)
    assert state(gossip, A) is SUSPECT


def test_a_suspicion_told_to_nobody_ends_with_the_first_byte() -> None:
    gossip = core(1)
    effects = silence(gossip, 2.0)
    assert state(gossip, A) is SUSPECT
    assert sent(effects, Suspicion) == [], "nothing shows that we are connected ourselves"
    gossip.heard(A, 2.1)
    assert state(gossip, A) is ALIVE and gossip.take_effects() != []
    assert sent(gossip.take_effects(), Suspicion) == []


def test_a_suspect_that_is_heard_is_told_so_once_in_a_while() -> None:
    gossip = core(1, 2)
    lose(gossip, A, 1.0, B)
    gossip.link_up(A, ONE, 1.5)
    assert state(gossip, A) is SUSPECT, "others heard of it: only the subject can refute"
    gossip.take_effects()
    for step in range(10):
        gossip.heard(A, 2.1 + 0.01 * step)
    assert sent(gossip.take_effects(), Suspicion) == [(A, Suspicion(A, ONE, ME))]
    gossip.heard(A, 2.7)
    assert len(sent(gossip.take_effects(), Suspicion)) == 1
    gossip.receive(A, Heartbeat(bytes(8), Incarnation(2)), 2.8)
    assert state(gossip, A) is ALIVE


def test_a_dead_node_that_is_heard_gets_the_verdict() -> None:
    gossip = core(1)
    silence(gossip, 8.0)
    assert state(gossip, A) is DEAD
    gossip.heard(A, 8.1)
    assert sent(gossip.take_effects(), Verdict) == [(A, Verdict(A, ONE, False))]


def test_death_is_told_and_the_link_closed() -> None:
    gossip = core(1, 2)
    effects = silence(gossip, 12.0, B)
    assert state(gossip, A) is DEAD
    assert (B, Verdict(A, ONE, False)) in sent(effects, Verdict)
    assert {effect.peer for effect in effects if isinstance(effect, CloseLink)} == {A}


def test_verdicts_of_two_others_shorten_a_suspicion_that_we_share() -> None:
    gossip = core(1, 2, 3, 4)
    lose(gossip, A, 1.0, B)
    for accuser in (B, C):
        gossip.receive(accuser, Verdict(A, ONE, False), 1.1)
    gossip.tick(2.4)
    assert state(gossip, A) is SUSPECT
    gossip.tick(2.51)
    assert state(gossip, A) is DEAD


def test_a_lost_link_is_redialled_at_once() -> None:
    gossip = core(1, 2)
    gossip.link_down(A, False, 1.0)
    effects = gossip.take_effects()
    assert [e for e in effects if isinstance(e, Dial)] == [Dial(static_record(1).addresses, A)]
    ((helper, request),) = sent(effects, ProbeRequest)
    assert helper == B and isinstance(request, ProbeRequest)
    assert state(gossip, A) is ALIVE and sent(effects, Suspicion) == []
    gossip.receive(B, ProbeAnswer(request.nonce, False), 1.002)
    assert sent(gossip.take_effects(), Suspicion) == [(B, Suspicion(A, ONE, ME))]
    assert state(gossip, A) is SUSPECT, "B lost it too, and B's word shows that we are connected"


def test_a_lost_link_alone_is_no_evidence_when_a_helper_hears_the_peer() -> None:
    gossip = core(1, 2)
    gossip.link_down(A, False, 1.0)
    ((_, request),) = sent(gossip.take_effects(), ProbeRequest)
    assert isinstance(request, ProbeRequest)
    gossip.receive(B, ProbeAnswer(request.nonce, True), 1.01)
    gossip.tick(2.5)
    assert state(gossip, A) is ALIVE
    assert sent(gossip.take_effects(), Suspicion) == []


def test_who_loses_all_links_at_once_accuses_nobody() -> None:
    """A laptop that wakes: the kernel reports every link as reset within milliseconds."""
    gossip = core(1, 2, 3)
    for step, peer in enumerate((A, B, C)):
        gossip.link_down(peer, False, 1.0 + 0.001 * step)
    gossip.tick(1.1)
    effects = gossip.take_effects()
    assert {e.expected for e in effects if isinstance(e, Dial)} == {A, B, C}
    for peer in (A, B, C):
        gossip.link_up(peer, ONE, 3.0)
    gossip.tick(3.0)
    effects += gossip.take_effects()
    assert sent(effects, Suspicion) == []
    assert all(state(gossip, peer) is ALIVE for peer in (A, B, C))


def test_an_orderly_close_is_probed_without_suspicion() -> None:
    gossip = core(1, 2)
    gossip.link_down(A, True, 1.0)
    effects = gossip.take_effects()
    assert state(gossip, A) is ALIVE and sent(effects, Suspicion) == []
    assert any(isinstance(effect, Dial) for effect in effects)


def test_a_link_that_we_closed_for_its_silence_accuses_nobody() -> None:
    gossip = core(1, 2)
    effects = silence(gossip, 1.5, B)
    ((helper, request),) = sent(effects, ProbeRequest)
    assert helper == B and isinstance(request, ProbeRequest)
    gossip.receive(B, ProbeAnswer(request.nonce, True), 1.6)
    gossip.tick(1.81)
    assert CloseLink(A, "silent here, though others hear it") in gossip.take_effects()
    gossip.link_down(A, False, 1.82)
    assert state(gossip, A) is ALIVE


def test_a_soft_alarm_probes_at_once_and_only_once() -> None:
    gossip = core(1, 2)
    gossip.probe(A, 0.2)
    gossip.probe(A, 0.25)
    effects = gossip.take_effects()
    assert probes(effects) == [A] and len(sent(effects, ProbeRequest)) == 1
    gossip.heard(A, 0.3)
    gossip.probe(A, 0.4)
    assert probes(gossip.take_effects()) == [A]


def test_a_probe_heartbeat_is_answered_at_once() -> None:
    gossip = core(1)
    gossip.receive(A, Heartbeat(gossip.state_hash(), ONE, True), 0.1)
    (answer,) = sent(gossip.take_effects(), Heartbeat)
    assert answer == (A, Heartbeat(gossip.state_hash(), ONE, False))


def test_a_helper_probes_for_the_asker() -> None:
    gossip = core(1, 2)
    gossip.receive(B, ProbeRequest(A, 9), 0.1)
    assert probes(gossip.take_effects()) == [A]
    gossip.heard(A, 0.12)
    assert sent(gossip.take_effects(), ProbeAnswer) == [(B, ProbeAnswer(9, True))]
    gossip.receive(B, ProbeRequest(A, 10), 0.2)
    gossip.take_effects()
    gossip.tick(0.45)
    assert sent(gossip.take_effects(), ProbeAnswer) == [(B, ProbeAnswer(10, False))]
    gossip.receive(B, ProbeRequest(ME, 11), 0.5)
    assert sent(gossip.take_effects(), ProbeAnswer) == [(B, ProbeAnswer(11, True))]


def test_an_accusation_is_passed_on_to_its_subject_and_checked() -> None:
    gossip = core(1, 2)
    gossip.receive(B, Suspicion(A, ONE, B), 0.1)
    effects = gossip.take_effects()
    assert sent(effects, Suspicion) == [(A, Suspicion(A, ONE, B))]
    assert probes(effects) == [A]
    assert state(gossip, A) is ALIVE
    gossip.tick(0.5)
    assert state(gossip, A) is SUSPECT, "nor could we reach it"


def test_an_accusation_of_an_older_life_is_answered_with_the_records_of_this_one() -> None:
    gossip = core(1)
    newer = Records((seal(signer_of(2), static_record(2), Version(Incarnation(4), 1), 1 << 16),))
    gossip.receive(A, newer, 0.1)
    gossip.take_effects()
    gossip.receive(A, Suspicion(B, Incarnation(3), A), 0.2)
    assert sent(gossip.take_effects(), Records) == [(A, newer)]


def test_a_tombstone_of_ours_in_a_digest_is_refuted() -> None:
    gossip = core(1)
    gossip.receive(A, Digest((DigestEntry(ME, RecordKind.STATIC, ONE, 1 << 62),), False), 0.1)
    assert gossip.incarnation == 2
    assert state(gossip, ME) is ALIVE


def test_a_busy_lane_still_compares_state() -> None:
    gossip = core(1)
    beats = 0
    for step in range(1, 101):
        now = step * 0.1
        gossip.sent(A, now)
        gossip.heard(A, now)
        gossip.tick(now)
        beats += len(sent(gossip.take_effects(), Heartbeat))
    assert beats == 10, "each second"


def test_a_lasting_mismatch_pulls_with_growing_pauses_until_it_is_mended() -> None:
    gossip = core(1)
    pulls = []
    for step in range(1, 152):
        now = step * 0.1
        gossip.receive(A, Heartbeat(b"mismatch", ONE), now)
        gossip.tick(now)
        if sent(gossip.take_effects(), Summary):
            pulls.append(round(now, 1))
    assert pulls[:4] == [1.1, 3.1, 7.1, 15.1]
    gossip.receive(A, Heartbeat(gossip.state_hash(), ONE), 15.2)
    gossip.take_effects()
    gossip.receive(A, Heartbeat(b"mismatch", ONE), 16.0)
    gossip.tick(17.0)
    assert len(sent(gossip.take_effects(), Summary)) == 1
