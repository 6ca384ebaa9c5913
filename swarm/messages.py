"""Every message of the wire, its number, its lane and its limits.

Numbers are only ever appended; fields are appended with a default (see `shapes`). A message is
framed as

    number  u8 | head length  u16 | head: msgpack array of the fields | payload: raw bytes

on peer links (inside one AEAD record) and on the socketpair between daemon and worker alike.
Only messages that declare a `payload` field may carry payload bytes.

The messages between a daemon and its worker stand in `worker_messages`, what both are made of in
`message_base`; all names are imported from here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from swarm import shapes
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.message_base import FailureCode as FailureCode
from swarm.message_base import Lane as Lane
from swarm.message_base import Message as Message
from swarm.message_base import RowType as RowType
from swarm.message_base import StepKind as StepKind
from swarm.terms import (
    Address,
    Epoch,
    Incarnation,
    LayerRange,
    ModelId,
    NodeId,
    SampledToken,
    Sampling,
    SessionId,
)
from swarm.worker_messages import Begin as Begin
from swarm.worker_messages import End as End
from swarm.worker_messages import Inspect as Inspect
from swarm.worker_messages import Inspected as Inspected
from swarm.worker_messages import Load as Load
from swarm.worker_messages import Loaded as Loaded
from swarm.worker_messages import LoadProgress as LoadProgress
from swarm.worker_messages import Ran as Ran
from swarm.worker_messages import Run as Run
from swarm.worker_messages import RunFailed as RunFailed
from swarm.worker_messages import SpeedReport as SpeedReport
from swarm.worker_messages import WorkerFailed as WorkerFailed

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""The range of protocol versions this build speaks; two nodes use the highest both know."""

CONTROL_FRAME_LIMIT = 64 * 1024
"""Plaintext bytes of one control-lane message."""
DATA_FRAME_LIMIT = 8 * 1024 * 1024 + 1024
"""Plaintext bytes of one data-lane message: rows of a chunk are cut to fit 8 MiB."""
PAYLOAD_LIMIT = 8 * 1024 * 1024

_PREFIX = struct.Struct(">BH")
_PREFIX_BYTES = _PREFIX.size


# ---------------------------------------------------------------- link upkeep


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Answered at once by a Pong with the same stamp (an opaque number of the sender)."""

    NUMBER: ClassVar[int] = 1
    stamp: int


@dataclass(frozen=True, slots=True)
class Pong(Message):
    NUMBER: ClassVar[int] = 2
    stamp: int


@dataclass(frozen=True, slots=True)
class GoodputProbe(Message):
    """Bulk bytes that measure a data lane; answered by GoodputEcho on the control lane."""

    NUMBER: ClassVar[int] = 3
    LANE: ClassVar[Lane] = Lane.DATA
    stamp: int
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class GoodputEcho(Message):
    NUMBER: ClassVar[int] = 4
    stamp: int


@dataclass(frozen=True, slots=True)
class Goodbye(Message):
    """The sender is about to close the link on purpose; `reason` is for the log."""

    NUMBER: ClassVar[int] = 5
    reason: str


@dataclass(frozen=True, slots=True)
class KeyInUse(Message):
    """A living node at `address` shows the receiver's key, as another start of it (a copied home).

    Nothing is believed of it: the receiver goes and looks. Port 0: that node takes no connections.
    """

    NUMBER: ClassVar[int] = 6
    address: Address


# ---------------------------------------------------------------- gossip


class RecordKind(IntEnum):
    STATIC = 1
    DYNAMIC = 2


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """An entry about its own author. `signature` covers all other fields under a domain tag."""

    public_key: bytes
    kind: RecordKind
    incarnation: Incarnation
    sequence: int
    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Sent on an idle control lane. Unequal state hashes that last start an anti-entropy pull.

    With `reply` set it is a probe: the receiver answers at once with a Heartbeat of its own.
    """

    NUMBER: ClassVar[int] = 10
    state_hash: bytes
    incarnation: Incarnation
    reply: bool = False


@dataclass(frozen=True, slots=True)
class Records(Message):
    NUMBER: ClassVar[int] = 11
    records: tuple[SignedRecord, ...]


@dataclass(frozen=True, slots=True)
class DigestEntry:
    """The newest version held of one node's record, or its tombstone's incarnation."""

    node: NodeId
    kind: RecordKind
    incarnation: Incarnation
    sequence: int


@dataclass(frozen=True, slots=True)
class Digest(Message):
    """What the sender holds; the receiver answers with the Records that are newer at its side.

    With `reply` set, the receiver also sends its own digest back (once, without `reply`).
    A large digest travels in parts: this one speaks of the nodes in [start, stop) only, where
    an empty `stop` means no end, and of those only that fall into its `buckets`: a set of
    `Summary` buckets as bits of 32 bytes, lowest first; empty means all.
    """

    NUMBER: ClassVar[int] = 12
    entries: tuple[DigestEntry, ...]
    reply: bool
    start: str = ""
    stop: str = ""
    buckets: bytes = b""


@dataclass(frozen=True, slots=True)
class Suspicion(Message):
    """`accuser` could not reach `subject` at `incarnation`. The receiver probes for itself."""

    NUMBER: ClassVar[int] = 13
    subject: NodeId
    incarnation: Incarnation
    accuser: NodeId


@dataclass(frozen=True, slots=True)
class Verdict(Message):
    """The stored verdict on a node, also the answer to a stale 'alive'. `dead` or `left`."""

    NUMBER: ClassVar[int] = 14
    subject: NodeId
    incarnation: Incarnation
    left: bool


@dataclass(frozen=True, slots=True)
class Summary(Message):
    """Hashes, 4 bytes each, over the sender's records of the nodes in each bucket of node ids.

    Their number is a power of two up to 256. The receiver answers with its digest of the buckets
    that differ, if any do.
    """

    NUMBER: ClassVar[int] = 17
    hashes: bytes


@dataclass(frozen=True, slots=True)
class ProbeRequest(Message):
    """Please probe `subject` for me and say within the timeout whether it answers."""

    NUMBER: ClassVar[int] = 15
    subject: NodeId
    nonce: int


@dataclass(frozen=True, slots=True)
class ProbeAnswer(Message):
    NUMBER: ClassVar[int] = 16
    nonce: int
    reached: bool


# ---------------------------------------------------------------- sessions, control lane


class RefusalCode(IntEnum):
    KV_EXHAUSTED = 1
    SESSION_LIMIT = 2
    NO_SHARD = 3
    NO_LINK = 4
    OLD_EPOCH = 5
    LEAVING = 6


@dataclass(frozen=True, slots=True)
class Open(Message):
    """Origin to hop: reserve (or, under a higher epoch, keep) a session here.

    A hop that already holds the session for the same layers keeps its KV; for other layers it
    starts from nothing. Nothing runs before `Resume` of the same epoch.
    """

    NUMBER: ClassVar[int] = 30
    session: SessionId
    epoch: Epoch
    model_id: ModelId
    layers: LayerRange
    embed: bool
    head: bool
    previous: NodeId
    next: NodeId
    prompt_count: int
    position_limit: int
    """Positions to reserve KV for: the prompt and all tokens that may be generated."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Opened(Message):
    """Hop to origin: ready. Rows [outbox_start, kv_length) can be resent from here.

    For a head, the outbox holds the tokens it sampled.
    """

    NUMBER: ClassVar[int] = 31
    session: SessionId
    epoch: Epoch
    kv_length: int
    outbox_start: int


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Hop to origin: not here. `peer` names the unreachable neighbour for NO_LINK.

    `waited`: a link to it was dialled for, and did not come.
    """

    NUMBER: ClassVar[int] = 32
    session: SessionId
    epoch: Epoch
    code: RefusalCode
    detail: str
    peer: NodeId | None = None
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Resume(Message):
    """Origin to hop: start under this epoch.

    The hop must hold exactly `kv_length` positions, or be told 0: then it drops what it holds
    and rebuilds. It sends its output downstream from position `send_from` on, first from its
    outbox, then as rows are computed.
    """

    NUMBER: ClassVar[int] = 33
    session: SessionId
    epoch: Epoch
    kv_length: int
    send_from: int


@dataclass(frozen=True, slots=True)
class Release(Message):
    """Origin to hop: the session is over here; free everything."""

    NUMBER: ClassVar[int] = 34
    session: SessionId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """Hop to whoever feeds it: positions below `kv_length` are in the KV; send more."""

    NUMBER: ClassVar[int] = 35
    session: SessionId
    epoch: Epoch
    kv_length: int
    origin: NodeId = NodeId("")
    """Whose session it is; may be empty where the receiver is the origin (so too in `Gap`)."""


@dataclass(frozen=True, slots=True)
class HopFailed(Message):
    """Hop to origin: this session cannot go on through `node` (the sender or its neighbour)."""

    NUMBER: ClassVar[int] = 36
    session: SessionId
    epoch: Epoch
    node: NodeId
    code: FailureCode
    detail: str


@dataclass(frozen=True, slots=True)
class SessionProgress:
    session: SessionId
    kv_length: int
    pending_count: int
    """Positions that wait for, or are in, the worker."""
    is_yours: bool = False
    """The receiver is the session's origin: where it knows no such session, it releases it."""


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """Proof of life on a link in use, at most every 25 ms, when nothing else was sent."""

    NUMBER: ClassVar[int] = 37
    sessions: tuple[SessionProgress, ...]
    steps_done: int = 0
    """Steps that the sender's worker has finished since the node started, for whatever session:
    while it rises, the worker is busy and not stuck."""


@dataclass(frozen=True, slots=True)
class Gap(Message):
    """Rows from `position` on were sent or asked for; only `kv_length` positions are held here.

    To the origin, which then opens again; also to a feeder whose session is not known here.
    """

    NUMBER: ClassVar[int] = 38
    session: SessionId
    epoch: Epoch
    position: int
    kv_length: int
    origin: NodeId = NodeId("")


@dataclass(frozen=True, slots=True)
class Token(Message):
    """Head to origin: the token that the row at `token.position - 1` gave."""

    NUMBER: ClassVar[int] = 39
    session: SessionId
    epoch: Epoch
    token: SampledToken


# ---------------------------------------------------------------- data lane


@dataclass(frozen=True, slots=True)
class Step(Message):
    """Rows for positions [position, position + count) of one session.

    payload  IDS: [count] int32 little endian; else [count, E] of the row type, little endian
    """

    NUMBER: ClassVar[int] = 50
    LANE: ClassVar[Lane] = Lane.DATA
    session: SessionId
    epoch: Epoch
    position: int
    count: int
    kind: StepKind
    row_type: RowType
    payload: bytes | memoryview = b""
    origin: NodeId = NodeId("")
    """Ids of sessions are unique per origin only; may be empty where the sender is the origin."""


@dataclass(frozen=True, slots=True)
class FileRequest(Message):
    """Ask for a small text file of a model (tokenizer, config, manifest) from `offset` on."""

    NUMBER: ClassVar[int] = 60
    model_id: ModelId
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class FileChunk(Message):
    """A piece of such a file; `total` is its size, or -1 where the sender has no such file."""

    NUMBER: ClassVar[int] = 61
    LANE: ClassVar[Lane] = Lane.DATA
    model_id: ModelId
    name: str
    offset: int
    total: int
    payload: bytes | memoryview = b""


_PEER_KINDS: tuple[type[Message], ...] = (
    Ping, Pong, GoodputProbe, GoodputEcho, Goodbye, KeyInUse,
    Heartbeat, Records, Digest, Suspicion, Verdict, Summary, ProbeRequest, ProbeAnswer,
    Open, Opened, Refused, Resume, Release, Credit, HopFailed, Progress, Gap, Token,
    Step, FileRequest, FileChunk,
)  # fmt: skip
_WORKER_KINDS: tuple[type[Message], ...] = (
    Inspect, Inspected, Load, LoadProgress, Loaded, WorkerFailed,
    Begin, Run, Ran, RunFailed, End, SpeedReport,
)  # fmt: skip

PEER_MESSAGES: dict[int, type[Message]] = {kind.NUMBER: kind for kind in _PEER_KINDS}
WORKER_MESSAGES: dict[int, type[Message]] = {kind.NUMBER: kind for kind in _WORKER_KINDS}


def encode(message: Message) -> list[bytes | memoryview]:
    """The frame of a message as buffers to be written one after the other."""
    head = shapes.pack(message)
    if len(head) > 0xFFFF:
        raise LocalProtocolError(f"{type(message).__name__} head of {len(head)} bytes")
    start = _PREFIX.pack(message.NUMBER, len(head)) + head
    payload = getattr(message, "payload", b"")
    if len(payload) > PAYLOAD_LIMIT:
        raise LocalProtocolError(f"{type(message).__name__} payload of {len(payload)} bytes")
    return [start, payload] if payload else [start]


def decode(
    frame: bytes | bytearray | memoryview, kinds: dict[int, type[Message]], lane: Lane | None
) -> Message | None:
    """The message in a frame; None for a number that a newer peer may know and we do not.

    `lane`: the lane it came on, or None where one pipe carries both (worker, tests).
    Raises RemoteProtocolError for everything else that does not fit. The payload is copied out,
    so `frame` may be reused at once.
    """
    if len(frame) < _PREFIX_BYTES:
        raise RemoteProtocolError(f"frame of {len(frame)} bytes")
    number, head_length = _PREFIX.unpack_from(frame)
    kind = kinds.get(number)
    if kind is None:
        return None
    if lane is not None and kind.LANE is not lane:
        raise RemoteProtocolError(f"{kind.__name__} on the {lane.value} lane")
    head_stop = _PREFIX_BYTES + head_length
    if head_stop > len(frame):
        raise RemoteProtocolError(f"{kind.__name__} is cut short")
    message = shapes.unpack(kind, frame[_PREFIX_BYTES:head_stop])
    if head_stop == len(frame):
        return message
    return _with_payload(message, memoryview(frame)[head_stop:])


def _with_payload(message: Message, payload: memoryview) -> Message:
    if not hasattr(message, "payload"):
        raise RemoteProtocolError(f"{type(message).__name__} carries no payload")
    if len(payload) > PAYLOAD_LIMIT:
        raise RemoteProtocolError(f"{type(message).__name__} payload of {len(payload)} bytes")
    target: Any = message
    object.__setattr__(target, "payload", bytes(payload))
    return message
