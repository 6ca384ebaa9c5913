"""Who can be reached: links, silence, probes, suspicions and verdicts. All times are awake time.

Only own evidence makes a suspect here; what others say makes this node probe, and counts as a
confirmation. Only the suspect refutes, with a higher incarnation.
"""

from __future__ import annotations

from swarm.effects import CloseLink, Dial
from swarm.errors import RemoteProtocolError
from swarm.gossip.membership import ALIVE, DEAD, LEFT, SUSPECT, Entry
from swarm.gossip.parts import Parts
from swarm.gossip.probes import EndedProbe, Probes
from swarm.gossip.sealing import check_incarnation
from swarm.gossip.seldom import Seldom
from swarm.gossip.suspicion import AccuserWatch, Suspicions
from swarm.messages import ProbeAnswer, ProbeRequest, Suspicion, Verdict
from swarm.notes import Level, note
from swarm.terms import Incarnation, NodeId, short

DIAL_PATIENCE = 4.0
"""A probe that must dial first takes this many times the timeout of one over a link."""
DIAL_ADDRESSES_MAX = 8
"""Of one record, the first: nobody makes this node knock at every door that a record lists."""
HELPER_FRESH_BEATS = 2.0
"""Only peers heard within this many heartbeat intervals are asked to help."""


class Judge:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = parts.config
        self._members = parts.membership
        self._spread = parts.spread
        self._suspicions = Suspicions(
            parts.config.suspicion_min_s, parts.config.suspicion_max_factor
        )
        self._probes = Probes()
        self._watch = AccuserWatch()
        self._told_at: dict[NodeId, float] = {}
        self._closing: set[NodeId] = set()
        self._clones = Seldom()
        self._discredited = Seldom()

    # ------------------------------------------------------------ links and life

    def link_up(self, peer: NodeId, incarnation: Incarnation, now: float) -> None:
        entry = self._members.get(peer)
        if entry and entry.linked and incarnation != entry.incarnation:
            self._check_clone(entry, now)
        self._parts.heartbeats.add(peer, now)
        if entry is None or incarnation > entry.incarnation:
            entry = self.risen(peer, incarnation, now)
        self._members.set_linked(peer, True)
        self._closing.discard(peer)
        self._told_at.pop(peer, None)
        self.heard(peer, now)
        if entry.state is LEFT and incarnation <= entry.incarnation:
            self._spread.send(peer, entry.verdict(), now)

    def link_down(self, peer: NodeId, orderly: bool, now: float) -> None:
        self._parts.heartbeats.remove(peer)
        entry = self._members.get(peer)
        if entry is None or not entry.linked:
            return
        self._members.set_linked(peer, False)
        closed_here = peer in self._closing
        self._closing.discard(peer)
        if entry.is_buried or self._parts.own.has_left:
            return
        if orderly and self._said_leaving(entry):
            self._depart(entry, now)
            return
        if not orderly and not closed_here:
            self._accuse(entry, now)
        self._probes.close(peer)
        self.probe(peer, now)

    def heard(self, peer: NodeId, now: float) -> None:
        """Bytes came from the peer over its link."""
        self._parts.heartbeats.heard(peer, now)
        entry = self._members.get(peer)
        if entry is None:
            return
        entry.proof_at = now
        self._probes.close(peer)
        for asker, answer in self._probes.fulfilled(peer):
            self._spread.send(asker, answer, now)
        if entry.state in (SUSPECT, DEAD):
            self._tell_subject(entry, now)

    def risen(self, node: NodeId, incarnation: Incarnation, now: float) -> Entry:
        """The node itself claims a first or a higher incarnation: old verdicts are void."""
        entry = self._members.risen(node, incarnation, now)
        self._parts.store.unbury(node)
        self._parts.store.drop_older(node, incarnation)
        self._suspicions.clear(node)
        self._probes.close(node)
        return entry

    def forget(self, node: NodeId) -> None:
        self._parts.store.forget(node)
        self._suspicions.clear(node)
        self._probes.close(node)
        self._watch.forget(node)
        self._told_at.pop(node, None)

    def cloned(self, node: NodeId, now: float) -> None:
        """Two copies of `node` are at work. Told seldom, however often it shows."""
        if self._clones.allows(node, now):
            self._spread.tell(note("member.cloned", Level.WARNING, node=short(node), is_self=False))

    # ------------------------------------------------------------ what others say

    def suspicion_received(self, peer: NodeId, message: Suspicion, now: float) -> None:
        check_incarnation(message.incarnation)
        if message.accuser != peer and message.subject != self._members.me:
            raise RemoteProtocolError("a suspicion in somebody else's name")
        self.claimed(peer, message.subject, message.incarnation, now)

    def verdict_received(self, peer: NodeId, message: Verdict, now: float) -> None:
        check_incarnation(message.incarnation)
        entry = self._members.get(message.subject)
        if entry is None:
            return
        if message.subject == peer:
            self._self_verdict(entry, message, now)
        elif (
            message.left
            and message.subject != self._members.me
            and self._may_depart(entry, message.incarnation)
        ):
            self._depart(entry, now)
        else:
            self.claimed(peer, message.subject, message.incarnation, now)

    def claimed(self, peer: NodeId, subject: NodeId, incarnation: Incarnation, now: float) -> None:
        """`peer` holds `subject` for suspect or dead: probe it, and let the subject know."""
        if subject == self._members.me:
            self._refute(incarnation, now)
            return
        entry = self._members.get(subject)
        if entry is None or subject == peer:
            return
        if incarnation < entry.incarnation:
            self._answer_stale(peer, entry, now)
            return
        if entry.is_buried:
            return
        self._watch.accused(peer, subject, now)
        self._suspicions.accuse(subject, peer, incarnation)
        if entry.state is SUSPECT:
            return
        if self._is_discredited(peer, now):
            if self._discredited.allows(peer, now):
                self._spread.tell(note("member.discredited", Level.WARNING, node=short(peer)))
            self.probe(peer, now)
            return
        self._spread.send(subject, Suspicion(subject, incarnation, peer), now)
        self.probe(subject, now)

    def probe_request(self, peer: NodeId, message: ProbeRequest, now: float) -> None:
        entry = self._members.get(message.subject)
        if message.subject == self._members.me:
            self._spread.send(peer, ProbeAnswer(message.nonce, True), now)
        elif entry is None or not entry.linked:
            self._spread.send(peer, ProbeAnswer(message.nonce, False), now)
        else:
            timeout_s = self._config.probe_timeout_s
            self._probes.take_duty(message.subject, peer, message.nonce, now, timeout_s)
            self._spread.send(message.subject, self._parts.own.heartbeat(reply=True), now)

    def probe_answer(self, peer: NodeId, message: ProbeAnswer) -> None:
        self._probes.answered(peer, message)

    # ------------------------------------------------------------ own evidence

    def probe(self, subject: NodeId, now: float) -> None:
        """Find out now, directly and through helpers, whether `subject` can be reached."""
        entry = self._members.get(subject)
        if entry is None or entry.is_buried or subject == self._members.me:
            return
        if self._probes.is_open(subject):
            return
        timeout_s = self._config.probe_timeout_s * self._parts.health.factor
        if entry.linked:
            self._spread.send(subject, self._parts.own.heartbeat(reply=True), now)
        else:
            timeout_s *= DIAL_PATIENCE
            self._dial(subject)
        helpers = self._helpers(subject, now)
        for helper, nonce in self._probes.begin(subject, helpers, now, timeout_s):
            self._spread.send(helper, ProbeRequest(subject, nonce), now)

    def tick(self, now: float) -> None:
        for peer in self._parts.heartbeats.silent(now, self._parts.health.factor):
            self._silent(peer, now)
        for ended in self._probes.ended(now):
            self._probe_ended(ended, now)
        for asker, answer in self._probes.failed_duties(now):
            self._spread.send(asker, answer, now)
        for subject in self._suspicions.subjects():
            if now >= self._death_at(subject, now):
                self._die(subject, now)
        for entry in self._members.others(ALIVE):
            if not entry.linked and now >= entry.proof_at + self._config.unlinked_probe_s:
                self.probe(entry.node, now)
        for node in self._members.forget_expired(now):
            self.forget(node)

    def next_deadline(self, now: float) -> float | None:
        times = [self._death_at(subject, now) for subject in self._suspicions.subjects()]
        times += [
            entry.proof_at + self._config.unlinked_probe_s
            for entry in self._members.others(ALIVE)
            if not entry.linked and not self._probes.is_open(entry.node)
        ]
        others = (self._probes.next_deadline(), self._members.next_deadline())
        return min([*times, *(t for t in others if t is not None)], default=None)

    # ------------------------------------------------------------ inner moves

    def _silent(self, peer: NodeId, now: float) -> None:
        entry = self._members.get(peer)
        if entry and entry.is_buried:
            self._close(peer, "silent after its end")
        else:
            self.probe(peer, now)

    def _probe_ended(self, ended: EndedProbe, now: float) -> None:
        entry = self._members.get(ended.subject)
        if entry is None or entry.is_buried:
            return
        if ended.is_reached:
            entry.proof_at = now
            limit_s = self._config.heartbeat_interval_s * self._config.heartbeat_missed_max
            if entry.linked and self._parts.heartbeats.silence_s(entry.node, now) >= limit_s:
                self._close(entry.node, "silent here, though others hear it")
            return
        if entry.linked and (ended.helper_count == 0 or ended.unanswered):
            self._parts.health.fault(now)
        self._accuse(entry, now)

    def _accuse(self, entry: Entry, now: float) -> None:
        if entry.state is not ALIVE:
            return
        count = len(self._members.others(ALIVE)) + 1
        self._members.accused(entry.node, now)
        self._suspicions.begin(entry.node, entry.incarnation, now, member_count=count)
        if self._parts.health.may_accuse:
            accusation = Suspicion(entry.node, entry.incarnation, self._members.me)
            self._spread.push(accusation, now)

    def _die(self, subject: NodeId, now: float) -> None:
        entry = self._members.get(subject)
        self._suspicions.clear(subject)
        self._probes.close(subject)
        if entry is None:
            return
        self._members.expired(subject, now)
        self._parts.store.bury(subject, entry.incarnation)
        self._spread.push(Verdict(subject, entry.incarnation, False), now)
        if entry.linked:
            self._close(subject, "dead: silent for too long")

    def _depart(self, entry: Entry, now: float) -> None:
        self._suspicions.clear(entry.node)
        self._probes.close(entry.node)
        self._members.departed(entry.node, now)
        self._parts.store.bury(entry.node, entry.incarnation)

    def _self_verdict(self, entry: Entry, message: Verdict, now: float) -> None:
        """The peer speaks of itself; it can only leave."""
        if message.incarnation > entry.incarnation:
            self.risen(entry.node, message.incarnation, now)
        current = message.incarnation == entry.incarnation
        if message.left and current and entry.state is not LEFT:
            self._depart(entry, now)

    def _may_depart(self, entry: Entry, incarnation: Incarnation) -> bool:
        """Hearsay of a departure is believed when the node's own signed record announced it."""
        current = incarnation == entry.incarnation
        gone = entry.state is LEFT or entry.linked
        return current and not gone and self._said_leaving(entry)

    def _said_leaving(self, entry: Entry) -> bool:
        static = self._parts.store.static(entry.node)
        return static is not None and static.leaving

    def _refute(self, said: Incarnation, now: float) -> None:
        if self._parts.own.refute(said, now):
            self._parts.health.fault(now)

    def _answer_stale(self, peer: NodeId, entry: Entry, now: float) -> None:
        """`peer` speaks of an older incarnation: show it what is held here."""
        if entry.is_buried:
            self._spread.send(peer, entry.verdict(), now)
        else:
            self._spread.records([peer], self._parts.store.records_of(entry.node), now)

    def _tell_subject(self, entry: Entry, now: float) -> None:
        """A node held for suspect or dead was heard: let it refute."""
        told_at = self._told_at.get(entry.node)
        if told_at is not None and now < told_at + self._config.heartbeat_interval_s:
            return
        self._told_at[entry.node] = now
        if entry.state is SUSPECT:
            told = Suspicion(entry.node, entry.incarnation, self._members.me)
            self._spread.send(entry.node, told, now)
        else:
            self._spread.send(entry.node, entry.verdict(), now)

    def _helpers(self, subject: NodeId, now: float) -> list[NodeId]:
        fresh_s = self._config.heartbeat_interval_s * HELPER_FRESH_BEATS
        able = [
            entry.node
            for entry in self._members.others(ALIVE)
            if entry.linked
            and entry.node != subject
            and self._parts.heartbeats.silence_s(entry.node, now) <= fresh_s
        ]
        count = min(self._config.indirect_probe_count, len(able))
        return self._parts.rng.sample(able, count)

    def _dial(self, subject: NodeId) -> None:
        static = self._parts.store.static(subject)
        if static and static.addresses:
            self._spread.order(Dial(static.addresses[:DIAL_ADDRESSES_MAX], subject))

    def _close(self, peer: NodeId, reason: str) -> None:
        self._closing.add(peer)
        self._spread.order(CloseLink(peer, reason))

    def _death_at(self, subject: NodeId, now: float) -> float:
        factor = self._parts.health.factor
        return self._suspicions.deadline(
            subject, factor, lambda accuser: not self._is_discredited(accuser, now)
        )

    def _is_discredited(self, accuser: NodeId, now: float) -> bool:
        peer_count = len(self._members.others(ALIVE, SUSPECT))
        return self._watch.is_discredited(accuser, peer_count, now, self._agrees)

    def _agrees(self, subject: NodeId) -> bool:
        entry = self._members.get(subject)
        return entry is None or entry.state is not ALIVE

    def _check_clone(self, entry: Entry, now: float) -> None:
        silence_s = self._parts.heartbeats.silence_s(entry.node, now)
        if silence_s < self._config.heartbeat_interval_s:
            self.cloned(entry.node, now)
