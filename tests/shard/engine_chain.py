"""Engines one behind the other, as hops of a route, driven by the messages a daemon sends."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from swarm.config import ShardConfig
from swarm.messages import Begin, End, Message, Ran, Recall, RowType, Run, StepKind
from swarm.shard.cut import Part
from swarm.shard.engine import Engine
from swarm.shard.engine_limits import PLAIN_STEPS, EngineLimits, step_limits
from swarm.shard.load_io import load_stage, read_config
from swarm.shard.paged_check import plain_reason
from swarm.shard.paged_kv import choose_kv_dtype, make_paged_kv
from swarm.shard.speed import Figures, SpeedTracker
from swarm.shard.stage import Stage
from swarm.terms import LayerRange, ModelId, SampledToken, Sampling, SessionId
from swarm.worker_messages import KV_BLOCK_TOKENS

MODEL = ModelId("0" * 32)
GREEDY = Sampling(temperature=0.0)
CONFIG = ShardConfig()
FIGURES = Figures(1e-3, 2e-3, 1e-4, 1e-3)


def whole_part(layer_count: int) -> Part:
    return Part(LayerRange(0, layer_count), embed=True, head=True)


def parts(layer_count: int, cuts: Sequence[int]) -> list[Part]:
    """The parts that `cuts` make of a whole model."""
    borders = [0, *cuts, layer_count]
    return [
        Part(LayerRange(start, stop), embed=start == 0, head=stop == layer_count)
        for start, stop in zip(borders, borders[1:], strict=False)
    ]


def load(path: Path, part: Part, dtype: torch.dtype = torch.float32) -> Stage:
    return load_stage(path, part, dtype, torch.device("cpu"))


class Ticks:
    """A clock that goes on by a millisecond with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def engine(stage: Stage, queue_max: int = 64, config: ShardConfig = CONFIG) -> Engine:
    """One that allocates its own blocks, as a daemon would, where the stage has some."""
    step = PLAIN_STEPS if stage.kv is None else step_limits(config)
    limits = EngineLimits(queue_max, 1 << 30, 128, step)
    kind = Engine if stage.kv is None else BlockEngine
    return kind(stage, MODEL, SpeedTracker(MODEL, FIGURES), limits, Ticks())


def on_blocks(stage: Stage, blocks: int = 64, *, exact: bool = True) -> Stage:
    """The same stage, set up to work over KV blocks."""
    kept = choose_kv_dtype("auto", stage.dtype, stage.quantization)
    assert plain_reason(stage, kept, exact=exact) is None
    assert stage.kv is not None
    stage.kv = make_paged_kv(stage.kv.kinds, blocks, kept, stage.device)
    return stage


class BlockEngine(Engine):
    """Puts the blocks of a small pool into its orders, lowest free number first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert self.stage.kv is not None
        self.free = list(range(self.stage.kv.blocks))
        self.held: dict[SessionId, list[int]] = {}
        self.generations: dict[SessionId, int] = {}

    def handle(self, message: Begin | Recall | Run | End) -> list[Message]:
        if isinstance(message, Recall):
            return super().handle(message)
        if isinstance(message, Begin | End):
            self.free = sorted(self.free + self.held.pop(message.session, []))
            if isinstance(message, Begin):
                self.generations[message.session] = message.generation
        elif message.generation == self.generations.get(message.session) and not message.blocks:
            held = self.held.setdefault(message.session, [])
            needed = -(-(message.position + message.count) // KV_BLOCK_TOKENS) - len(held)
            added, self.free = self.free[: max(0, needed)], self.free[max(0, needed) :]
            held += added
            message = replace(message, blocks=struct.pack(f"<{len(added)}i", *added))
        return super().handle(message)


def begin(
    name: str,
    part: Part,
    *,
    limit: int = 200,
    sampling: Sampling = GREEDY,
    generation: int = 1,
    prompt: int = 1,
) -> Begin:
    ends = (part.embed, part.head)
    return Begin(SessionId(name), generation, MODEL, part.layers, *ends, prompt, limit, sampling)


def ids_run(
    name: str,
    position: int,
    ids: Sequence[int],
    *,
    kind: StepKind = StepKind.PREFILL,
    sample_from: int = 1 << 30,
    generation: int = 1,
) -> Run:
    payload = struct.pack(f"<{len(ids)}i", *ids)
    return Run(
        SessionId(name), generation, position, len(ids), kind, RowType.IDS, sample_from,
        payload=payload,
    )  # fmt: skip


def onward(ran: Ran, sample_from: int) -> Run:
    """What the next hop is told to run, given what this one gave."""
    return Run(
        ran.session, ran.generation, ran.position, ran.count, ran.kind, ran.row_type, sample_from,
        payload=bytes(ran.payload),
    )  # fmt: skip


def drain(one: Engine) -> list[Message]:
    """Run until nothing waits."""
    answers: list[Message] = []
    while one.has_work:
        answers += one.step()
    return answers


def run_through(one: Engine, run: Run) -> Ran:
    """Give one run, run it, and expect exactly its result."""
    answers = one.handle(run) + drain(one)
    assert len(answers) == 1, answers
    (answer,) = answers
    assert isinstance(answer, Ran), answer
    return answer


class Chain:
    """A route. Each hop is an engine that uses all of its stage, unless `uses` says less."""

    def __init__(self, stages: Sequence[Stage], uses: Sequence[Part] | None = None) -> None:
        self.engines = [engine(stage) for stage in stages]
        self.uses = list(uses) if uses else [stage.part for stage in stages]

    @staticmethod
    def of(path: Path, cuts: Sequence[int], dtype: torch.dtype = torch.float32) -> Chain:
        count = read_config(path).get_text_config(decoder=True).num_hidden_layers
        return Chain([load(path, part, dtype) for part in parts(count, cuts)])

    def begin(self, name: str, *, limit: int = 200, sampling: Sampling = GREEDY) -> None:
        for one, part in zip(self.engines, self.uses, strict=True):
            assert one.handle(begin(name, part, limit=limit, sampling=sampling)) == []

    def end(self, name: str) -> None:
        for one in self.engines:
            assert one.handle(End(SessionId(name))) == []

    def step(self, run: Run) -> Ran:
        """One run through all hops; the head's answer."""
        for one in self.engines[:-1]:
            run = onward(run_through(one, run), run.sample_from)
        return run_through(self.engines[-1], run)

    def tokens(
        self, name: str, prompt: Sequence[int], count: int, chunk: int
    ) -> Iterator[SampledToken]:
        """Sample `count` tokens after a prompt that goes in by chunks."""
        last = len(prompt) - 1
        for start in range(0, len(prompt), chunk):
            piece = prompt[start : start + chunk]
            ran = self.step(ids_run(name, start, piece, sample_from=last))
        for _ in range(count):
            (token,) = ran.tokens
            yield token
            ran = self.step(
                ids_run(
                    name,
                    token.position,
                    [token.token_id],
                    kind=StepKind.DECODE,
                    sample_from=token.position,
                )
            )

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        *,
        chunk: int,
        sampling: Sampling = GREEDY,
        name: str = "s",
    ) -> list[int]:
        self.begin(name, limit=len(prompt) + count + 1, sampling=sampling)
        ids = [token.token_id for token in self.tokens(name, prompt, count, chunk)]
        self.end(name)
        return ids
