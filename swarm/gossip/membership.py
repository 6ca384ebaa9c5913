"""Who belongs to the swarm and in which state: one table of transitions, one place that moves.

A state holds for one incarnation. Within it a node only goes down (alive, suspect, dead, left);
a higher incarnation, which only the node itself can claim, makes it alive again. The one way back
up is out of a suspicion that was told to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swarm.errors import LocalProtocolError
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.messages import Verdict
from swarm.notes import Note, note
from swarm.terms import Incarnation, MemberState, NodeId, short

ALIVE, SUSPECT = MemberState.ALIVE, MemberState.SUSPECT
DEAD, LEFT = MemberState.DEAD, MemberState.LEFT


@dataclass(frozen=True, slots=True)
class Member:
    """One node as this one sees it now."""

    node: NodeId
    state: MemberState
    incarnation: Incarnation
    linked: bool
    static: StaticRecord | None
    dynamic: DynamicRecord | None
    """Of the present incarnation only."""
    wanted: bool = True
    """Whether this node wants a link to it, beyond those that sessions ask for."""


class Happening(Enum):
    RISEN = "risen"
    """The node itself claims a higher incarnation."""
    ACCUSED = "accused"
    """Own evidence says that it cannot be reached."""
    EXPIRED = "expired"
    """The suspicion was not refuted in time."""
    DEPARTED = "departed"
    """It said that it leaves."""
    CLEARED = "cleared"
    """It was heard, and nobody but this node ever held it for suspect."""


_MOVES: dict[tuple[MemberState, Happening], MemberState] = {
    (ALIVE, Happening.RISEN): ALIVE,
    (SUSPECT, Happening.RISEN): ALIVE,
    (DEAD, Happening.RISEN): ALIVE,
    (LEFT, Happening.RISEN): ALIVE,
    (ALIVE, Happening.ACCUSED): SUSPECT,
    (SUSPECT, Happening.EXPIRED): DEAD,
    (SUSPECT, Happening.CLEARED): ALIVE,
    (ALIVE, Happening.DEPARTED): LEFT,
    (SUSPECT, Happening.DEPARTED): LEFT,
    (DEAD, Happening.DEPARTED): LEFT,
}


@dataclass(slots=True)
class Entry:
    """What is remembered of a node. Only `Membership` moves `state` and `incarnation`."""

    node: NodeId
    incarnation: Incarnation
    state: MemberState = ALIVE
    linked: bool = False
    proof_at: float = 0.0
    """When it last showed life: a byte over the link, a fresh record, a helper's word."""
    buried_at: float = 0.0

    @property
    def is_buried(self) -> bool:
        return self.state in (DEAD, LEFT)

    def verdict(self) -> Verdict:
        """What is said of a buried node to those who do not know."""
        return Verdict(self.node, self.incarnation, self.state is LEFT)


class Membership:
    """All nodes known, this one included.

    Views and deadlines are asked for at every message, so that counts, the order and the next
    expiry are kept, not sought.
    """

    def __init__(self, me: NodeId, incarnation: Incarnation, tombstone_s: float) -> None:
        self._tombstone_s = tombstone_s
        self._entries: dict[NodeId, Entry] = {me: Entry(me, incarnation)}
        self._ordered: list[Entry] | None = None
        self._changed: set[NodeId] = {me}
        self._moved: set[NodeId] = set()
        self._notes: list[Note] = []
        self._expiry_due: float | None = None
        """No tombstone expires before."""
        self.living_count = 1
        """Alive or suspect, this node included until it leaves."""
        self.me = me

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, node: NodeId) -> Entry | None:
        return self._entries.get(node)

    def entries(self) -> list[Entry]:
        """In the order of node ids. Not to be changed."""
        if self._ordered is None:
            self._ordered = [self._entries[node] for node in sorted(self._entries)]
        return self._ordered

    def others(self, *states: MemberState) -> list[Entry]:
        """All but this node, in the given states, in the order of node ids."""
        return [e for e in self.entries() if e.state in states and e.node != self.me]

    # ------------------------------------------------------------ moves

    def risen(self, node: NodeId, incarnation: Incarnation, now: float) -> Entry:
        """Learn of a node, or of a higher incarnation of a known one; it is alive."""
        entry = self._entries.get(node)
        if entry is None:
            entry = self._entries[node] = Entry(node, incarnation, proof_at=now)
            self._ordered = None
            self.living_count += 1
            self._moved.add(node)
            self._say(entry)
            return entry
        if incarnation <= entry.incarnation:
            raise LocalProtocolError(f"incarnation {incarnation} does not rise")
        entry.incarnation = incarnation
        entry.proof_at = now
        self._enter(entry, Happening.RISEN, now)
        return entry

    def accused(self, node: NodeId, now: float) -> None:
        self._enter(self._entries[node], Happening.ACCUSED, now)

    def cleared(self, node: NodeId, now: float) -> None:
        self._enter(self._entries[node], Happening.CLEARED, now)

    def expired(self, node: NodeId, now: float) -> None:
        self._enter(self._entries[node], Happening.EXPIRED, now)

    def departed(self, node: NodeId, now: float) -> None:
        self._enter(self._entries[node], Happening.DEPARTED, now)

    def set_linked(self, node: NodeId, linked: bool) -> None:
        entry = self._entries[node]
        entry.linked = linked
        self._note_expiry(entry)
        self._moved.add(node)
        self.touch(node)

    def touch(self, node: NodeId) -> None:
        """Something about the node changed that views show."""
        self._changed.add(node)

    # ------------------------------------------------------------ tombstones

    def make_room(self) -> NodeId | None:
        """Forget the oldest tombstone before its time; returns whose, or None without any."""
        buried = [entry for entry in self.entries() if entry.is_buried and not entry.linked]
        if not buried:
            return None
        return self._forget(min(buried, key=lambda entry: entry.buried_at))

    def forget_expired(self, now: float) -> list[NodeId]:
        """Drop the tombstones that have stood long enough; returns whose."""
        if self._expiry_due is None or now < self._expiry_due:
            return []
        expiries = [(entry, self._expiry(entry)) for entry in self.entries()]
        waits = [at for _, at in expiries if at is not None and now < at]
        self._expiry_due = min(waits, default=None)
        return [self._forget(entry) for entry, at in expiries if at is not None and now >= at]

    def next_deadline(self) -> float | None:
        """Not after the next tombstone expires."""
        return self._expiry_due

    # ------------------------------------------------------------ news

    @property
    def has_moved(self) -> bool:
        return bool(self._moved)

    def take_moved(self) -> list[NodeId]:
        """Who joined, left, died, rose, or won or lost its link, in the order of node ids."""
        moved = sorted(self._moved)
        self._moved.clear()
        return moved

    @property
    def has_news(self) -> bool:
        return bool(self._changed or self._notes)

    def take_changes(self) -> tuple[NodeId, ...]:
        changed = tuple(sorted(self._changed)) if self._changed else ()
        self._changed.clear()
        return changed

    def take_notes(self) -> list[Note]:
        if not self._notes:
            return []
        notes, self._notes = self._notes, []
        return notes

    # ------------------------------------------------------------ inner moves

    def _enter(self, entry: Entry, happening: Happening, now: float) -> None:
        state = _MOVES.get((entry.state, happening))
        if state is None:
            raise LocalProtocolError(f"a {entry.state.value} member cannot be {happening.value}")
        was_buried, moved = entry.is_buried, state is not entry.state
        entry.state = state
        self.living_count += was_buried - entry.is_buried
        if entry.is_buried:
            entry.buried_at = now
            self._note_expiry(entry)
        self.touch(entry.node)
        if moved:
            self._moved.add(entry.node)
            self._say(entry)

    def _say(self, entry: Entry) -> None:
        self.touch(entry.node)
        event = f"member.{entry.state.value}"
        self._notes.append(note(event, node=short(entry.node), incarnation=entry.incarnation))

    def _note_expiry(self, entry: Entry) -> None:
        at = self._expiry(entry)
        if at is not None and (self._expiry_due is None or at < self._expiry_due):
            self._expiry_due = at

    def _expiry(self, entry: Entry) -> float | None:
        waits = entry.is_buried and not entry.linked and entry.node != self.me
        return entry.buried_at + self._tombstone_s if waits else None

    def _forget(self, entry: Entry) -> NodeId:
        del self._entries[entry.node]
        self._ordered = None
        self._moved.add(entry.node)
        self.touch(entry.node)
        return entry.node
