"""Who can be reached: links, silence, probes, suspicions and deaths. All times are awake time.

Own evidence makes a suspect here, or, in a partial mesh, the word of enough others (`hearsay`).
Only the suspect refutes, with a higher incarnation; a suspicion that was told to nobody ends with
the first byte that comes from it.

Evidence is public only with proof that this node is itself connected: a helper that answers. Who
wakes from sleep finds all links dead at once, and that speaks of nobody but itself.
"""

from __future__ import annotations

from swarm.effects import CloseLink
from swarm.gossip.membership import ALIVE, LEFT, SUSPECT, Entry
from swarm.gossip.parts import Parts
from swarm.gossip.prober import Prober
from swarm.gossip.probes import EndedProbe
from swarm.gossip.seldom import Seldom
from swarm.gossip.suspicion import AccuserWatch, Suspicions
from swarm.messages import ProbeAnswer, ProbeRequest, Suspicion, Verdict
from swarm.notes import Level, note
from swarm.terms import Incarnation, NodeId, short

ACCUSERS_TOLD_MAX = 3
"""In a partial mesh: of how many accusers of one subject a node tells."""
EXACT_SUSPICIONS_MAX = 16
SUSPICION_STEP_S = 0.1
"""With more suspicions open than that they are looked at this often, not to the microsecond."""
BREAK_SLACK_S = 0.01
"""So that rounding never finds a silent link a moment too young to be broken off."""
SURPLUS = "a link too many"


class Judge:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = parts.config
        self._members = parts.membership
        self._spread = parts.spread
        self._prober = Prober(parts)
        self._told_at: dict[NodeId, float] = {}
        self._closing: dict[NodeId, bool] = {}
        """Links that this side is closing, and whether the peer is to be looked for then."""
        self._lost: dict[NodeId, Incarnation] = {}
        """Whose link broke off, and who is not accused of it yet."""
        self._break_at: dict[NodeId, float] = {}
        """When a link that did not answer a probe is broken off, if it is still silent then."""
        self._published: set[NodeId] = set()
        """Suspects that others were told of."""
        self._looked: set[NodeId] = set()
        """Suspects that were probed once more at the end of their time."""
        self._clones = Seldom()
        self._deaths_checked_at = 0.0
        self.suspicions = Suspicions(
            parts.config.suspicion_min_s, parts.config.suspicion_max_factor
        )
        self.watch = AccuserWatch()

    # ------------------------------------------------------------ links and life

    def link_up(self, peer: NodeId, incarnation: Incarnation, now: float) -> None:
        entry = self._members.get(peer)
        if entry and entry.linked and incarnation != entry.incarnation:
            self._check_clone(entry, now)
        self._parts.heartbeats.add(peer, now)
        if entry is None or incarnation > entry.incarnation:
            entry = self.risen(peer, incarnation, now)
        self._members.set_linked(peer, True)
        self._closing.pop(peer, None)
        self._lost.pop(peer, None)
        self._told_at.pop(peer, None)
        self.heard(peer, now)
        if entry.state is LEFT and incarnation <= entry.incarnation:
            self._spread.send(peer, entry.verdict(), now)

    def link_down(self, peer: NodeId, orderly: bool, now: float) -> bool:
        """True when the peer released a link that neither of the two needs."""
        self._parts.heartbeats.remove(peer)
        entry = self._members.get(peer)
        if entry is None or not entry.linked:
            return False
        self._members.set_linked(peer, False)
        self._prober.link_down(entry)
        closed_here = self._closing.pop(peer, None)
        if entry.is_buried or self._parts.own.has_left:
            return False
        if orderly and self.said_leaving(entry):
            self.depart(entry, now)
            return False
        if closed_here is False:
            return False
        if closed_here is None and orderly and self._parts.is_partial:
            self._prober.close(peer)
            return True
        if closed_here is None and not orderly:
            self._link_lost(entry, now)
        self._prober.close(peer)
        self.probe(peer, now)
        return False

    def heard(self, peer: NodeId, now: float) -> bool:
        """Bytes came from the peer over its link. False where that changes nothing, as mostly."""
        is_news = self._parts.heartbeats.heard(peer, now)
        entry = self._members.get(peer)
        if entry is None:
            return is_news
        entry.proof_at = now
        if self._prober.heard(peer, now):
            is_news = True
        if entry.state is not ALIVE and entry.state is not LEFT:
            is_news = True
            self._heard_again(entry, now)
        return is_news

    def shows_life(self, entry: Entry, now: float) -> None:
        """Somebody reaches the node, or it has signed something new."""
        entry.proof_at = now
        self._clear(entry, now)

    def risen(self, node: NodeId, incarnation: Incarnation, now: float) -> Entry:
        """The node itself claims a first or a higher incarnation: old verdicts are void."""
        entry = self._members.risen(node, incarnation, now)
        self._parts.store.unbury(node)
        self._parts.store.drop_older(node, incarnation)
        self._acquit(node)
        self._prober.note_unlinked(entry)
        return entry

    def forget(self, node: NodeId) -> None:
        self._parts.store.forget(node)
        self._acquit(node)
        self.watch.forget(node)
        self._told_at.pop(node, None)

    def depart(self, entry: Entry, now: float) -> None:
        """It has left in good order."""
        self._acquit(entry.node)
        self._members.departed(entry.node, now)
        self._parts.store.bury(entry.node, entry.incarnation, has_left=True)

    def said_leaving(self, entry: Entry) -> bool:
        static = self._parts.store.static(entry.node)
        return static is not None and static.leaving

    def cloned(self, node: NodeId, now: float) -> None:
        """`node` contradicts itself: its restart counter was lost, or two copies of it are at
        work (links find out which). Told seldom, however often it shows."""
        if self._clones.allows(node, now):
            self._spread.tell(note("member.contradicted", Level.WARNING, node=short(node)))

    # ------------------------------------------------------------ own evidence

    def probe(self, subject: NodeId, now: float) -> None:
        """Find out now, directly and through helpers, whether `subject` can be reached."""
        self._prober.probe(subject, now)

    def probe_request(self, peer: NodeId, message: ProbeRequest, now: float) -> None:
        is_lost = message.subject in self._lost
        self._prober.requested(peer, message, now, is_lost=is_lost)

    def dial_failed(self, subject: NodeId) -> None:
        """Nobody answers where `subject` should live: that part of a probe is over."""
        self._prober.dial_failed(subject)

    def probe_answer(self, peer: NodeId, message: ProbeAnswer, now: float) -> None:
        """The word of a helper also proves that this node is connected."""
        subject = self._prober.answered(peer, message)
        if subject in self._lost and not message.reached:
            entry = self._members.get(subject)
            del self._lost[subject]
            if entry is not None:
                self._accuse(entry, now, is_public=True)

    def close_surplus(self, peer: NodeId) -> None:
        self._close(peer, SURPLUS, seek=False)

    def silent(self) -> frozenset[NodeId]:
        """Linked peers that fell silent, while a probe asks whether they live."""
        return frozenset(filter(self._prober.is_open, self._parts.heartbeats.all_silent()))

    # ------------------------------------------------------------ what others say

    def believe(self, entry: Entry, now: float) -> None:
        """Enough others could not reach a node that this one has no link to."""
        if entry.state is ALIVE:
            self._published.add(entry.node)
            self._suspect(entry, now)

    def accuser_count(self, entry: Entry, now: float) -> int:
        """Others whose accusation of this life of the node is believed."""
        return self.suspicions.accuser_count(
            entry.node, entry.incarnation, lambda accuser: not self.is_discredited(accuser, now)
        )

    def is_discredited(self, accuser: NodeId, now: float) -> bool:
        """Whether it accuses too freely, measured by how many links it can have."""
        config = self._config
        peer_count = self._members.living_count - 1
        if self._parts.is_partial:
            peer_count = min(peer_count, config.links_near + config.links_random)
        return self.watch.is_discredited(
            accuser, peer_count, now, lambda subject: self._agrees(accuser, subject)
        )

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> bool:
        """True when a peer fell silent: it is probed, and may soon be suspected."""
        silent = self._parts.heartbeats.silent(now, self._parts.health.factor)
        for peer in silent:
            self._silent(peer, now)
        for ended in self._prober.ended(now):
            self._probe_ended(ended, now)
        self._prober.answer_failed(now)
        if self._break_at:
            self._check_broken(now)
        if len(self.suspicions):
            self._check_deaths(now)
        self._prober.check_unlinked(now)
        for node in self._members.forget_expired(now):
            self.forget(node)
        return bool(silent)

    def next_deadline(self, now: float) -> float | None:
        due = self._prober.next_deadline()
        if self._break_at:
            due = min(due, *self._break_at.values())
        suspicion_count = len(self.suspicions)
        if 0 < suspicion_count <= EXACT_SUSPICIONS_MAX:
            for subject in self.suspicions.subjects():
                if not self._prober.is_open(subject):
                    due = min(due, self._death_at(subject, now))
        elif suspicion_count:
            due = min(due, self._deaths_checked_at + SUSPICION_STEP_S)
        expiry = self._members.next_deadline()
        return due if expiry is None else min(due, expiry)

    # ------------------------------------------------------------ inner moves: links

    def _link_lost(self, entry: Entry, now: float) -> None:
        """A link broke off: the peer is gone, or this node is. The probe that follows tells."""
        if entry.state is not ALIVE:
            return
        self._lost[entry.node] = entry.incarnation
        if not self._parts.heartbeats.peers and len(self._lost) > 1:
            self._parts.health.fault(now, self._config.local_health_max)

    def _silent(self, peer: NodeId, now: float) -> None:
        entry = self._members.get(peer)
        if entry and entry.is_buried:
            self._close(peer, "silent after its end", seek=False)
        else:
            self.probe(peer, now)

    def _probe_ended(self, ended: EndedProbe, now: float) -> None:
        entry = self._members.get(ended.subject)
        self._lost.pop(ended.subject, None)
        if entry is None or entry.is_buried:
            return
        config = self._config
        silence_s = 0.0
        if entry.linked:
            silence_s = self._parts.heartbeats.silence_s(entry.node, now)
        if ended.is_reached:
            self.shows_life(entry, now)
            self._prober.note_unlinked(entry)
            if silence_s >= config.heartbeat_interval_s * config.heartbeat_missed_max:
                self._close(entry.node, "silent here, though others hear it", seek=True)
            return
        if entry.linked and (ended.helper_count == 0 or ended.unanswered):
            self._parts.health.fault(now)
        self._accuse(entry, now, is_public=ended.helper_count > ended.unanswered)
        if entry.linked:
            left_s = max(0.0, config.link_silence_max_s - silence_s)
            self._break_at[entry.node] = now + left_s + BREAK_SLACK_S

    def _check_broken(self, now: float) -> None:
        """A link that stays silent is made anew: the peer may have forgotten it."""
        for peer in sorted(p for p, at in self._break_at.items() if now >= at):
            del self._break_at[peer]
            if peer not in self._parts.heartbeats:
                continue
            silence_s = self._parts.heartbeats.silence_s(peer, now)
            if silence_s >= self._config.link_silence_max_s:
                self._close(peer, "silent for too long", seek=True)

    def _close(self, peer: NodeId, reason: str, *, seek: bool) -> None:
        self._closing[peer] = seek
        self._spread.order(CloseLink(peer, reason))

    # ------------------------------------------------------------ inner moves: suspicions

    def _accuse(self, entry: Entry, now: float, *, is_public: bool) -> None:
        """Own evidence speaks against a node."""
        if entry.state is ALIVE:
            self._suspect(entry, now)
        if entry.state is not SUSPECT or entry.node in self._published:
            return
        if not is_public or not self._parts.health.may_accuse:
            return
        self._published.add(entry.node)
        told = self.suspicions.accuser_count(entry.node, entry.incarnation)
        if not self._parts.is_partial or told < ACCUSERS_TOLD_MAX:
            accusation = Suspicion(entry.node, entry.incarnation, self._members.me)
            self._spread.push(accusation, now)

    def _suspect(self, entry: Entry, now: float) -> None:
        count = self._members.living_count
        self._members.accused(entry.node, now)
        self.suspicions.begin(entry.node, entry.incarnation, now, member_count=count)

    def _acquit(self, node: NodeId) -> None:
        self.suspicions.clear(node)
        self._prober.close(node)
        self._published.discard(node)
        self._looked.discard(node)
        self._lost.pop(node, None)

    def _heard_again(self, entry: Entry, now: float) -> None:
        """A node held for suspect or dead was heard. A suspicion of our own only is dropped;
        what others know of as well it must refute."""
        if not self._clear(entry, now):
            self._tell_subject(entry, now)

    def _clear(self, entry: Entry, now: float) -> bool:
        if not self._is_private(entry):
            return False
        self._acquit(entry.node)
        self._members.cleared(entry.node, now)
        return True

    def _is_private(self, entry: Entry) -> bool:
        """A suspect that nobody else knows of as one."""
        if entry.state is not SUSPECT or entry.node in self._published:
            return False
        return not self.suspicions.accuser_count(entry.node, entry.incarnation)

    def _tell_subject(self, entry: Entry, now: float) -> None:
        told_at = self._told_at.get(entry.node)
        if told_at is not None and now < told_at + self._config.heartbeat_interval_s:
            return
        self._told_at[entry.node] = now
        if entry.state is SUSPECT:
            told = Suspicion(entry.node, entry.incarnation, self._members.me)
            self._spread.send(entry.node, told, now)
        else:
            self._spread.send(entry.node, entry.verdict(), now)

    def _check_deaths(self, now: float) -> None:
        many = len(self.suspicions) > EXACT_SUSPICIONS_MAX
        if many and now < self._deaths_checked_at + SUSPICION_STEP_S:
            return
        self._deaths_checked_at = now
        for subject in self.suspicions.subjects():
            if now >= self._death_at(subject, now) and not self._looks_again(subject, now):
                self._die(subject, now)

    def _looks_again(self, subject: NodeId, now: float) -> bool:
        """Nobody is buried on old evidence of this node alone: one more probe, when time is up."""
        entry = self._members.get(subject)
        if entry is None or not self._is_private(entry):
            return False
        if subject not in self._looked:
            self._looked.add(subject)
            self.probe(subject, now)
        return self._prober.is_open(subject)

    def _death_at(self, subject: NodeId, now: float) -> float:
        factor = self._parts.health.factor
        return self.suspicions.deadline(
            subject, factor, lambda accuser: not self.is_discredited(accuser, now)
        )

    def _die(self, subject: NodeId, now: float) -> None:
        entry = self._members.get(subject)
        self._acquit(subject)
        if entry is None:
            return
        if not entry.linked and self.said_leaving(entry):
            self.depart(entry, now)
            return
        self._members.expired(subject, now)
        self._parts.store.bury(subject, entry.incarnation)
        verdict = Verdict(subject, entry.incarnation, False)
        if self._parts.is_partial:
            living = self._members.living_count
            self._parts.rumours.figures((subject, "dead"), verdict, (subject,), living)
        else:
            self._spread.push(verdict, now)
        if entry.linked:
            self._close(subject, "dead: silent for too long", seek=False)

    def _agrees(self, accuser: NodeId, subject: NodeId) -> bool:
        """Whether an accusation is more than the accuser's alone: own evidence shares it, or
        another accuser does of a node that this one has no link to."""
        entry = self._members.get(subject)
        if entry is None or entry.state is not ALIVE:
            return True
        if entry.linked or not self._parts.is_partial:
            return False
        others = self.suspicions.accuser_count(
            subject, entry.incarnation, lambda other: other != accuser
        )
        return others > 0

    def _check_clone(self, entry: Entry, now: float) -> None:
        silence_s = self._parts.heartbeats.silence_s(entry.node, now)
        if silence_s < self._config.heartbeat_interval_s:
            self.cloned(entry.node, now)
