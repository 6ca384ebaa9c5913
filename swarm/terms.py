"""The glossary as frozen types. Every other file uses these words, once each.

Pure leaf: imports nothing of the project but `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NewType

NodeId = NewType("NodeId", str)
"""32 base32 letters: BLAKE2b-160 of the node's Ed25519 public key."""

SessionId = NewType("SessionId", str)
"""16 hex digits drawn by the origin."""

ModelId = NewType("ModelId", str)
"""32 hex digits: a hash over config, tokenizer files and tensor manifest."""

Epoch = NewType("Epoch", int)
"""Rises by one with every (re-)route of a session; the first route has epoch 1."""

Incarnation = NewType("Incarnation", int)
"""Restart counter of a node, kept on its disk; also raised to refute a suspicion."""

INCARNATION_LIMIT = 1 << 53
"""Incarnations are at least 1 and below this: far above any honest count, far below what a
message can carry, so that raising one never overflows."""

NumericClass = NewType("NumericClass", str)
"""Names all that makes two workers bit-identical; equal strings give equal bits."""

SHORT_ID_LENGTH = 8


def short(identifier: str) -> str:
    """The first eight characters of an id, as logs and people see it."""
    return identifier[:SHORT_ID_LENGTH]


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Decoder layers [start, stop), 0-based and half-open."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"not a layer range: {self.start}:{self.stop}")

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, layer: int) -> bool:
        return self.start <= layer < self.stop

    def covers(self, other: LayerRange) -> bool:
        return self.start <= other.start and other.stop <= self.stop

    def overlaps(self, other: LayerRange) -> bool:
        return self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


Parts = tuple[LayerRange | None, ...]
"""Of a node's layers, those that lie on each of its devices; None: none of them."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP endpoint where a node may be reached. `host` is an IP literal or a name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


LAYERS_MAX = 1024
HIDDEN_MAX = 1 << 20
VOCAB_MAX = 1 << 22
CONTEXT_MAX = 1 << 26
EOS_IDS_MAX = 64
"""What a `ModelSpec` may say: nodes count up to these, and hang up on who announces more."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What every node must know of a model to route, tokenize and serve it."""

    model_id: ModelId
    name: str
    layer_count: int
    hidden_size: int
    vocab_size: int
    context_length: int
    """Positions the checkpoint was made for."""
    eos_ids: tuple[int, ...]
    has_text: bool
    """False when the checkpoint carries no tokenizer: then only token ids are served."""

    @property
    def layers(self) -> LayerRange:
        return LayerRange(0, self.layer_count)


class HubState(Enum):
    """How far a node is with a model of the Hugging Face hub."""

    WANTED = "wanted"
    FETCHING = "fetching"
    WHOLE = "whole"
    """All of it is on its disk, and being looked at."""
    HELD = "held"
    """It is known which model it is."""
    PAUSED = "paused"
    """It would not fetch it now, but may yet have it."""
    UNABLE = "unable"
    """The hub does not give it to this node."""


@dataclass(frozen=True, slots=True)
class HubShare:
    """What a node says of a model that its owner named as the hub does, `name` with its revision.

    model_id    empty until it is known
    done_bytes  while it is fetched: what others see it move by
    """

    name: str
    state: HubState
    model_id: ModelId
    done_bytes: int


class ShardState(Enum):
    """Life of a shard as its node announces it. An INTENDED one may still become another."""

    INTENDED = "intended"
    LOADING = "loading"
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What one node serves (or is about to serve) of one model."""

    model_id: ModelId
    layers: LayerRange
    embed: bool
    head: bool
    numeric_class: NumericClass
    state: ShardState
    kv_bytes_per_token_layer: int
    kv_capacity_bytes: int
    row_bytes: int
    """Bytes of one hidden state row as this shard sends it (hidden size x bytes per element)."""
    guides: bool = False
    """Its head can follow guides: it has the model's tokenizer."""
    next: LayerRange | None = None
    """What its node is about to serve instead."""
    room_layers: int = 0
    """Layers that its node could serve instead of these; 0: it stays with these."""
    load_s: float = 0.0
    """What loading so many would take, their weights fetched."""
    copies: int = 0
    """How often its node wishes every layer to be held in the swarm; 0: it has no wish."""
    cuts: tuple[int, ...] = ()
    """Layers at which another device of its node takes over."""


@dataclass(frozen=True, slots=True)
class ShardSpeed:
    """Measured speed and present load of one shard. Seconds unless said."""

    model_id: ModelId
    decode_s_per_layer: float
    """One layer, one token of a session, among as many as decode there now."""
    decode8_s_per_layer: float
    """One layer, one step of eight sessions together."""
    prefill_s_per_token_layer: float
    head_s: float
    """Final norm, output matrix and sampler, for the same batch."""
    queue_s: float
    """Predicted wait before a step that arrives now is started."""
    kv_free_bytes: int


@dataclass(frozen=True, slots=True)
class PoolKind:
    """What a worker can do with KV blocks. The defaults: nothing, they only count memory."""

    is_paged: bool = False
    """The worker has the blocks, and must be told their numbers."""
    prefix_unit: int = 0
    """A session may start at multiples of this position from blocks of another; 0: never."""
    reuses_generated: bool = False
    """Blocks of an answer serve as a prefix too, not only those of its prompt."""


class LinkKind(IntEnum):
    """How a link goes, the better way first."""

    DIRECT = 0
    WEBRTC = 1
    """A data channel, agreed upon by way of a third node and independent of it since."""
    RELAYED = 2

    @property
    def text(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Way:
    """How a link goes. `via`: the third node of a relayed one, or by whom a channel was made."""

    kind: LinkKind = LinkKind.DIRECT
    via: NodeId | None = None


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Measured quality of the link between the record's author and `peer`."""

    peer: NodeId
    rtt_s: float
    goodput_bytes_s: float
    relayed: bool = False
    """The link goes by way of a third node; the figures are those of the whole way."""
    webrtc: bool = False
    """It is a WebRTC data channel."""

    @property
    def kind(self) -> LinkKind:
        if self.webrtc:
            return LinkKind.WEBRTC
        return LinkKind.RELAYED if self.relayed else LinkKind.DIRECT


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What rows of one session took on one hop, summed. Steps that overlap count once."""

    rows: int = 0
    held_s: float = 0.0
    """While some of these rows were here and not done: waiting, computed, or between processes."""
    compute_s: float = 0.0
    """In the worker's steps that these rows were part of."""

    @property
    def wait_s(self) -> float:
        return max(0.0, self.held_s - self.compute_s)


class MemberState(Enum):
    """Membership verdicts."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Hop:
    """A node's place in a route: the layers it runs there, and whether it embeds or samples."""

    node: NodeId
    layers: LayerRange
    embed: bool
    head: bool
    numeric_class: NumericClass


@dataclass(frozen=True, slots=True)
class Route:
    """Hops that together cover embed, every layer once, in order, and head."""

    hops: tuple[Hop, ...]
    predicted_token_s: float
    """Predicted time for one decode token over this route, wire included."""
    slowest_step_s: float
    """Predicted time of the longest single step: a prefill chunk or a bundle of rebuilt rows."""
    dials: tuple[NodeId, ...] = ()
    """Hops to which the origin had no link when it chose."""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(hop.node for hop in self.hops)

    def __str__(self) -> str:
        return ">".join(f"{short(hop.node)}[{hop.layers}]" for hop in self.hops)

    def index_of(self, node: NodeId) -> int | None:
        return next((i for i, hop in enumerate(self.hops) if hop.node == node), None)


class GuideKind(Enum):
    """In which language a guide is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Guide:
    """What the text of an answer must conform to, from its first token to its last."""

    kind: GuideKind
    source: str


@dataclass(frozen=True, slots=True)
class TokenBias:
    """Added to the logit of a token."""

    token_id: int
    bias: float


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the head chooses a token: a pure function of (seed, position, logits, token history).

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 switch those filters off.
    `logprobs` is the number of alternatives asked for; `None` asks for no logprobs at all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    logprobs: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Of ids that are in the prompt or were generated; the two above look at generated ids only."""
    min_tokens: int = 0
    """None of `stop_ids` is chosen before so many tokens are generated."""
    stop_ids: tuple[int, ...] = ()
    """Of the order, where the head must know them; else empty."""
    bias: tuple[TokenBias, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that must not come about: their last id is not chosen after the others."""
    guide: GuideKind | None = None
    """The answer follows a guide, whose source the head is told before it starts."""

    @property
    def needs_prompt(self) -> bool:
        """Whether the head must know the ids of the prompt."""
        return self.repetition_penalty != 1.0

    @property
    def needs_history(self) -> bool:
        """Whether the head must know the ids that were generated before."""
        return bool(
            self.needs_prompt
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_tokens
            or self.banned
            or self.guide is not None
        )

    @property
    def is_plain(self) -> bool:
        """Whether it asks for nothing that heads of every age carry out."""
        return not (self.needs_history or self.min_p or self.bias)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token chosen for `position` (the index it takes in the sequence)."""

    position: int
    token_id: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """What a gateway asks of its node: continue `prompt_ids` by up to `max_tokens` tokens."""

    model_id: ModelId
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    """Generation ends (reason "stop") when one of these is sampled; it is delivered too."""
    guide: Guide | None = None
