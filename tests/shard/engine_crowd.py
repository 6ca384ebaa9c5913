"""Many sessions at once over three engines, hops of one route, whose weights two engines hold each.

Hops work in any order, prompts come in chunks of any size, and now and then one is lost: its twin
takes over with nothing in its KV and is fed again what the lost one was fed, prompt rows as prefill
in other chunks, generated positions as decode rows. What a session then gives must be what it gives
alone: ids, and the bits of their logprobs, which show what ids are too coarse for.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from engine_chain import begin, engine

from swarm.messages import Message, Ran, RowType, Run, StepKind
from swarm.shard.engine import Engine
from swarm.shard.stage import Stage
from swarm.terms import SampledToken, Sampling, SessionId

CHUNK_MAX = 90
"""Rows of one prefill step: some are longer than the engine's pieces, most are not."""
BUNDLE_MAX = 16


@dataclass(slots=True)
class Talk:
    """One session: what it asks, what it got, and the rows that each hop was fed."""

    name: str
    prompt: Sequence[int]
    count: int
    sampling: Sampling
    tokens: list[SampledToken] = field(default_factory=list)
    fed: list[list[bytes]] = field(default_factory=list)
    row_types: list[RowType] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """By hop: rows that its engine was given since it last began."""

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.count


class Crowd:
    def __init__(self, hops: Sequence[Sequence[Stage]], talks: Sequence[Talk], seed: int) -> None:
        """`hops`: for each part of the model the stages that hold it, the one in use first."""
        self._rng = Random(seed)
        self._stages = [deque(twins) for twins in hops]
        self._engines: list[Engine] = [engine(twins[0]) for twins in hops]
        self._talks = {SessionId(talk.name): talk for talk in talks}
        self._generation = 1
        self.losses = 0
        for talk in talks:
            talk.fed = [[] for _ in hops]
            talk.row_types = [RowType.IDS] * len(hops)
            talk.sent = [0] * len(hops)
            for hop in range(len(hops)):
                self._begin(talk, hop)
            self._feed(talk, 0, [struct.pack("<i", one) for one in talk.prompt], RowType.IDS)

    def play(self, losses: int) -> dict[str, list[SampledToken]]:
        """Until all is said, with about so many losses on the way; tokens by session."""
        total = sum(talk.count for talk in self._talks.values())
        while not all(talk.done for talk in self._talks.values()):
            if self.losses < losses and self._rng.random() < losses / total:
                self._lose(self._rng.randrange(len(self._engines)))
            self._send_some()
            hop = self._rng.randrange(len(self._engines))
            for message in self._engines[hop].step():
                self._take(hop, message)
        return {talk.name: talk.tokens[: talk.count] for talk in self._talks.values()}

    def _begin(self, talk: Talk, hop: int) -> None:
        order = begin(
            talk.name,
            self._engines[hop].stage.part,
            limit=len(talk.prompt) + talk.count + 1,
            sampling=talk.sampling,
            generation=self._generation,
            prompt=len(talk.prompt),
        )
        assert self._engines[hop].handle(order) == []
        talk.sent[hop] = 0

    def _lose(self, hop: int) -> None:
        self.losses += 1
        self._generation += 1
        self._stages[hop].rotate(1)
        self._engines[hop] = engine(self._stages[hop][0])
        for talk in self._talks.values():
            self._begin(talk, hop)

    def _feed(self, talk: Talk, hop: int, rows: Sequence[bytes], row_type: RowType) -> None:
        talk.fed[hop] += rows
        talk.row_types[hop] = row_type

    def _send_some(self) -> None:
        """Give hops some of the rows that wait for them; each step is of one kind."""
        for talk in self._talks.values():
            for hop in range(len(self._engines)):
                if talk.sent[hop] < len(talk.fed[hop]) and self._rng.random() < 0.5:
                    self._send(talk, hop)

    def _send(self, talk: Talk, hop: int) -> None:
        position, held, prompt = talk.sent[hop], len(talk.fed[hop]), len(talk.prompt)
        if position < prompt:
            kind, most = StepKind.PREFILL, min(prompt, held, position + CHUNK_MAX)
        else:
            kind, most = StepKind.DECODE, min(held, position + BUNDLE_MAX)
        stop = self._rng.randint(position + 1, most)
        last = hop == len(self._engines) - 1
        sample_from = prompt + len(talk.tokens) - 1 if last else 1 << 30
        payload = b"".join(talk.fed[hop][position:stop])
        run = Run(
            SessionId(talk.name), self._generation_of(talk, hop), position, stop - position, kind,
            talk.row_types[hop], sample_from, payload=payload,
        )  # fmt: skip
        assert self._engines[hop].handle(run) == []
        talk.sent[hop] = stop

    def _generation_of(self, talk: Talk, hop: int) -> int:
        return self._engines[hop].generations[SessionId(talk.name)]  # type: ignore[attr-defined]

    def _take(self, hop: int, message: Message) -> None:
        """Rows that the next hop has not got yet go on; tokens go to the session."""
        assert isinstance(message, Ran), message
        talk = self._talks[message.session]
        if hop + 1 < len(self._engines):
            size = len(message.payload) // message.count
            rows = [bytes(message.payload[i * size : (i + 1) * size]) for i in range(message.count)]
            known = len(talk.fed[hop + 1]) - message.position
            self._feed(talk, hop + 1, rows[max(0, known) :], message.row_type)
            return
        for token in message.tokens:
            if token.position == len(talk.prompt) + len(talk.tokens):
                talk.tokens.append(token)
                if not talk.done:
                    self._feed(talk, 0, [struct.pack("<i", token.token_id)], RowType.IDS)
