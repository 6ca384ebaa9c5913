"""How a node gives up a model that its owner wants served no more. Pure.

Others hear at once that the layers are not to be had here; whoever runs through them is moved away
as from a node that leaves, its KV warmed first. When nobody is left, or after a while, they go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.effects import Effect, Send, Tell
from swarm.hosted import Rival
from swarm.hosting import Hosting
from swarm.messages import FailureCode
from swarm.notes import Level, note
from swarm.routing.relay import Relay
from swarm.terms import LayerRange, ModelId, ShardState

Rivals = Mapping[ModelId, Sequence[Rival]]

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

    def begin(self, name: str, now: float, rivals: Rivals | None = None) -> None:
        """Raises RequestError where no model of that name is served here.

        rivals  per model who else holds which layers: whoever unloads the last copy is told
        """
        layers = self._hosting.layers_of(name)
        model_id = self._hosting.retire(name)
        if model_id is None or model_id in self._until:
            return
        if layers and rivals is not None:
            self._tell_of_last(name, layers, rivals.get(model_id, ()))
        self._until[model_id] = now + self._hand_over_s
        self._effects += [Send(node, word) for node, word in self._relay.farewells(model_id)]
        self._due = now

    def _tell_of_last(self, name: str, layers: LayerRange, others: Sequence[Rival]) -> None:
        held = {
            layer
            for rival in others
            if rival.state is ShardState.SERVING
            for layer in range(rival.layers.start, rival.layers.stop)
        }
        alone = [layer for layer in range(layers.start, layers.stop) if layer not in held]
        if alone:
            span = LayerRange(alone[0], alone[-1] + 1)
            told = note("shard.last_copy", Level.WARNING, model=name, layers=str(span))
            self._effects.append(Tell(told))

    def tick(self, now: float) -> None:
        for model_id, until in list(self._until.items()):
            if now < until and self._relay.session_count(model_id):
                continue
            del self._until[model_id]
            self._relay.withdraw(model_id, FailureCode.LEAVING, "the model is served here no more")
            self._hosting.release(model_id)
        self._due = now + LOOK_S if self._until else None
