"""Finding out whether somebody lives: directly, through helpers, and for others who ask.

All times are awake time.
"""

from __future__ import annotations

import math

from swarm.effects import Dial
from swarm.gossip.membership import ALIVE, Entry
from swarm.gossip.pace import NODES_PER_S
from swarm.gossip.parts import Parts
from swarm.gossip.probes import EndedProbe, Probes
from swarm.messages import ProbeAnswer, ProbeRequest
from swarm.terms import NodeId

DIAL_PATIENCE = 4.0
"""A probe that must dial first takes this many times the timeout of one over a link."""
DIAL_ADDRESSES_MAX = 8
"""Of one record, the first: nobody makes this node knock at every door that a record lists."""
HELPER_FRESH_BEATS = 2.0
"""Only peers heard within this many heartbeat intervals are asked to help."""
UNLINKED_PACES = 3.0
"""In a partial mesh a member without a link is probed after this many intervals of its records."""
UNLINKED_PROBES_MAX = 4
"""Such probes begun in one tick."""


class Prober:
    """Begins probes and says how they ended; what follows from that is the judge's business."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = parts.config
        self._members = parts.membership
        self._spread = parts.spread
        self._probes = Probes()
        self._spread_part = parts.rng.random()
        self._unlinked_due = math.inf
        """No member without a link is to be probed before."""

    # ------------------------------------------------------------ own probes

    def is_open(self, subject: NodeId) -> bool:
        return self._probes.is_open(subject)

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
        elif not self._dial(subject):
            entry.proof_at = now  # where it lives is not known yet: that it is silent says nothing
            return
        if not entry.linked or self._parts.is_partial:
            timeout_s *= DIAL_PATIENCE
        helpers = self._helpers(subject, now)
        for helper, nonce in self._probes.begin(subject, helpers, now, timeout_s):
            self._spread.send(helper, ProbeRequest(subject, nonce), now)

    def answered(self, helper: NodeId, answer: ProbeAnswer) -> NodeId | None:
        """Of whom a helper has spoken; None for what was not asked."""
        return self._probes.answered(helper, answer)

    def dial_failed(self, subject: NodeId) -> None:
        """Nobody answers where `subject` should live: that part of a probe is over."""
        entry = self._members.get(subject)
        if entry is not None and not entry.linked:
            self._probes.dial_failed(subject)

    def close(self, subject: NodeId) -> None:
        """Nobody needs to know any more."""
        self._probes.close(subject)

    def heard(self, peer: NodeId, now: float) -> bool:
        """Bytes came from the peer. False where nobody waited for them."""
        if not self._probes.is_busy:
            return False
        self._probes.close(peer)
        for asker, answer in self._probes.fulfilled(peer):
            self._spread.send(asker, answer, now)
        return True

    def ended(self, now: float) -> list[EndedProbe]:
        """Probes whose time is up."""
        return self._probes.ended(now)

    # ------------------------------------------------------------ for others

    def requested(self, peer: NodeId, message: ProbeRequest, now: float, *, is_lost: bool) -> None:
        """In a partial mesh a helper without a link of its own dials the subject.

        `is_lost`: its link to this node has just broken off.
        """
        subject = message.subject
        entry = self._members.get(subject)
        if subject == self._members.me:
            self._spread.send(peer, ProbeAnswer(message.nonce, True), now)
            return
        dials = self._parts.is_partial and not is_lost
        if entry is None or entry.is_buried or not (entry.linked or dials):
            self._spread.send(peer, ProbeAnswer(message.nonce, False), now)
            return
        timeout_s = self._config.probe_timeout_s * (1.0 if entry.linked else DIAL_PATIENCE)
        if entry.linked:
            self._spread.send(subject, self._parts.own.heartbeat(reply=True), now)
        elif not self._probes.has_duty(subject) and not self._probes.is_open(subject):
            self._dial(subject)
        self._probes.take_duty(subject, peer, message.nonce, now, timeout_s)

    def link_down(self, entry: Entry) -> None:
        self._probes.fail_duties(entry.node)
        self.note_unlinked(entry)

    def answer_failed(self, now: float) -> None:
        """Those who asked about somebody that was not heard are told so in time."""
        for asker, answer in self._probes.failed_duties(now):
            self._spread.send(asker, answer, now)

    # ------------------------------------------------------------ members without a link

    def check_unlinked(self, now: float) -> None:
        """Probe those that showed no life for long."""
        if now < self._unlinked_due:
            return
        wait_s = self._unlinked_wait_s()
        begun = 0
        for entry in self._members.others(ALIVE):
            if entry.linked or now < entry.proof_at + wait_s or self._probes.is_open(entry.node):
                continue
            if begun == UNLINKED_PROBES_MAX and self._parts.is_partial:
                break
            begun += 1
            self.probe(entry.node, now)
        self._unlinked_due = self._next_unlinked()
        if begun:
            self._unlinked_due = max(self._unlinked_due, now + self._config.probe_timeout_s)

    def note_unlinked(self, entry: Entry) -> None:
        """Its last sign of life, or its link, changed."""
        if not entry.linked:
            due = entry.proof_at + self._unlinked_wait_s()
            self._unlinked_due = min(self._unlinked_due, due)

    def next_deadline(self) -> float:
        due = self._probes.next_deadline()
        return self._unlinked_due if due is None else min(self._unlinked_due, due)

    def _next_unlinked(self) -> float:
        proofs = (
            entry.proof_at
            for entry in self._members.others(ALIVE)
            if not entry.linked and not self._probes.is_open(entry.node)
        )
        return min(proofs, default=math.inf) + self._unlinked_wait_s()

    def _unlinked_wait_s(self) -> float:
        """In a partial mesh different on every node, so that not all go and look at once."""
        if not self._parts.is_partial:
            return self._config.unlinked_probe_s
        interval_s = max(self._config.dynamic_refresh_s, self._members.living_count / NODES_PER_S)
        return interval_s * UNLINKED_PACES * (1.0 + self._spread_part)

    def _dial(self, subject: NodeId) -> bool:
        """Whether it is known where."""
        static = self._parts.store.static(subject)
        if static is None or not static.addresses:
            return False
        self._spread.order(Dial(static.addresses[:DIAL_ADDRESSES_MAX], subject))
        return True

    def _helpers(self, subject: NodeId, now: float) -> list[NodeId]:
        """Peers heard lately; in a partial mesh rather those known to be linked to the subject."""
        beats = self._parts.heartbeats
        fresh_s = self._config.heartbeat_interval_s * HELPER_FRESH_BEATS
        able = [
            peer
            for peer in beats.peers
            if peer != subject
            and beats.silence_s(peer, now) <= fresh_s
            and (entry := self._members.get(peer)) is not None
            and entry.state is ALIVE
        ]
        count = min(self._config.indirect_probe_count, len(able))
        if not self._parts.is_partial:
            return self._parts.rng.sample(able, count)
        dynamic = self._parts.store.dynamic(subject)
        linked = {link.peer for link in dynamic.links} if dynamic else set()
        mixed = self._parts.rng.sample(able, len(able))
        return sorted(mixed, key=lambda peer: peer not in linked)[:count]
