"""The newest record of every (node, kind), and the digests that keep two stores alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.gossip import buckets
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Content
from swarm.messages import Digest, DigestEntry, RecordKind, SignedRecord
from swarm.terms import Incarnation, NodeId

HASH_BYTES = 8
TOMBSTONE_SEQUENCE = 1 << 62
"""In a digest: nothing of this incarnation is newer, its author is dead ..."""
DEPARTED_SEQUENCE = TOMBSTONE_SEQUENCE + 1
"""... or has left."""
DIGEST_NODES_MAX = 200
"""Nodes in one part of a digest: two entries each stay below the array limit of the wire."""
_KINDS = tuple(RecordKind)


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
    behind: bytes
    """The buckets in which the sender holds something newer, as a mask; b"" for none."""


@dataclass(frozen=True, slots=True)
class _Held:
    record: SignedRecord
    content: Content
    fingerprint: int


class RecordStore:
    """Records of living nodes count for the hash; those of buried ones are kept but not spread.

    All views are in the order of node ids. The hash does not depend on the order of arrival.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[NodeId, RecordKind], _Held] = {}
        self._buried: dict[NodeId, Incarnation] = {}
        self._departed: set[NodeId] = set()
        """Of the buried ones."""
        self._hash = 0
        self._hashes = [0] * buckets.BUCKETS_MAX
        """The same, of the nodes of each bucket."""
        self._buckets: dict[NodeId, int] = {}
        self._ordered: list[NodeId] | None = None

    def put(self, node: NodeId, record: SignedRecord, content: Content) -> None:
        """Keep a record that is newer than what is held (the caller has compared)."""
        self._toggle(node)
        self._held[node, record.kind] = _Held(record, content, _fingerprint(node, record))
        self._add(node)
        self._toggle(node)

    def record(self, node: NodeId, kind: RecordKind) -> SignedRecord | None:
        held = self._held.get((node, kind))
        return held.record if held else None

    def records_of(self, node: NodeId) -> tuple[SignedRecord, ...]:
        found = (self.record(node, kind) for kind in _KINDS)
        return tuple(record for record in found if record)

    def static(self, node: NodeId) -> StaticRecord | None:
        held = self._held.get((node, RecordKind.STATIC))
        return held.content if held and isinstance(held.content, StaticRecord) else None

    def dynamic(self, node: NodeId) -> DynamicRecord | None:
        held = self._held.get((node, RecordKind.DYNAMIC))
        return held.content if held and isinstance(held.content, DynamicRecord) else None

    def is_newer(self, node: NodeId, record: SignedRecord) -> bool:
        held = self._held.get((node, record.kind))
        return held is None or _age(record) > _age(held.record)

    def drop_older(self, node: NodeId, incarnation: Incarnation) -> None:
        """Forget what the node said in earlier lives."""
        self._toggle(node)
        for kind in _KINDS:
            held = self._held.get((node, kind))
            if held and held.record.incarnation < incarnation:
                del self._held[node, kind]
        self._toggle(node)

    def bury(self, node: NodeId, incarnation: Incarnation, *, has_left: bool = False) -> None:
        if has_left:
            self._departed.add(node)
        if node not in self._buried:
            self._toggle(node)
        self._buried[node] = incarnation
        self._add(node)

    def unbury(self, node: NodeId) -> None:
        self._departed.discard(node)
        if self._buried.pop(node, None) is not None:
            self._toggle(node)

    def forget(self, node: NodeId) -> None:
        self.bury(node, Incarnation(0))
        del self._buried[node]
        self._departed.discard(node)
        for kind in _KINDS:
            self._held.pop((node, kind), None)
        del self._buckets[node]
        self._ordered = None

    def state_hash(self) -> bytes:
        """HASH_BYTES over the versions of all records of nodes that are not buried."""
        return self._hash.to_bytes(HASH_BYTES, "big")

    def summary(self, bucket_count: int = 0) -> bytes:
        """The hashes of so many buckets; 0: as many as the number of nodes asks for."""
        count = bucket_count or buckets.division(len(self._buckets))
        return buckets.coarsened(self._hashes, count)

    def digests(self, *, reply: bool, mask: bytes = b"") -> tuple[Digest, ...]:
        """What is held, tombstones included, in as many parts as the wire's limits ask for.

        `mask`: only of the nodes in these buckets.
        """
        nodes = [node for node in self._nodes() if buckets.holds(mask, self._buckets[node])]
        parts = []
        for first in range(0, max(1, len(nodes)), DIGEST_NODES_MAX):
            inside = nodes[first : first + DIGEST_NODES_MAX]
            rest = nodes[first + DIGEST_NODES_MAX :]
            entries = tuple(entry for node in inside for entry in self._entries(node))
            start = inside[0] if first else ""
            parts.append(Digest(entries, reply, start, rest[0] if rest else "", mask))
        return tuple(parts)

    def compare(self, digest: Digest) -> Comparison:
        """Raises RemoteProtocolError for a malformed digest."""
        buckets.check_mask(digest.buckets)
        theirs = {(entry.node, entry.kind): entry for entry in digest.entries}
        newer: list[SignedRecord] = []
        for node in self._nodes():
            if node in self._buried or not self._is_spoken_of(node, digest):
                continue
            for record in self.records_of(node):
                entry = theirs.get((node, record.kind))
                if not entry or _age(record) > _age(entry):
                    newer.append(record)
        tombs = tuple(e for e in digest.entries if e.sequence >= TOMBSTONE_SEQUENCE)
        living = [e for e in digest.entries if e.sequence < TOMBSTONE_SEQUENCE]
        here = {e.node for e in living if e.incarnation <= self._buried.get(e.node, -1)}
        ahead = {buckets.bucket_of(e.node) for e in living if self._is_behind(e)}
        behind = buckets.mask_of(ahead) if ahead else b""
        return Comparison(tuple(newer), tombs, tuple(sorted(here)), behind)

    def _is_spoken_of(self, node: NodeId, digest: Digest) -> bool:
        if not _within(node, digest.start, digest.stop):
            return False
        return buckets.holds(digest.buckets, self._buckets[node])

    def _is_behind(self, entry: DigestEntry) -> bool:
        if entry.incarnation <= self._buried.get(entry.node, -1):
            return False
        held = self._held.get((entry.node, entry.kind))
        return held is None or _age(held.record) < _age(entry)

    def _add(self, node: NodeId) -> None:
        if node not in self._buckets:
            self._buckets[node] = buckets.bucket_of(node)
            self._ordered = None

    def _nodes(self) -> list[NodeId]:
        if self._ordered is None:
            self._ordered = sorted(self._buckets)
        return self._ordered

    def _entries(self, node: NodeId) -> Iterator[DigestEntry]:
        buried = self._buried.get(node)
        if buried is not None:
            sequence = DEPARTED_SEQUENCE if node in self._departed else TOMBSTONE_SEQUENCE
            yield DigestEntry(node, RecordKind.STATIC, buried, sequence)
            return
        for record in self.records_of(node):
            yield DigestEntry(node, record.kind, record.incarnation, record.sequence)

    def _toggle(self, node: NodeId) -> None:
        """Take the node's records out of the hash, or back in; called in pairs around a change."""
        if node in self._buried:
            return
        for kind in _KINDS:
            held = self._held.get((node, kind))
            if held:
                self._hash ^= held.fingerprint
                self._hashes[self._buckets[node]] ^= held.fingerprint


def _age(said: SignedRecord | DigestEntry) -> tuple[int, int]:
    """`Version.key` without making a `Version`: this is asked for every record that comes."""
    return (said.incarnation, said.sequence)


def _within(node: NodeId, start: str, stop: str) -> bool:
    return start <= node and (not stop or node < stop)


def _fingerprint(node: NodeId, record: SignedRecord) -> int:
    text = f"{node} {record.kind} {record.incarnation} {record.sequence}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest(), "big")
