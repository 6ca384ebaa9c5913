"""The newest record of every (node, kind), and the digests that keep two stores alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Content, Version, version_of
from swarm.messages import Digest, DigestEntry, RecordKind, SignedRecord
from swarm.terms import Incarnation, NodeId

HASH_BYTES = 8
TOMBSTONE_SEQUENCE = 1 << 62
"""In a digest: nothing of this incarnation is newer, its author is dead or has left."""
DIGEST_NODES_MAX = 200
"""Nodes in one part of a digest: two entries each stay below the array limit of the wire."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a received digest shows. Nodes are in order."""

    newer: tuple[SignedRecord, ...]
    """Held here and missing, or older, at the sender."""
    buried_there: tuple[DigestEntry, ...]
    """The sender's tombstones."""
    buried_here: tuple[NodeId, ...]
    """Nodes the sender holds records of, and for which a tombstone of no lower incarnation is
    kept here."""


class RecordStore:
    """Records of living nodes count for the hash; those of buried ones are kept but not spread.

    All views are in the order of node ids. The hash does not depend on the order of arrival.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[NodeId, RecordKind], tuple[SignedRecord, Content]] = {}
        self._buried: dict[NodeId, Incarnation] = {}
        self._hash = 0

    def put(self, node: NodeId, record: SignedRecord, content: Content) -> None:
        """Keep a record that is newer than what is held (the caller has compared)."""
        self._toggle(node)
        self._held[node, record.kind] = (record, content)
        self._toggle(node)

    def record(self, node: NodeId, kind: RecordKind) -> SignedRecord | None:
        held = self._held.get((node, kind))
        return held[0] if held else None

    def records_of(self, node: NodeId) -> tuple[SignedRecord, ...]:
        found = (self.record(node, kind) for kind in RecordKind)
        return tuple(record for record in found if record)

    def version(self, node: NodeId, kind: RecordKind) -> Version | None:
        record = self.record(node, kind)
        return version_of(record) if record else None

    def static(self, node: NodeId) -> StaticRecord | None:
        held = self._held.get((node, RecordKind.STATIC))
        return held[1] if held and isinstance(held[1], StaticRecord) else None

    def dynamic(self, node: NodeId) -> DynamicRecord | None:
        held = self._held.get((node, RecordKind.DYNAMIC))
        return held[1] if held and isinstance(held[1], DynamicRecord) else None

    def is_newer(self, node: NodeId, record: SignedRecord) -> bool:
        held = self.version(node, record.kind)
        return held is None or version_of(record).key > held.key

    def drop_older(self, node: NodeId, incarnation: Incarnation) -> None:
        """Forget what the node said in earlier lives."""
        self._toggle(node)
        for kind in RecordKind:
            held = self._held.get((node, kind))
            if held and held[0].incarnation < incarnation:
                del self._held[node, kind]
        self._toggle(node)

    def bury(self, node: NodeId, incarnation: Incarnation) -> None:
        if node not in self._buried:
            self._toggle(node)
        self._buried[node] = incarnation

    def unbury(self, node: NodeId) -> None:
        if self._buried.pop(node, None) is not None:
            self._toggle(node)

    def forget(self, node: NodeId) -> None:
        self.bury(node, Incarnation(0))
        del self._buried[node]
        for kind in RecordKind:
            self._held.pop((node, kind), None)

    def state_hash(self) -> bytes:
        """HASH_BYTES over the versions of all records of nodes that are not buried."""
        return self._hash.to_bytes(HASH_BYTES, "big")

    def digests(self, *, reply: bool) -> tuple[Digest, ...]:
        """What is held, tombstones included, in as many parts as the wire's limits ask for."""
        nodes = self._nodes()
        starts = nodes[DIGEST_NODES_MAX::DIGEST_NODES_MAX]
        parts = []
        for start, stop in zip(["", *starts], [*starts, ""], strict=True):
            inside = [node for node in nodes if _within(node, start, stop)]
            entries = tuple(entry for node in inside for entry in self._entries(node))
            parts.append(Digest(entries, reply, start, stop))
        return tuple(parts)

    def compare(self, digest: Digest) -> Comparison:
        theirs = {(entry.node, entry.kind): entry for entry in digest.entries}
        newer: list[SignedRecord] = []
        for node in self._nodes():
            if node in self._buried or not _within(node, digest.start, digest.stop):
                continue
            for record in self.records_of(node):
                entry = theirs.get((node, record.kind))
                if not entry or version_of(record).key > (entry.incarnation, entry.sequence):
                    newer.append(record)
        tombs = tuple(e for e in digest.entries if e.sequence == TOMBSTONE_SEQUENCE)
        living = (e for e in digest.entries if e.sequence != TOMBSTONE_SEQUENCE)
        here = {e.node for e in living if e.incarnation <= self._buried.get(e.node, -1)}
        return Comparison(tuple(newer), tombs, tuple(sorted(here)))

    def _nodes(self) -> list[NodeId]:
        return sorted({node for node, _ in self._held} | set(self._buried))

    def _entries(self, node: NodeId) -> Iterator[DigestEntry]:
        buried = self._buried.get(node)
        if buried is not None:
            yield DigestEntry(node, RecordKind.STATIC, buried, TOMBSTONE_SEQUENCE)
            return
        for record in self.records_of(node):
            yield DigestEntry(node, record.kind, record.incarnation, record.sequence)

    def _toggle(self, node: NodeId) -> None:
        """Take the node's records out of the hash, or back in; called in pairs around a change."""
        if node in self._buried:
            return
        for record in self.records_of(node):
            self._hash ^= _fingerprint(node, record)


def _within(node: NodeId, start: str, stop: str) -> bool:
    return start <= node and (not stop or node < stop)


def _fingerprint(node: NodeId, record: SignedRecord) -> int:
    text = f"{node} {record.kind} {record.incarnation} {record.sequence}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest(), "big")
