"""Records on their way: pushed by their authors, passed on when others may have missed them,
and evened out by hash and digest. All times are awake time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from swarm.errors import RemoteProtocolError
from swarm.gossip import buckets
from swarm.gossip.hearsay import Hearsay
from swarm.gossip.judge import Judge
from swarm.gossip.parts import Parts
from swarm.gossip.sealing import (
    Content,
    check_incarnation,
    check_shape,
    check_signature,
)
from swarm.gossip.seldom import Seldom
from swarm.gossip.store import DEPARTED_SEQUENCE, HASH_BYTES
from swarm.messages import Digest, Heartbeat, RecordKind, Records, SignedRecord, Summary, Verdict
from swarm.notes import Level, note
from swarm.terms import NodeId, short

FULL_NOTE_INTERVAL_S = 60.0


@dataclass(slots=True)
class _Mismatch:
    """Unequal hashes with one peer: pull again after each pause, which doubles."""

    pull_at: float
    pause_s: float
    hash: bytes


class _Fate(Enum):
    """What became of a record that came."""

    OLD = "old"
    """Known, outdated, or unfit."""
    NEWS = "news"
    """From its author, who tells everybody it is linked to."""
    HEARSAY = "hearsay"
    """From somebody else, or the first of a life."""


class Exchange:
    def __init__(self, parts: Parts, judge: Judge, hearsay: Hearsay) -> None:
        self._parts = parts
        self._judge = judge
        self._hearsay = hearsay
        self._config = parts.config
        self._members = parts.membership
        self._store = parts.store
        self._spread = parts.spread
        self._mismatches: dict[NodeId, _Mismatch] = {}
        self._unfit = Seldom()
        self._full_at: float | None = None
        self._pull_at: float | None = None
        """In a partial mesh: when to compare with somebody, since hashes were unequal."""
        self._full_noted_at: float | None = None

    def link_up(self, peer: NodeId, now: float) -> None:
        """Own records first, so that the peer can route here at once; then all the rest."""
        self._spread.records([peer], self._parts.own.records(), now)
        self._send_summary(peer, now)

    def link_down(self, peer: NodeId) -> None:
        self._mismatches.pop(peer, None)

    # ------------------------------------------------------------ messages

    def heartbeat_received(self, peer: NodeId, message: Heartbeat, now: float) -> bool:
        """False where it changed nothing, which is the rule."""
        if len(message.state_hash) != HASH_BYTES:
            raise RemoteProtocolError("a heartbeat with a malformed state hash")
        check_incarnation(message.incarnation)
        entry = self._members.get(peer)
        is_news = message.reply
        if entry and message.incarnation > entry.incarnation:
            is_news = True
            self._judge.risen(peer, message.incarnation, now)
        if message.reply:
            self._spread.send(peer, self._parts.own.heartbeat(), now)
        return self._compare_hash(peer, message.state_hash, now) or is_news

    def records_received(self, peer: NodeId, message: Records, now: float) -> None:
        hearsay: list[tuple[NodeId, SignedRecord]] = []
        for record in message.records:
            check_shape(record, self._config.record_body_bytes_max)
            node = self._parts.signer.node_id_of(record.public_key)
            if node == self._members.me:
                self._own_returned(record, now)
                continue
            fate = self._accept(peer, node, record, now)
            if fate is _Fate.HEARSAY and not self._parts.is_partial:
                hearsay.append((node, record))
            elif fate is not _Fate.OLD:
                self._pass_on(peer, node, record)
        if hearsay:
            self._pass_to_all(peer, hearsay, now)

    def summary_received(self, peer: NodeId, message: Summary, now: float) -> None:
        count = buckets.count_of(message.hashes)
        self._parts.neighbours.expect(count * buckets.NODES_PER_BUCKET, now)
        mask = buckets.differing(self._store.summary(count), message.hashes)
        if mask:
            self._send_digest(peer, now, reply=True, mask=mask)

    def digest_received(self, peer: NodeId, message: Digest, now: float) -> None:
        shown = self._store.compare(message)
        self._spread.records([peer], shown.newer, now)
        for node in shown.buried_here:
            self._send_verdict(peer, node, now)
        for entry in shown.buried_there:
            check_incarnation(entry.incarnation)
            has_left = entry.sequence == DEPARTED_SEQUENCE
            told = Verdict(entry.node, entry.incarnation, has_left)
            self._hearsay.buried_there(peer, told, now)
        if message.reply and shown.behind:
            self._send_digest(peer, now, reply=False, mask=shown.behind)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        if self._mismatches:
            self._pull_each(now)
        if self._pull_at is not None and now >= self._pull_at:
            self._pull_at = None
            self._compare_with_one(now)
        if self._full_at is None:
            self._full_at = now + self._config.full_exchange_interval_s
        if now >= self._full_at:
            self._full_at = now + self._config.full_exchange_interval_s
            self._compare_with_one(now)

    def next_deadline(self) -> float | None:
        due = self._full_at
        if self._pull_at is not None and (due is None or self._pull_at < due):
            due = self._pull_at
        for mismatch in self._mismatches.values():
            if due is None or mismatch.pull_at < due:
                due = mismatch.pull_at
        return due

    # ------------------------------------------------------------ inner moves

    def _accept(self, peer: NodeId, node: NodeId, record: SignedRecord, now: float) -> _Fate:
        """Take a record that is news.

        An author pushes to all that are linked to it. In a full mesh hearsay and the first record
        of each life go on to all: those are what nodes without a link to the author wait for.
        """
        entry = self._members.get(node)
        if entry and entry.is_buried and record.incarnation <= entry.incarnation:
            self._send_verdict(peer, node, now)
            return _Fate.OLD
        if entry and record.incarnation < entry.incarnation:
            return _Fate.OLD
        if not self._store.is_newer(node, record):
            self._parts.rumours.held_by(_key(node, record), record, peer)
            self._check_equivocation(node, record, now)
            return _Fate.OLD
        if entry is None and not self._has_room(now):
            return _Fate.OLD
        check_signature(self._parts.signer, record)
        content = self._content(peer, node, record, now)
        if content is None:
            return _Fate.OLD
        has_risen = entry is None or record.incarnation > entry.incarnation
        if has_risen:
            entry = self._judge.risen(node, record.incarnation, now)
        is_first = self._store.record(node, record.kind) is None
        self._store.put(node, record, content)
        self._members.touch(node)
        if record.kind is RecordKind.STATIC:
            self._hearsay.static_received(peer, node, now)
        if entry:
            self._judge.shows_life(entry, now)
            if has_risen and not entry.linked and not self._parts.is_partial:
                self._judge.probe(node, now)
        return _Fate.HEARSAY if is_first or peer != node else _Fate.NEWS

    def _own_returned(self, record: SignedRecord, now: float) -> None:
        """A record under our own key: mostly an echo, sometimes one that we never wrote."""
        if not self._parts.own.is_foreign(record):
            return
        check_signature(self._parts.signer, record)
        self._parts.own.foreign(record, now)

    def _content(
        self, peer: NodeId, node: NodeId, record: SignedRecord, now: float
    ) -> Content | None:
        """The body of a record by `node`; None where `peer` passed on one that does not fit.

        The author answers for what it says: RemoteProtocolError. Who passes a record on answers
        for its signature, which all builds check alike. Which values fit, a build of another age
        may see otherwise, so that the carrier may be honest and keeps its link.
        """
        try:
            return self._parts.signer.read(record)
        except RemoteProtocolError as error:
            if peer == node:
                raise
            if self._unfit.allows(node, now):
                self._spread.tell(
                    note(
                        "gossip.unfit", Level.WARNING,
                        node=short(node), carrier=short(peer), reason=str(error),
                    )
                )  # fmt: skip
            return None

    def _check_equivocation(self, node: NodeId, record: SignedRecord, now: float) -> None:
        held = self._store.record(node, record.kind)
        if held is None or held.body == record.body:
            return
        if (held.incarnation, held.sequence) != (record.incarnation, record.sequence):
            return
        check_signature(self._parts.signer, record)
        self._judge.cloned(node, now)

    def _has_room(self, now: float) -> bool:
        if len(self._members) < self._config.members_max:
            return True
        forgotten = self._members.make_room()
        if forgotten is not None:
            self._judge.forget(forgotten)
            return True
        noted_at = self._full_noted_at
        if noted_at is None or now >= noted_at + FULL_NOTE_INTERVAL_S:
            self._full_noted_at = now
            limit = self._config.members_max
            self._spread.tell(note("gossip.full", Level.WARNING, members_max=limit))
        return False

    def _send_verdict(self, peer: NodeId, subject: NodeId, now: float) -> None:
        entry = self._members.get(subject)
        if entry:
            self._spread.send(peer, entry.verdict(), now)

    def _pass_on(self, peer: NodeId, node: NodeId, record: SignedRecord) -> None:
        """To a few at a time. In a full mesh static records only, so that nobody waits for the one
        stream on which a packet was lost."""
        if record.kind is RecordKind.DYNAMIC and not self._parts.is_partial:
            return
        rumours = self._parts.rumours
        carry = rumours.news if record.kind is RecordKind.STATIC else rumours.figures
        carry(_key(node, record), record, (peer, node), self._members.living_count)

    def _pass_to_all(
        self, peer: NodeId, news: list[tuple[NodeId, SignedRecord]], now: float
    ) -> None:
        """To everybody but `peer`; to authors what is not their own."""
        others = [other for other in self._spread.audience() if other != peer]
        authors = {node for node, _ in news}
        self._spread.records([n for n in others if n not in authors], [r for _, r in news], now)
        for author in others:
            if author in authors:
                self._spread.records([author], [r for node, r in news if node != author], now)

    def _send_digest(self, peer: NodeId, now: float, *, reply: bool, mask: bytes) -> None:
        for digest in self._store.digests(reply=reply, mask=mask):
            self._spread.send(peer, digest, now)

    def _send_summary(self, peer: NodeId, now: float) -> None:
        self._spread.send(peer, Summary(self._store.summary()), now)

    def _compare_with_one(self, now: float) -> None:
        peers = self._spread.audience()
        if peers:
            self._send_summary(self._parts.rng.choice(peers), now)

    def _pull_each(self, now: float) -> None:
        own = self._store.state_hash()
        for peer in sorted(self._mismatches):
            mismatch = self._mismatches[peer]
            if mismatch.hash == own:
                del self._mismatches[peer]
            elif now >= mismatch.pull_at:
                mismatch.pause_s = min(2 * mismatch.pause_s, self._config.full_exchange_interval_s)
                mismatch.pull_at = now + mismatch.pause_s
                self._send_summary(peer, now)

    def _compare_hash(self, peer: NodeId, state_hash: bytes, now: float) -> bool:
        """Whether that sets a new deadline."""
        if state_hash == self._store.state_hash():
            self._mismatches.pop(peer, None)
            return False
        if self._parts.is_partial:
            # Some record is nearly always on its way: one comparison a while, whoever differs.
            self._mismatches.clear()
            if self._pull_at is not None:
                return False
            decades = math.log10(max(10, self._members.living_count))
            self._pull_at = now + self._config.hash_mismatch_s * 2 * decades
            return True
        known = self._mismatches.get(peer)
        if known is not None:
            known.hash = state_hash
            return False
        pause_s = self._config.hash_mismatch_s
        self._mismatches[peer] = _Mismatch(now + pause_s, pause_s, state_hash)
        return True


def _key(node: NodeId, record: SignedRecord) -> tuple[NodeId, RecordKind]:
    return (node, record.kind)
