"""Every message of the wire, its number, its lane and its limits.

Numbers are only ever appended; fields are appended with a default (see `shapes`). A message is
framed as

    number  u8 | head length  u16 | head: msgpack array of the fields | payload: raw bytes

on peer links (inside one AEAD record) and on the socketpair between daemon and worker alike.
Only messages that declare a `payload` field may carry payload bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, ClassVar

from swarm import shapes
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.terms import (
    Epoch,
    Incarnation,
    LayerRange,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    SampledToken,
    Sampling,
    SessionId,
    ShardSpeed,
)

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""The range of protocol versions this build speaks; two nodes use the highest both know."""

CONTROL_FRAME_LIMIT = 64 * 1024
"""Plaintext bytes of one control-lane message."""
DATA_FRAME_LIMIT = 8 * 1024 * 1024 + 1024
"""Plaintext bytes of one data-lane message: rows of a chunk are cut to fit 8 MiB."""
PAYLOAD_LIMIT = 8 * 1024 * 1024

_PREFIX = struct.Struct(">BH")


class Lane(Enum):
    """Control and bulk travel on two connections, so that a prefill never delays a heartbeat."""

    CONTROL = "control"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages."""

    NUMBER: ClassVar[int]
    LANE: ClassVar[Lane] = Lane.CONTROL


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
    """Sent on an idle control lane. Unequal state hashes that last start an anti-entropy pull."""

    NUMBER: ClassVar[int] = 10
    state_hash: bytes
    incarnation: Incarnation


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
    """

    NUMBER: ClassVar[int] = 12
    entries: tuple[DigestEntry, ...]
    reply: bool


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
    """Hop to origin: not here. `peer` names the unreachable neighbour for NO_LINK."""

    NUMBER: ClassVar[int] = 32
    session: SessionId
    epoch: Epoch
    code: RefusalCode
    detail: str
    peer: NodeId | None = None


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


class FailureCode(IntEnum):
    LINK_DOWN = 1
    SILENT = 2
    WORKER_LOST = 3
    STEP_FAILED = 4
    OUT_OF_MEMORY = 5
    LEAVING = 6


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


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """Proof of life on a link in use, at most every 25 ms, when nothing else was sent."""

    NUMBER: ClassVar[int] = 37
    sessions: tuple[SessionProgress, ...]


@dataclass(frozen=True, slots=True)
class Gap(Message):
    """Hop to origin: a step began at `position` but only `kv_length` positions are held."""

    NUMBER: ClassVar[int] = 38
    session: SessionId
    epoch: Epoch
    position: int
    kv_length: int


@dataclass(frozen=True, slots=True)
class Token(Message):
    """Head to origin: the token that the row at `token.position - 1` gave."""

    NUMBER: ClassVar[int] = 39
    session: SessionId
    epoch: Epoch
    token: SampledToken


# ---------------------------------------------------------------- data lane


class StepKind(IntEnum):
    """PREFILL rows go through the model together; DECODE rows one position at a time."""

    PREFILL = 1
    DECODE = 2


class RowType(IntEnum):
    """Element type of the rows in a step's payload. IDS are int32 token ids (to the embedding)."""

    IDS = 0
    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3


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


# ---------------------------------------------------------------- daemon <-> worker


@dataclass(frozen=True, slots=True)
class Inspect(Message):
    """Daemon to worker: identify the checkpoint at `path` (a folder or a GGUF file)."""

    NUMBER: ClassVar[int] = 100
    path: str
    name: str
    cache_dir: str
    """Where the manifest of an unchanged checkpoint is kept between starts."""


@dataclass(frozen=True, slots=True)
class Inspected(Message):
    """The model's identity, and what one of its layers costs in memory."""

    NUMBER: ClassVar[int] = 101
    spec: ModelSpec
    layer_weight_bytes: int
    """Largest layer, in the dtype asked for."""
    embed_weight_bytes: int
    head_weight_bytes: int
    kv_bytes_per_token_layer: int
    manifest_path: str


@dataclass(frozen=True, slots=True)
class Load(Message):
    NUMBER: ClassVar[int] = 102
    path: str
    model_id: ModelId
    layers: LayerRange
    embed: bool
    head: bool


@dataclass(frozen=True, slots=True)
class LoadProgress(Message):
    NUMBER: ClassVar[int] = 103
    fraction: float
    what: str


@dataclass(frozen=True, slots=True)
class Loaded(Message):
    NUMBER: ClassVar[int] = 104
    model_id: ModelId
    layers: LayerRange
    numeric_class: NumericClass
    kv_bytes_per_token_layer: int
    row_type: RowType
    row_bytes: int
    speed: ShardSpeed
    device: str


@dataclass(frozen=True, slots=True)
class WorkerFailed(Message):
    """Worker to daemon: `Inspect` or `Load` of `path` could not be done; one plain sentence."""

    NUMBER: ClassVar[int] = 105
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Begin(Message):
    """Daemon to worker: a session starts from an empty KV (again, if it is known)."""

    NUMBER: ClassVar[int] = 106
    session: SessionId
    generation: int
    """Counts the beginnings of a session, so that results of an older one are told apart."""
    model_id: ModelId
    layers: LayerRange
    embed: bool
    head: bool
    prompt_count: int
    position_limit: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Run(Message):
    """Daemon to worker: run rows [position, position + count) of a session.

    `sample_from`: a head samples each row at or above this position.
    """

    NUMBER: ClassVar[int] = 107
    LANE: ClassVar[Lane] = Lane.DATA
    session: SessionId
    generation: int
    position: int
    count: int
    kind: StepKind
    row_type: RowType
    sample_from: int
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class Ran(Message):
    """Worker to daemon: output rows of a run (not for a head), or the tokens it sampled.

    payload  [count, E] of `row_type`; empty for a head
    """

    NUMBER: ClassVar[int] = 108
    LANE: ClassVar[Lane] = Lane.DATA
    session: SessionId
    generation: int
    position: int
    count: int
    kind: StepKind
    row_type: RowType
    compute_s: float
    tokens: tuple[SampledToken, ...]
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class RunFailed(Message):
    """Worker to daemon: this session's KV is lost; the worker itself goes on."""

    NUMBER: ClassVar[int] = 109
    session: SessionId
    generation: int
    code: FailureCode
    detail: str


@dataclass(frozen=True, slots=True)
class End(Message):
    """Daemon to worker: forget the session and free its KV."""

    NUMBER: ClassVar[int] = 110
    session: SessionId


@dataclass(frozen=True, slots=True)
class SpeedReport(Message):
    """Worker to daemon, now and then: its speed as its own steps show it."""

    NUMBER: ClassVar[int] = 111
    speed: ShardSpeed
    kv_used_bytes: int
    session_count: int


_PEER_KINDS: tuple[type[Message], ...] = (
    Ping, Pong, GoodputProbe, GoodputEcho, Goodbye,
    Heartbeat, Records, Digest, Suspicion, Verdict, ProbeRequest, ProbeAnswer,
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
    return [start, payload] if len(payload) else [start]


def decode(
    frame: bytes | bytearray | memoryview, kinds: dict[int, type[Message]], lane: Lane | None
) -> Message | None:
    """The message in a frame; None for a number that a newer peer may know and we do not.

    `lane`: the lane it came on, or None where one pipe carries both (worker, tests).
    Raises RemoteProtocolError for everything else that does not fit. The payload is copied out,
    so `frame` may be reused at once.
    """
    view = memoryview(frame)
    if len(view) < _PREFIX.size:
        raise RemoteProtocolError(f"frame of {len(view)} bytes")
    number, head_length = _PREFIX.unpack_from(view)
    kind = kinds.get(number)
    if kind is None:
        return None
    if lane is not None and kind.LANE is not lane:
        raise RemoteProtocolError(f"{kind.__name__} on the {lane.value} lane")
    body = view[_PREFIX.size :]
    if head_length > len(body):
        raise RemoteProtocolError(f"{kind.__name__} is cut short")
    message = shapes.unpack(kind, body[:head_length])
    payload = body[head_length:]
    return _with_payload(message, payload) if len(payload) else message


def _with_payload(message: Message, payload: memoryview) -> Message:
    if not hasattr(message, "payload"):
        raise RemoteProtocolError(f"{type(message).__name__} carries no payload")
    target: Any = message
    object.__setattr__(target, "payload", bytes(payload))
    return message
