"""The face that a running node shows to gateways and tests.

`node_io.NodeIo` is the real one. Everything here runs on the node's event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from swarm.asks import Ask
from swarm.effects import SessionEvent
from swarm.notes import Note
from swarm.snapshot import ModelView, RouteCost, Snapshot
from swarm.terms import ModelId, Order, SessionId


class Generation(Protocol):
    """One running session. Iterate it for its events; the last is `Finished` or `Failed`."""

    @property
    def session(self) -> SessionId: ...

    def __aiter__(self) -> AsyncIterator[SessionEvent]: ...

    def cancel(self) -> None:
        """Stop now and free every hop. Idempotent; safe after the end."""


class NodePort(Protocol):
    def generate(self, order: Order) -> Generation:
        """Start a session.

        Raises RequestError (does not fit the model), NoRoute (no cover now), CapacityError.
        """

    def models(self) -> tuple[ModelView, ...]:
        """All models that some member knows, covered or not."""

    def snapshot(self) -> Snapshot: ...

    def explain(
        self, model_id: ModelId, prompt_count: int, max_tokens: int, count: int
    ) -> tuple[RouteCost, ...]:
        """Up to `count` routes that such a request could take now, the cheapest first."""

    async def model_file(self, model_id: ModelId, name: str) -> bytes:
        """A text file of a model (`tokenizer.json`, `config.json`, ...), verified by its hash.

        Read from this node's checkpoint or fetched from a peer that has it; kept in memory.
        Raises FileNotFoundError when the model has no such file, LinkError when no peer could
        hand it out in time.
        """

    def asked(self, ask: Ask) -> None:
        """What this machine's owner wants. What comes of it is told as notes.

        Raises RequestError for a model that is served already, or not, or whose name is taken.
        """

    def subscribe(self, limit: int) -> AsyncIterator[Note]:
        """Notes from now on; a slow reader loses the oldest beyond `limit`."""

    async def leave(self, grace_s: float) -> None:
        """Announce departure, let running sessions move away or end, then stop the node."""
