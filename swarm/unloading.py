"""How a node gives up a model that its owner wants served no more. Pure.

Others hear at once that the layers are not to be had here; whoever runs through them is moved away
as from a node that leaves, its KV warmed first. When nobody is left, or after a while, they go.
"""

from __future__ import annotations

from swarm.effects import Effect, Send
from swarm.hosting import Hosting
from swarm.messages import FailureCode
from swarm.routing.relay import Relay
from swarm.terms import ModelId

LOOK_S = 0.25
"""Between two looks whether somebody still uses the layers."""


class Unloading:
    def __init__(self, hosting: Hosting, relay: Relay, hand_over_s: float) -> None:
        """`hand_over_s`: for so long at most sessions are waited for that move away."""
        self._hosting = hosting
        self._relay = relay
        self._hand_over_s = hand_over_s
        self._until: dict[ModelId, float] = {}
        self._due: float | None = None
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return self._due

    def begin(self, name: str, now: float) -> None:
        """Raises RequestError where no model of that name is served here."""
        model_id = self._hosting.retire(name)
        if model_id is None or model_id in self._until:
            return
        self._until[model_id] = now + self._hand_over_s
        self._effects += [Send(node, word) for node, word in self._relay.farewells(model_id)]
        self._due = now

    def tick(self, now: float) -> None:
        for model_id, until in list(self._until.items()):
            if now < until and self._relay.session_count(model_id):
                continue
            del self._until[model_id]
            self._relay.withdraw(model_id, FailureCode.LEAVING, "the model is served here no more")
            self._hosting.release(model_id)
        self._due = now + LOOK_S if self._until else None
