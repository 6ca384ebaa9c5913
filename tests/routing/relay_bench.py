"""One hop's relay without a node around it, and short names for what goes in and comes out."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from swarm.config import RoutingConfig
from swarm.effects import Effect, Send, Tell, ToWorker
from swarm.messages import (
    Begin,
    Credit,
    End,
    FailureCode,
    Gap,
    HopFailed,
    HopTimes,
    Message,
    Open,
    Opened,
    Ran,
    RefusalCode,
    Refused,
    Resume,
    RowType,
    Run,
    Step,
    StepKind,
)
from swarm.routing.reach import Standing
from swarm.routing.relay import Relay
from swarm.shard.kv_blocks import KvPools, PoolShape
from swarm.terms import (
    Epoch,
    LayerRange,
    ModelId,
    NodeId,
    NumericClass,
    PoolKind,
    SampledToken,
    Sampling,
    SessionId,
    ShardInfo,
    ShardState,
)

ME, ORIGIN, BEFORE, AFTER, OTHER = (NodeId(n) for n in ("me", "origin", "before", "after", "other"))
MODEL = ModelId("m" * 32)
SESSION = SessionId("ab" * 8)
ROW = 4
PROMPT, LIMIT = 20, 60
LIMIT_BLOCKS = 2
CREDITS = 2
CONFIG = RoutingConfig(credit_steps=CREDITS, hop_sessions_max=4, hop_sessions_per_origin_max=3)
WORKER_ID = SessionId(f"{1:016x}")


def shard_of(start: int, stop: int) -> ShardInfo:
    """Of a model with layers 0:12."""
    return ShardInfo(
        MODEL, LayerRange(start, stop), start == 0, stop == 12, NumericClass("c"),
        ShardState.SERVING, 1, 1000, ROW,
    )  # fmt: skip


MIDDLE = Open(
    SESSION, Epoch(1), MODEL, LayerRange(4, 8), False, False, BEFORE, AFTER, PROMPT, LIMIT,
    Sampling(seed=3),
)  # fmt: skip
FIRST = replace(MIDDLE, layers=LayerRange(0, 4), embed=True, previous=ORIGIN)
LAST = replace(MIDDLE, layers=LayerRange(8, 12), head=True, next=ORIGIN)


@dataclass
class Bench:
    """One relay over layers of `shard`, all peers linked."""

    shard: ShardInfo = field(default_factory=lambda: shard_of(4, 8))
    config: RoutingConfig = CONFIG
    blocks: int = 100
    kind: PoolKind = PoolKind()
    model_len_max: int = 0
    now: float = 10.0
    linked: set[NodeId] = field(default_factory=lambda: {ME, ORIGIN, BEFORE, AFTER, OTHER})
    dialable: set[NodeId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.times: list[tuple[NodeId, HopTimes]] = []
        """What was told of times, and to whom."""
        self.pools = KvPools()
        self.pools.serve([PoolShape(MODEL, 1, self.blocks, 1, self.kind)])
        self.relay = Relay(ME, self.config, self.pools, self.model_len_max)
        self.relay.serve([self.shard])

    @property
    def spoken_for(self) -> int:
        """Blocks that sessions have or were promised."""
        return self.pools.used_bytes

    def effects(self) -> list[Effect]:
        """What came out, without notes and times for people."""
        kept: list[Effect] = []
        for effect in self.relay.take_effects():
            if isinstance(effect, Send) and isinstance(effect.message, HopTimes):
                self.times.append((effect.peer, effect.message))
            elif not isinstance(effect, Tell):
                kept.append(effect)
        return kept

    def open(self, order: Open, peer: NodeId = ORIGIN) -> list[Effect]:
        self.relay.open(peer, order, self.standing, self.now)
        return self.effects()

    def standing(self, node: NodeId) -> Standing:
        if node in self.linked:
            return Standing.LINKED
        return Standing.DIALABLE if node in self.dialable else Standing.UNREACHABLE

    def resume(
        self, kv_length: int, send_from: int, epoch: int = 1, peer: NodeId = ORIGIN
    ) -> list[Effect]:
        self.relay.resume(peer, Resume(SESSION, Epoch(epoch), kv_length, send_from))
        return self.effects()

    def step(self, step: Step, peer: NodeId = BEFORE) -> list[Effect]:
        self.relay.step(peer, step, self.now)
        return self.effects()

    def ran(self, result: Message) -> list[Effect]:
        assert isinstance(result, Ran)
        self.relay.ran(result, self.now)
        return self.effects()

    def credit(self, kv_length: int, epoch: int = 1, peer: NodeId = AFTER) -> list[Effect]:
        self.relay.credit(peer, Credit(SESSION, Epoch(epoch), kv_length, ORIGIN))
        return self.effects()

    def begin(self, order: Open, send_from: int = 0) -> None:
        """Open and resume from nothing."""
        self.open(order)
        self.resume(0, send_from, order.epoch)

    def hold(self, order: Open, stop: int) -> None:
        """Run [0, stop) through: the prompt as chunks of 10, then rows one by one."""
        self.begin(order)
        for position in (0, 10):
            self.step(chunk(position, 10), order.previous)
            self.ran(rows_ran(position, 10, StepKind.PREFILL, head=order.head))
            self.credit(position + 10)
        for position in range(PROMPT, stop):
            self.step(decode_step(position), order.previous)
            self.ran(rows_ran(position, 1, StepKind.DECODE, head=order.head))
            self.credit(position + 1)


def data(position: int, count: int) -> bytes:
    """Rows that differ by position."""
    return b"".join(struct.pack("<i", 1000 + p) for p in range(position, position + count))


def chunk(position: int, count: int, epoch: int = 1) -> Step:
    return Step(
        SESSION, Epoch(epoch), position, count, StepKind.PREFILL, RowType.FLOAT32,
        data(position, count), ORIGIN,
    )  # fmt: skip


def decode_step(position: int, count: int = 1, epoch: int = 1) -> Step:
    return replace(chunk(position, count, epoch), kind=StepKind.DECODE)


def rows_run(
    position: int, count: int, kind: StepKind, sample_from: int, generation: int = 1
) -> ToWorker:
    return ToWorker(
        Run(
            WORKER_ID, generation, position, count, kind, RowType.FLOAT32, sample_from,
            payload=data(position, count),
        )
    )  # fmt: skip


def rows_ran(
    position: int, count: int, kind: StepKind, *, head: bool = False, generation: int = 1
) -> Ran:
    """Heads answer with a token for the last row, others with rows."""
    stop = position + count
    tokens = (SampledToken(stop, 100 + stop),) if head and stop >= PROMPT else ()
    payload = b"" if head else data(position, count)
    return Ran(WORKER_ID, generation, position, count, kind, RowType.FLOAT32, 0.0, tokens, payload)


def begin_of(order: Open, generation: int = 1) -> ToWorker:
    return ToWorker(
        Begin(
            WORKER_ID, generation, order.model_id, order.layers, order.embed, order.head,
            order.prompt_count, order.position_limit, order.sampling,
        )
    )  # fmt: skip


def opened(
    epoch: int = 1, kv_length: int = 0, outbox_start: int = 0, sampling_level: int = 0
) -> Send:
    message = Opened(SESSION, Epoch(epoch), kv_length, outbox_start, sampling_level=sampling_level)
    return Send(ORIGIN, message)


def gap(position: int, kv_length: int, epoch: int = 1) -> Send:
    return Send(ORIGIN, Gap(SESSION, Epoch(epoch), position, kv_length, ORIGIN))


def credit(kv_length: int, epoch: int = 1, peer: NodeId = BEFORE) -> Send:
    return Send(peer, Credit(SESSION, Epoch(epoch), kv_length, ORIGIN))


def failed(node: NodeId, code: FailureCode, detail: str, epoch: int = 1) -> Send:
    return Send(ORIGIN, HopFailed(SESSION, Epoch(epoch), node, code, detail))


def refusal(effects: list[Effect]) -> RefusalCode:
    """The code of the one answer, which is a refusal."""
    (effect,) = effects
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Refused)
    return effect.message.code


def under(order: Open, epoch: int) -> Open:
    return replace(order, epoch=Epoch(epoch))


END = ToWorker(End(WORKER_ID))
