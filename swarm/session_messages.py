"""Messages about sessions: how a route is opened, fed, and let go.

Same shapes and same numbering as the other peer messages; import these names from `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from swarm.message_base import FailureCode, Lane, Message, RowType, StepKind
from swarm.terms import (
    Epoch,
    LayerRange,
    ModelId,
    NodeId,
    SampledToken,
    Sampling,
    SessionId,
    StepTimes,
)


class RefusalCode(IntEnum):
    KV_EXHAUSTED = 1
    SESSION_LIMIT = 2
    NO_SHARD = 3
    NO_LINK = 4
    OLD_EPOCH = 5
    LEAVING = 6
    UNFIT = 7
    """This head cannot choose tokens in the way that is asked for."""


SAMPLING_LEVEL = 1
"""What the head of this build carries out: 0 is temperature, top_k, top_p, seed and logprobs; 1 is
all of `Sampling`."""
HISTORY_PIECE_BYTES = 32 * 1024
"""Of one `History`: far below what a control frame may have, so that signs of life pass between."""
GUIDE_BYTES_MAX = 128 * 1024
"""Of a guide's source. One of this size takes tenths of a second to compile."""
BIAS_MAX = 300
"""Tokens with a bias: as many as OpenAI's API takes. This and the two below, together with the
longest chain of hashes, keep `Open` within a frame."""
STOP_IDS_MAX = 128
RECEIPTS_MAX = 64
"""Of one `Receipts`, some 250 bytes each."""
BANNED_IDS_MAX = 256
"""Of all banned sequences together."""


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
    """Positions of the prompt and all tokens that may be generated."""
    sampling: Sampling
    hop_count: int = 1
    """Hops of the route: decode rows of many sessions go in so many micro-batches."""
    prefix: bytes = b""
    """Chain hashes of whole blocks of the sequence so far, its last row left out,
    `PREFIX_HASH_BYTES` each, first block first; empty asks for no reuse. Salted with what the rows
    depend on upstream of this hop."""
    length: int = 0
    """Of the sequence so far: a session that went on elsewhere needs room for all of it."""
    standby: bool = False
    """Follow the session: rows will come and nothing is to be sent, until a later `Open` makes this
    hop one of the route."""


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
    cached_length: int = 0
    """A session that holds nothing may start here at any multiple of `cache_unit` up to this
    position, since so much of its sequence is in the KV already."""
    cache_unit: int = 0
    sampling_level: int = 0
    """Of a head: what of `Open.sampling` it carries out, see `SAMPLING_LEVEL`."""


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
    and rebuilds. A hop that holds nothing may be told a position that its `Opened` offered
    (`cached_length`): it starts there, with the prefix it has. It sends its output downstream
    from position `send_from` on, first from its outbox, then as rows are computed.
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
    prefix: bytes = b""
    """Chain hashes of the whole sequence's whole blocks, as in `Open`, so that a next turn may
    reuse what was generated too. Empty: keep what the prompt's hashes name."""


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


@dataclass(frozen=True, slots=True)
class HopTimes(Message):
    """Hop to origin, now and then: what this session's steps took here, summed over the epoch.

    For people only: nothing is decided by it.
    """

    NUMBER: ClassVar[int] = 40
    session: SessionId
    epoch: Epoch
    prompt: StepTimes
    """Of prefill steps."""
    tokens: StepTimes
    """Of decode steps, those of a rebuild too."""


@dataclass(frozen=True, slots=True)
class MirrorTo(Message):
    """Origin to hop: send the rows of this session from `position` on to a standby as well.

    Behind everything else, in whole chunks and bundles, the newest row never. Ends with the epoch.
    A hop that has no such rows any more says `HopFailed` of the standby.
    """

    NUMBER: ClassVar[int] = 41
    session: SessionId
    epoch: Epoch
    to: NodeId
    position: int


@dataclass(frozen=True, slots=True)
class History(Message):
    """Origin to the head, before `Resume`: what sampling depends on beside the rows.

    Comes in pieces, in order: first the source of the guide, then the ids from the position on
    that the sampling asks for (0, or the first generated one) up to the last.
    """

    NUMBER: ClassVar[int] = 42
    session: SessionId
    epoch: Epoch
    guide: bytes
    """UTF-8, appended to the pieces before it."""
    position: int
    """Of the first of these ids."""
    ids: bytes
    """[count] int32 little endian"""


@dataclass(frozen=True, slots=True)
class Receipt(Message):
    """Origin to a node that served it: its signed word for what was run for it on one UTC day.

    `layer_tokens`: positions times layers, of the whole day so far; a later receipt replaces it.
    `day`: days since 1970. The signature covers the receiver's NodeId and the swarm's tag too.
    """

    NUMBER: ClassVar[int] = 43
    public_key: bytes
    model_id: ModelId
    day: int
    layer_tokens: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class ServedReceipt:
    """A receipt as others may read it too: with the name of the node that it is for."""

    server: NodeId
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Receipts(Message):
    """What the sender knows of what nodes ran for others: receipts by the word of their origins.

    No more than `RECEIPTS_MAX`, newest last; sent now and then to every peer.
    """

    NUMBER: ClassVar[int] = 44
    entries: tuple[ServedReceipt, ...]


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
