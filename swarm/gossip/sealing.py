"""Signing and checking records: what gossip needs of identities, handed in as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm import shapes
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.gossip.content import check_content
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.messages import RecordKind, SignedRecord
from swarm.terms import INCARNATION_LIMIT, Incarnation, NodeId

RECORD_DOMAIN = b"swarm gossip record 1"
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEQUENCE_LIMIT = 1 << 53

Content = StaticRecord | DynamicRecord
_BODIES: dict[RecordKind, type[Content]] = {
    RecordKind.STATIC: StaticRecord,
    RecordKind.DYNAMIC: DynamicRecord,
}


def content_of(record: SignedRecord) -> Content:
    """The decoded body, or RemoteProtocolError. `content.check_content` judges its values."""
    return shapes.unpack(_BODIES[record.kind], record.body)


def checked_content_of(record: SignedRecord) -> Content:
    """The same, of values within their bounds."""
    content = content_of(record)
    check_content(content)
    return content


@dataclass(frozen=True, slots=True)
class Signer:
    """This node's key and the way to check everybody's, for one swarm.

    sign        signs bytes with the node's Ed25519 key, 64 bytes
    verify      (public key, data, signature) -> whether it fits; never raises
    node_id_of  the NodeId of a public key
    read        the body of a record, or RemoteProtocolError
    """

    swarm_tag: bytes
    public_key: bytes
    sign: Callable[[bytes], bytes]
    verify: Callable[[bytes, bytes, bytes], bool]
    node_id_of: Callable[[bytes], NodeId]
    read: Callable[[SignedRecord], Content] = checked_content_of


@dataclass(frozen=True, slots=True)
class _Signed:
    """What a signature covers: the domain, the swarm, and every other field of the record."""

    domain: bytes
    swarm_tag: bytes
    public_key: bytes
    kind: RecordKind
    incarnation: Incarnation
    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Version:
    """Place of a record among all its author wrote; the larger one wins. Compared by `key`."""

    incarnation: Incarnation
    sequence: int

    @property
    def key(self) -> tuple[int, int]:
        return (self.incarnation, self.sequence)


def version_of(record: SignedRecord) -> Version:
    return Version(record.incarnation, record.sequence)


def seal(signer: Signer, content: Content, version: Version, body_bytes_max: int) -> SignedRecord:
    """Sign a record of our own. Raises LocalProtocolError when its body is too large to send."""
    kind = RecordKind.STATIC if isinstance(content, StaticRecord) else RecordKind.DYNAMIC
    body = shapes.pack(content)
    if len(body) > body_bytes_max:
        raise LocalProtocolError(f"a record body of {len(body)} bytes, limit {body_bytes_max}")
    data = _signed_bytes(signer, signer.public_key, kind, version, body)
    return SignedRecord(
        signer.public_key, kind, version.incarnation, version.sequence, body, signer.sign(data)
    )


def check_shape(record: SignedRecord, body_bytes_max: int) -> None:
    """Raise RemoteProtocolError unless every field is within its limits."""
    if len(record.public_key) != PUBLIC_KEY_BYTES or len(record.signature) != SIGNATURE_BYTES:
        raise RemoteProtocolError("a record with a malformed key or signature")
    if len(record.body) > body_bytes_max:
        raise RemoteProtocolError(f"a record body of {len(record.body)} bytes")
    check_incarnation(record.incarnation)
    if not 1 <= record.sequence < SEQUENCE_LIMIT:
        raise RemoteProtocolError("a record sequence out of range")


def check_incarnation(incarnation: int) -> None:
    if not 1 <= incarnation < INCARNATION_LIMIT:
        raise RemoteProtocolError("an incarnation out of range")


def check_signature(signer: Signer, record: SignedRecord) -> None:
    """Raise RemoteProtocolError unless the record's own key signed it for this swarm."""
    data = _signed_bytes(signer, record.public_key, record.kind, version_of(record), record.body)
    if not signer.verify(record.public_key, data, record.signature):
        raise RemoteProtocolError("a record with a forged signature")


def _signed_bytes(
    signer: Signer, public_key: bytes, kind: RecordKind, version: Version, body: bytes
) -> bytes:
    return shapes.pack(
        _Signed(
            RECORD_DOMAIN,
            signer.swarm_tag,
            public_key,
            kind,
            version.incarnation,
            version.sequence,
            body,
        )
    )
