"""Every message of the wire, its number, its lane and its limits.

Numbers are only ever appended; fields are appended with a default (see `shapes`). A message is
framed as

    number  u8 | head length  u16 | head: msgpack array of the fields | payload: raw bytes

on peer links (inside one AEAD record) and on the socketpair between daemon and worker alike.
Only messages that declare a `payload` field may carry payload bytes.

Those about sessions stand in `session_messages`, those about weights in `weight_messages`, those
about relayed links in `relay_messages` and about channels in `channel_messages`, those between a
daemon and its worker in `worker_messages`, what all are made of in `message_base`; all names
are imported from here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from swarm import shapes
from swarm.channel_messages import ChannelAnswer as ChannelAnswer
from swarm.channel_messages import ChannelCandidate as ChannelCandidate
from swarm.channel_messages import ChannelEnd as ChannelEnd
from swarm.channel_messages import ChannelOffer as ChannelOffer
from swarm.channel_messages import ChannelRefused as ChannelRefused
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.key_messages import KEY_SECRET_BYTES as KEY_SECRET_BYTES
from swarm.key_messages import KeyNotice as KeyNotice
from swarm.key_messages import OlderKey as OlderKey
from swarm.message_base import FailureCode as FailureCode
from swarm.message_base import Lane as Lane
from swarm.message_base import Message as Message
from swarm.message_base import RowType as RowType
from swarm.message_base import StepKind as StepKind
from swarm.relay_messages import TICKET_BYTES as TICKET_BYTES
from swarm.relay_messages import RelayLeg as RelayLeg
from swarm.relay_messages import RelayOffer as RelayOffer
from swarm.relay_messages import RelayOpen as RelayOpen
from swarm.relay_messages import RelayRefused as RelayRefused
from swarm.session_messages import BANNED_IDS_MAX as BANNED_IDS_MAX
from swarm.session_messages import BIAS_MAX as BIAS_MAX
from swarm.session_messages import GUIDE_BYTES_MAX as GUIDE_BYTES_MAX
from swarm.session_messages import HISTORY_PIECE_BYTES as HISTORY_PIECE_BYTES
from swarm.session_messages import RECEIPTS_MAX as RECEIPTS_MAX
from swarm.session_messages import SAMPLING_LEVEL as SAMPLING_LEVEL
from swarm.session_messages import STOP_IDS_MAX as STOP_IDS_MAX
from swarm.session_messages import Credit as Credit
from swarm.session_messages import Gap as Gap
from swarm.session_messages import History as History
from swarm.session_messages import HopFailed as HopFailed
from swarm.session_messages import HopTimes as HopTimes
from swarm.session_messages import MirrorTo as MirrorTo
from swarm.session_messages import Open as Open
from swarm.session_messages import Opened as Opened
from swarm.session_messages import Progress as Progress
from swarm.session_messages import Receipt as Receipt
from swarm.session_messages import Receipts as Receipts
from swarm.session_messages import RefusalCode as RefusalCode
from swarm.session_messages import Refused as Refused
from swarm.session_messages import Release as Release
from swarm.session_messages import Resume as Resume
from swarm.session_messages import ServedReceipt as ServedReceipt
from swarm.session_messages import SessionProgress as SessionProgress
from swarm.session_messages import Step as Step
from swarm.session_messages import Token as Token
from swarm.terms import (
    Address,
    Incarnation,
    ModelId,
    NodeId,
)
from swarm.weight_messages import SLICE_BYTES as SLICE_BYTES
from swarm.weight_messages import Holding as Holding
from swarm.weight_messages import HoldingRequest as HoldingRequest
from swarm.weight_messages import PieceFault as PieceFault
from swarm.weight_messages import PieceRefused as PieceRefused
from swarm.weight_messages import PieceRequest as PieceRequest
from swarm.weight_messages import PieceSlice as PieceSlice
from swarm.worker_messages import KV_BLOCK_TOKENS as KV_BLOCK_TOKENS
from swarm.worker_messages import PREFIX_HASH_BYTES as PREFIX_HASH_BYTES
from swarm.worker_messages import Begin as Begin
from swarm.worker_messages import End as End
from swarm.worker_messages import Inspect as Inspect
from swarm.worker_messages import Inspected as Inspected
from swarm.worker_messages import Load as Load
from swarm.worker_messages import Loaded as Loaded
from swarm.worker_messages import LoadProgress as LoadProgress
from swarm.worker_messages import Ran as Ran
from swarm.worker_messages import Recall as Recall
from swarm.worker_messages import Run as Run
from swarm.worker_messages import RunFailed as RunFailed
from swarm.worker_messages import SpeedReport as SpeedReport
from swarm.worker_messages import Unload as Unload
from swarm.worker_messages import WorkerFailed as WorkerFailed

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
"""The range of protocol versions this build speaks; two nodes use the highest both know."""

CONTROL_FRAME_LIMIT = 64 * 1024
"""Plaintext bytes of one control-lane message."""
DATA_FRAME_LIMIT = 8 * 1024 * 1024 + 1024
"""Plaintext bytes of one data-lane message: rows of a chunk are cut to fit 8 MiB."""
BULK_FRAME_LIMIT = 128 * 1024 + 1024
"""Plaintext bytes of one bulk-lane message."""
RELAY_FRAME_LIMIT = 256
"""Plaintext bytes of the one message of a relay leg."""
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


@dataclass(frozen=True, slots=True)
class DialBack(Message):
    """Please connect to `port` of the host that you see me at, and say whether that worked.

    `swarm doctor` asks it on a connection of its own; answered by a DialedBack, or, by a node that
    is asked too often, not at all.
    """

    NUMBER: ClassVar[int] = 7
    port: int


@dataclass(frozen=True, slots=True)
class DialedBack(Message):
    """`wall_time_s` is the sender's clock, seconds since 1970; 0 where it has none to show."""

    NUMBER: ClassVar[int] = 8
    reached: bool
    cause: str
    wall_time_s: float


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


# ---------------------------------------------------------------- small files of a model


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
    Ping, Pong, GoodputProbe, GoodputEcho, Goodbye, KeyInUse, DialBack, DialedBack,
    Heartbeat, Records, Digest, Suspicion, Verdict, Summary, ProbeRequest, ProbeAnswer,
    Open, Opened, Refused, Resume, Release, Credit, HopFailed, Progress, Gap, Token, HopTimes,
    MirrorTo, History, Receipt, Receipts, Step, FileRequest, FileChunk,
    HoldingRequest, Holding, PieceRequest, PieceRefused, PieceSlice,
    RelayOpen, RelayOffer, RelayRefused, RelayLeg, KeyNotice,
    ChannelOffer, ChannelAnswer, ChannelRefused,
)  # fmt: skip
_WORKER_KINDS: tuple[type[Message], ...] = (
    Inspect, Inspected, Load, LoadProgress, Loaded, WorkerFailed,
    Begin, Run, Ran, RunFailed, End, SpeedReport, Recall, Unload,
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
