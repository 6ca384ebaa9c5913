"""One request of a client of the simulated swarm, and all that it was told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from sims.loop import SimLoop
from swarm.effects import Failed, Finished, Generated, SessionEvent, Started
from swarm.errors import SwarmError
from swarm.node_io import GenerationIo
from swarm.terms import NodeId, Order, Route, SessionId

if TYPE_CHECKING:
    from sims.node import SimNode


class Outcome(Enum):
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    REFUSED = "refused"
    """It was told at once that there is no way."""
    CANCELLED = "cancelled"
    ORIGIN_LOST = "origin lost"
    """The node that took it is gone: the client's connection is cut."""


@dataclass(frozen=True, slots=True)
class Heard:
    at_s: float
    event: SessionEvent


class Request:
    """`tokens` are the ids given so far, `heard` every event with its time."""

    def __init__(self, number: int, origin: SimNode, order: Order, loop: SimLoop) -> None:
        self.number = number
        self.origin = origin
        self.order = order
        self.asked_s = loop.now_s
        self.ended_s: float | None = None
        self.outcome = Outcome.RUNNING
        self.error: SwarmError | None = None
        self.session: SessionId | None = None
        self.route: Route | None = None
        self.first_route: Route | None = None
        self.epoch = 0
        self.tokens: list[int] = []
        self.heard: list[Heard] = []
        self._loop = loop
        self._generation: GenerationIo | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def is_over(self) -> bool:
        return self.outcome is not Outcome.RUNNING

    @property
    def finished(self) -> Finished | None:
        event = self.heard[-1].event if self.heard else None
        return event if isinstance(event, Finished) else None

    @property
    def hops(self) -> tuple[NodeId, ...]:
        return self.route.nodes if self.route is not None else ()

    def __repr__(self) -> str:
        return (
            f"<request {self.number} at {self.origin.machine.name}: {self.outcome.value},"
            f" {len(self.tokens)}/{self.order.max_tokens} tokens>"
        )

    # ------------------------------------------------------------ what stories wait for

    async def reached(self, token_count: int) -> None:
        """Until so many tokens are here, or it is over."""
        if len(self.tokens) < token_count and not self.is_over:
            future = self._loop.create_future()
            self._waiters.append((token_count, future))
            await future

    async def over(self) -> None:
        await self.reached(1 << 60)

    # ------------------------------------------------------------ what happens to it

    def begun(self, generation: GenerationIo) -> None:
        self._generation = generation
        self.session = generation.session

    def hear(self, event: SessionEvent) -> None:
        self.heard.append(Heard(self._loop.now_s, event))
        match event:
            case Started():
                self.route, self.epoch = event.route, event.epoch
                self.first_route = self.first_route or event.route
            case Generated():
                self.tokens.append(event.token.token_id)
                self._wake()
            case Finished():
                self.end(Outcome.FINISHED)
            case Failed():
                self.error = event.error
                self.end(Outcome.FAILED)

    def cancel(self) -> None:
        """The client closes its connection. Called in the origin's process."""
        if self._generation is not None and not self.is_over:
            self._generation.cancel()
            self.end(Outcome.CANCELLED)

    def end(self, outcome: Outcome) -> None:
        if not self.is_over:
            self.outcome = outcome
            self.ended_s = self._loop.now_s
            self._wake()

    def _wake(self) -> None:
        """Stories are told in the world, not in the origin's process."""
        due = [f for count, f in self._waiters if self.is_over or len(self.tokens) >= count]
        if due:
            self._waiters = [w for w in self._waiters if w[1] not in due]
            self._loop.post(self._loop.now_ns, self._loop.world, _release, due)


def _release(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
