"""Who asks, while a request is answered, and what becomes of the sessions it starts. Pure.

The caller travels in a context variable: it is set where a request comes in and read where its
session begins, so that what lies between (one file for each kind of client) need not carry it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from swarm.access.keys import NOBODY, Caller, check_model
from swarm.access.receipts import Consumption
from swarm.access.usage import Amount, Charge
from swarm.asks import Ask
from swarm.effects import SessionEvent
from swarm.node_port import Generation, NodePort
from swarm.notes import Note
from swarm.snapshot import ModelView, RouteCost, Snapshot
from swarm.terms import ModelId, NodeId, Order, SessionId, short


@dataclass(frozen=True, slots=True)
class Asked:
    """The request at hand: who sent it, and when it came in, on the gateway's clock."""

    caller: Caller = NOBODY
    at: float | None = None


ASKED: ContextVar[Asked] = ContextVar("asked", default=Asked())  # noqa: B039 - it is frozen


class Observer(Protocol):
    """Sees one session's events as they are read."""

    def see(self, event: SessionEvent) -> None: ...

    def over(self) -> None:
        """Nothing more is read: it has ended, or its client has gone. Told once."""


class Books(Protocol):
    """Where sessions are counted."""

    def check(self, caller: Caller) -> None:
        """Raise RequestError when the caller may start no more today."""

    def charge(self, caller: Caller, model: str, amount: Amount) -> None: ...

    def consumed(self, server: NodeId, model_id: ModelId, layer_tokens: int) -> None:
        """A node, perhaps this one, ran so much for a session."""


class CountedNode:
    """A node whose sessions are let in by key and counted. What else it can do passes through."""

    def __init__(
        self, node: NodePort, books: Books, observe: Callable[[str, int, float | None], Observer]
    ) -> None:
        """`observe`: makes the observer of a session, from its model, the tokens of its prompt,
        and when it was asked for."""
        self._node = node
        self._books = books
        self._observe = observe

    def generate(self, order: Order) -> Generation:
        """As a `NodePort`. Raises RequestError 403 or 429 for a key that may not, too."""
        asked = ASKED.get()
        names = _names(order.model_id, self._node.models())
        check_model(asked.caller, *names)
        self._books.check(asked.caller)
        generation = self._node.generate(order)
        observer = self._observe(names[0], len(order.prompt_ids), asked.at)
        charge = Charge(len(order.prompt_ids))
        consumption = Consumption(len(order.prompt_ids))

        def see(event: SessionEvent) -> None:
            amount = charge.of(event)
            if amount is not None:
                self._books.charge(asked.caller, names[0], amount)
            for server, layer_tokens in consumption.of(event).items():
                self._books.consumed(server, order.model_id, layer_tokens)
            observer.see(event)

        return _Counted(generation, see, observer.over)

    def models(self) -> tuple[ModelView, ...]:
        return self._node.models()

    def snapshot(self) -> Snapshot:
        return self._node.snapshot()

    def explain(
        self, model_id: ModelId, prompt_count: int, max_tokens: int, count: int
    ) -> tuple[RouteCost, ...]:
        return self._node.explain(model_id, prompt_count, max_tokens, count)

    async def model_file(self, model_id: ModelId, name: str) -> bytes:
        return await self._node.model_file(model_id, name)

    def asked(self, ask: Ask) -> None:
        self._node.asked(ask)

    def subscribe(self, limit: int) -> AsyncIterator[Note]:
        return self._node.subscribe(limit)

    async def leave(self, grace_s: float) -> None:
        await self._node.leave(grace_s)


class _Counted:
    """A generation whose events are seen as they are read."""

    def __init__(
        self, generation: Generation, see: Callable[[SessionEvent], None], over: Callable[[], None]
    ) -> None:
        self._generation = generation
        self._see = see
        self._over = over
        self._is_over = False

    @property
    def session(self) -> SessionId:
        return self._generation.session

    async def __aiter__(self) -> AsyncIterator[SessionEvent]:
        try:
            async for event in self._generation:
                self._see(event)
                yield event
        finally:
            self._end()

    def cancel(self) -> None:
        self._generation.cancel()
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._over()


def _names(model_id: ModelId, views: tuple[ModelView, ...]) -> tuple[str, ...]:
    """What a model is called, the name it is counted by first."""
    name = next((view.spec.name for view in views if view.spec.model_id == model_id), model_id)
    return (name, f"{name}@{short(model_id)}", model_id)
