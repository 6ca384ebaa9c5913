"""Messages between a daemon and its worker, over their socketpair.

Same shapes and same numbering as the wire's; import these names from `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.message_base import FailureCode, Lane, Message, RowType, StepKind
from swarm.terms import (
    LayerRange,
    ModelId,
    ModelSpec,
    NumericClass,
    SampledToken,
    Sampling,
    SessionId,
    ShardSpeed,
)

TOP_LOGPROBS_MAX = 20
"""Alternatives of one token: as many as OpenAI's API allows to ask for."""
SAMPLED_ROWS_MAX = 128
"""Tokens in one `Ran`; with all their alternatives they stay below 64 KiB. Honest steps sample one
row, or a small bundle in a rebuild."""
KV_BLOCK_TOKENS = 32
"""Positions of one block, on every node: prefix hashes of all hops of a route must meet."""
PREFIX_HASH_BYTES = 16
RUN_ROWS_MAX = 4096
"""Rows of one `Run`: many times an honest chunk, and little enough to be computed at once."""


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
    path: str = ""
    """The path that was asked for in `Inspect`."""
    memory_bytes: int = 0
    """What weights, KV and activations may take on the worker's device; 0: not known."""


@dataclass(frozen=True, slots=True)
class Load(Message):
    NUMBER: ClassVar[int] = 102
    path: str
    model_id: ModelId
    layers: LayerRange
    embed: bool
    head: bool
    kv_blocks: int = 0
    """Blocks of the pool to make, `KV_BLOCK_TOKENS` positions of all these layers each."""


@dataclass(frozen=True, slots=True)
class Unload(Message):
    """The shard of a model is needed no more; its sessions end. No answer."""

    NUMBER: ClassVar[int] = 113
    model_id: ModelId


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
    kv_blocks: int = 0
    """Blocks of the pool that was made; 0: sessions keep a cache of their own each."""
    prefix_unit: int = 0
    """A session may start at multiples of this position from blocks of another; 0: never."""
    reuses_generated: bool = False
    """Decode rows have the bits that the same positions of a prompt have: blocks of an answer serve
    as a prefix too."""
    guides: bool = False
    """The head can follow guides."""


@dataclass(frozen=True, slots=True)
class WorkerFailed(Message):
    """Worker to daemon: `Inspect` or `Load` of `path` could not be done; one plain sentence."""

    NUMBER: ClassVar[int] = 105
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Begin(Message):
    """Daemon to worker: a session starts (again, if it is known), from an empty KV or a prefix."""

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
    blocks: bytes = b""
    """[count] int32 little endian: the first blocks of the session's table."""
    kv_length: int = 0
    """Positions that are in those blocks already."""
    hop_count: int = 1


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
    blocks: bytes = b""
    """[count] int32 little endian: appended to the session's table before these rows run."""
    is_background: bool = False
    """Runs when nothing else waits: nobody reads its result now."""
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


@dataclass(frozen=True, slots=True)
class Recall(Message):
    """Daemon to worker, after `Begin` and before rows are sampled: what sampling depends on.

    Repeated when a session goes on under another route; what it says then agrees with what is
    known, and may end before that.

    payload  the guide's source, UTF-8, then ids [count] int32 little endian
    """

    NUMBER: ClassVar[int] = 112
    LANE: ClassVar[Lane] = Lane.DATA
    session: SessionId
    generation: int
    guide_bytes: int
    position: int
    """Of the first id."""
    payload: bytes | memoryview = b""
