"""This node's own records: written here, signed here, raised when somebody buries us alive."""

from __future__ import annotations

from dataclasses import replace

from swarm.config import GossipConfig
from swarm.effects import Dial, SaveIncarnation
from swarm.errors import RemoteProtocolError
from swarm.gossip.content import check_content
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Content, Signer, Version, content_of, seal
from swarm.gossip.seldom import Seldom
from swarm.gossip.spread import Spread
from swarm.gossip.store import RecordStore
from swarm.messages import Heartbeat, RecordKind, SignedRecord
from swarm.notes import Level, note
from swarm.terms import INCARNATION_LIMIT, Incarnation, short

JUMP_MAX = 1 << 20
"""An unsigned claim may raise our incarnation by this much: one lie cannot use up the numbers."""
FOREIGN_PAUSE_S = 2.0
FOREIGN_PAUSE_MAX_S = 64.0
FOREIGN_BIDS_AT_PACE = 8
"""Two copies that cannot meet outbid each other: so often at this pace, then at pauses that
double. Long pauses leave the records of the other one standing for that long."""
FOREIGN_CALM_S = 300.0
"""After this time without a bid the next one begins at the first pace again."""
LOOKED_AT_MAX = 8
"""Addresses of a copy that are dialled at one time."""


class Own:
    """The records of this node. Every write is pushed to all linked peers at once."""

    def __init__(
        self,
        signer: Signer,
        config: GossipConfig,
        incarnation: Incarnation,
        store: RecordStore,
        spread: Spread,
    ) -> None:
        self.me = signer.node_id_of(signer.public_key)
        self.incarnation = incarnation
        self.has_left = False
        self._signer = signer
        self._config = config
        self._store = store
        self._spread = spread
        self._sequence = 0
        self._foreign_at: float | None = None
        self._foreign_bids = 0
        self._unfit = Seldom()
        self._heartbeat: list[Heartbeat | None] = [None, None]
        """The last one, without and with a wish for a reply."""

    @property
    def static(self) -> StaticRecord | None:
        return self._store.static(self.me)

    def heartbeat(self, *, reply: bool = False) -> Heartbeat:
        """One object for as long as nothing changes."""
        state_hash = self._store.state_hash()
        last = self._heartbeat[reply]
        if last is None or (last.state_hash, last.incarnation) != (state_hash, self.incarnation):
            last = self._heartbeat[reply] = Heartbeat(state_hash, self.incarnation, reply)
        return last

    def records(self) -> tuple[SignedRecord, ...]:
        return self._store.records_of(self.me)

    def write(self, content: Content, now: float) -> None:
        """Content that every peer would refuse, and hang up for, is told as an error instead."""
        try:
            check_content(content)
        except RemoteProtocolError as error:
            if self._unfit.allows(self.me, now):
                self._spread.tell(note("gossip.unfit_own", Level.ERROR, reason=str(error)))
            return
        self._keep(content)
        kind = RecordKind.STATIC if isinstance(content, StaticRecord) else RecordKind.DYNAMIC
        record = self._store.record(self.me, kind)
        self._spread.records(self._spread.audience(), [record] if record else [], now)

    def refute(self, said: int, now: float) -> bool:
        """Somebody holds us for suspect, dead or gone. True when our incarnation had to rise.

        Raises RemoteProtocolError when `said` cannot be an incarnation of ours.
        """
        if said < self.incarnation or self.has_left:
            return False
        if said > self.incarnation + JUMP_MAX:
            raise RemoteProtocolError(f"a claim about our incarnation {said}")
        if said + 1 >= INCARNATION_LIMIT:
            return False
        self._raise_above(said, now)
        self._spread.tell(note("gossip.refuted", incarnation=self.incarnation))
        return True

    def is_foreign(self, record: SignedRecord) -> bool:
        """Whether a record under our key is news to us (its signature is still unchecked)."""
        known = self._store.record(self.me, record.kind)
        version = (record.incarnation, record.sequence)
        if known and version == (known.incarnation, known.sequence):
            return record != known
        return version > (self.incarnation, self._sequence)

    def foreign(self, record: SignedRecord, now: float) -> bool:
        """A record that our key signed and we did not write. True when our incarnation rose.

        Once it may be from a life whose incarnation was lost; again it is a copy at work. Whoever
        lives at its addresses is dialled: if that is a copy, both find out.
        """
        if self.has_left or record.incarnation + 1 >= INCARNATION_LIMIT:
            return False
        if self._foreign_at is not None and now - self._foreign_at < self._foreign_pause_s(now):
            return False
        if self._foreign_bids:
            self._spread.tell(
                note("member.cloned", Level.WARNING, node=short(self.me), is_self=True)
            )
        self._foreign_at = now
        self._foreign_bids += 1
        self._look_for_author(record)
        self._raise_above(record.incarnation, now)
        return True

    def _foreign_pause_s(self, now: float) -> float:
        if self._foreign_at is not None and now - self._foreign_at > FOREIGN_CALM_S:
            self._foreign_bids = 0
        doublings = max(0, self._foreign_bids - FOREIGN_BIDS_AT_PACE)
        return min(FOREIGN_PAUSE_MAX_S, FOREIGN_PAUSE_S * (1 << min(doublings, 16)))

    def _look_for_author(self, record: SignedRecord) -> None:
        try:
            content = content_of(record)
        except RemoteProtocolError:  # a copy of another build: nothing to learn from it
            return
        ours = self.static
        if isinstance(content, StaticRecord):
            others = [a for a in content.addresses if ours is None or a not in ours.addresses]
            for address in others[:LOOKED_AT_MAX]:
                self._spread.order(Dial((address,), None))

    def _raise_above(self, said: int, now: float) -> None:
        contents = [c for c in (self._store.static(self.me), self._store.dynamic(self.me)) if c]
        self.incarnation = Incarnation(said + 1)
        self._spread.order(SaveIncarnation(self.incarnation))
        for content in contents:
            self._keep(content)
        self._spread.records(self._spread.audience(), self.records(), now)

    def _keep(self, content: Content) -> None:
        self._sequence += 1
        version = Version(self.incarnation, self._sequence)
        record = seal(self._signer, content, version, self._config.record_body_bytes_max)
        self._store.put(self.me, record, content)


def with_health(record: DynamicRecord, score: int) -> DynamicRecord:
    return record if record.local_health == score else replace(record, local_health=score)
