"""What others say of third nodes, and how far it is believed. All times are awake time.

In a full mesh everybody sees for himself: hearsay makes a node probe, and shortens a suspicion
that it holds itself. In a partial mesh most nodes have no link to an accused one. They believe two
accusers, of whom none accuses too freely; a few of them, drawn by chance, go and look.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.gossip.judge import ACCUSERS_TOLD_MAX, Judge
from swarm.gossip.membership import LEFT, SUSPECT, Entry
from swarm.gossip.parts import Parts
from swarm.gossip.sealing import check_incarnation
from swarm.gossip.seldom import Seldom
from swarm.messages import Suspicion, Verdict
from swarm.notes import Level, note
from swarm.terms import Incarnation, NodeId, short

BELIEVED_ACCUSERS = 2
HERALDED_MAX = 256
HELPER_BEATS = 2.0
"""An accused peer that was heard within this many heartbeat intervals needs no probe of ours."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """`accuser` holds `subject` for suspect or dead, as the linked peer `carrier` says."""

    accuser: NodeId
    subject: NodeId
    incarnation: Incarnation
    carrier: NodeId
    is_final: bool = False
    """The subject is buried there, so that it must rise again to be seen, whoever is right."""


class Hearsay:
    def __init__(self, parts: Parts, judge: Judge) -> None:
        self._parts = parts
        self._judge = judge
        self._config = parts.config
        self._members = parts.membership
        self._spread = parts.spread
        self._discredited = Seldom()
        self._heralded: dict[NodeId, Incarnation] = {}
        """Departures told by others before the leaver's own record came."""

    # ------------------------------------------------------------ messages

    def suspicion_received(self, peer: NodeId, message: Suspicion, now: float) -> None:
        """`peer` accuses, or, in a partial mesh, passes on that another one does."""
        check_incarnation(message.incarnation)
        subject, accuser = message.subject, message.accuser
        if subject == self._members.me:
            self._refute(message.incarnation, now)
        elif accuser == peer or self._may_be_quoted(accuser):
            self._claimed(_Claim(accuser, subject, message.incarnation, peer), now)

    def verdict_received(self, peer: NodeId, message: Verdict, now: float) -> None:
        check_incarnation(message.incarnation)
        subject = message.subject
        entry = self._members.get(subject)
        if subject == self._members.me:
            self._refute(message.incarnation, now)
        elif entry is None:
            return
        elif subject == peer:
            self._self_verdict(entry, message, now)
        elif message.left and self._may_depart(entry, message.incarnation):
            self._depart(entry, peer, now)
        elif message.left and self._parts.is_partial:
            self._herald(entry, message.incarnation, now)
        else:
            claim = _Claim(peer, subject, message.incarnation, peer, is_final=True)
            self._claimed(claim, now)

    def static_received(self, carrier: NodeId, node: NodeId, now: float) -> None:
        """A new static record: the departure that was heard of before it may now be believed."""
        said = self._heralded.pop(node, None)
        entry = self._members.get(node)
        if said is not None and entry is not None and self._may_depart(entry, said):
            self._depart(entry, carrier, now)

    def buried_there(self, peer: NodeId, told: Verdict, now: float) -> None:
        """`peer` keeps this tombstone."""
        entry = self._members.get(told.subject)
        if told.subject == self._members.me:
            self._refute(told.incarnation, now)
        elif entry is not None and self._may_depart(entry, told.incarnation):
            self._depart(entry, peer, now)
        elif entry is not None and told.left and self._parts.is_partial:
            self._herald(entry, told.incarnation, now)
        else:
            self._claimed(_Claim(peer, told.subject, told.incarnation, peer, is_final=True), now)

    # ------------------------------------------------------------ inner moves

    def _claimed(self, claim: _Claim, now: float) -> None:
        accuser = claim.accuser
        entry = self._members.get(claim.subject)
        if entry is None or claim.subject == accuser:
            return
        if claim.incarnation < entry.incarnation:
            self._answer_stale(claim.carrier, entry, now)
            return
        if entry.is_buried:
            return
        is_new = self._judge.suspicions.accuse(claim.subject, accuser, claim.incarnation)
        self._judge.watch.accused(accuser, claim.subject, now)
        doubted = self._judge.is_discredited(accuser, now)
        if entry.linked and (claim.is_final or not doubted):
            told = Suspicion(entry.node, entry.incarnation, accuser)
            self._spread.send(entry.node, told, now)
        if doubted:
            self._doubt(accuser, entry, now)
            return
        if is_new and self._parts.is_partial:
            self._pass_on(accuser, entry, claim.carrier)
        if entry.state is not SUSPECT:
            self._weigh(entry, now, is_new=is_new)

    def _weigh(self, entry: Entry, now: float, *, is_new: bool) -> None:
        """An accusation of somebody who is alive for all that is known here."""
        partial = self._parts.is_partial
        if entry.linked:
            if not partial or not self._is_fresh(entry.node, now):
                self._judge.probe(entry.node, now)
        elif not partial:
            self._judge.probe(entry.node, now)
        elif self._judge.accuser_count(entry, now) >= BELIEVED_ACCUSERS:
            self._judge.believe(entry, now)
        elif is_new and self._is_drawn():
            self._judge.probe(entry.node, now)

    def _pass_on(self, accuser: NodeId, entry: Entry, carrier: NodeId) -> None:
        """Of each subject the first few accusers are told, which is all that anybody needs."""
        count = self._judge.suspicions.accuser_count(entry.node, entry.incarnation)
        if count > ACCUSERS_TOLD_MAX:
            return
        word = Suspicion(entry.node, entry.incarnation, accuser)
        living = self._members.living_count
        key = (entry.node, accuser, "suspicion")
        self._parts.rumours.news(key, word, (carrier, accuser, entry.node), living)

    def _doubt(self, accuser: NodeId, entry: Entry, now: float) -> None:
        if entry.state is SUSPECT:
            return
        if self._discredited.allows(accuser, now):
            self._spread.tell(note("member.discredited", Level.WARNING, node=short(accuser)))
        if accuser in self._parts.heartbeats:
            self._judge.probe(accuser, now)

    def _may_be_quoted(self, accuser: NodeId) -> bool:
        entry = self._members.get(accuser)
        others = entry is not None and accuser != self._members.me
        return self._parts.is_partial and others

    def _is_fresh(self, node: NodeId, now: float) -> bool:
        fresh_s = self._config.heartbeat_interval_s * HELPER_BEATS
        return self._parts.heartbeats.silence_s(node, now) <= fresh_s

    def _is_drawn(self) -> bool:
        chance = self._config.hearsay_probe_count / max(1, self._members.living_count)
        return self._parts.rng.random() < chance

    def _refute(self, said: Incarnation, now: float) -> None:
        if self._parts.own.refute(said, now):
            self._parts.health.fault(now)

    def _answer_stale(self, peer: NodeId, entry: Entry, now: float) -> None:
        """`peer` speaks of an older incarnation: show it what is held here."""
        if entry.is_buried:
            self._spread.send(peer, entry.verdict(), now)
        else:
            self._spread.records([peer], self._parts.store.records_of(entry.node), now)

    # ------------------------------------------------------------ departures

    def _self_verdict(self, entry: Entry, message: Verdict, now: float) -> None:
        """The peer speaks of itself; it can only leave."""
        self._heralded.pop(entry.node, None)
        if message.incarnation > entry.incarnation:
            self._judge.risen(entry.node, message.incarnation, now)
        current = message.incarnation == entry.incarnation
        if message.left and current and entry.state is not LEFT:
            self._depart(entry, entry.node, now)

    def _herald(self, entry: Entry, incarnation: Incarnation, now: float) -> None:
        """A departure without the leaver's own word, which is on its way if it is true."""
        if entry.is_buried or incarnation < entry.incarnation:
            return
        if entry.linked:
            self._judge.probe(entry.node, now)
            return
        self._heralded[entry.node] = incarnation
        if len(self._heralded) > HERALDED_MAX:
            del self._heralded[next(iter(self._heralded))]

    def _may_depart(self, entry: Entry, incarnation: Incarnation) -> bool:
        """Hearsay of a departure is believed when the node's own signed record announced it."""
        current = incarnation == entry.incarnation
        gone = entry.state is LEFT or entry.linked
        return current and not gone and self._judge.said_leaving(entry)

    def _depart(self, entry: Entry, carrier: NodeId, now: float) -> None:
        self._judge.depart(entry, now)
        if self._parts.is_partial:
            holders = (carrier, entry.node)
            living = self._members.living_count
            self._parts.rumours.news((entry.node, "left"), entry.verdict(), holders, living)
