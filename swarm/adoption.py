"""Which model of the swarm a node takes part in that was given none of its own. Pure.

It listens for a while, then takes the model that the fewest nodes hold (of equals one whose files
it has already), gets its texts, and leaves the choice of layers to hosting. One that turns out to
be of no use here is let rest, longer each time, and another one is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.config import WeightsConfig
from swarm.effects import DropModel, Effect, FetchModel, Tell
from swarm.fetch_facts import Fact, FetchFailed, LayersFetched, LayersShort, ModelFetched
from swarm.hosted import Rival, Wish
from swarm.hosting import Hosting
from swarm.notes import Level, note
from swarm.terms import ModelId, ModelSpec

LOOK_AGAIN_S = 1.0
"""How often a node that has found no model yet looks at what it knows; nothing waits for that."""


class Adoption:
    def __init__(self, hosting: Hosting, config: WeightsConfig, settle_s: float) -> None:
        self._hosting = hosting
        self._config = config
        self._settle_s = settle_s
        self._cached: dict[ModelId, str] = {}
        self._due: float | None = None
        self._takes_part = False
        self._is_paused = False
        self._is_fetching = False
        self._name = ""
        self._retry_s = config.retry_min_s
        self._rests_until: dict[ModelId, float] = {}
        self._rest_s: dict[ModelId, float] = {}
        """Of models that were of no use here, how long the next rest lasts."""
        self._effects: list[Effect] = []

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> float | None:
        return None if self._is_paused else self._due

    # ------------------------------------------------------------ facts in

    def start(self, cached: Sequence[tuple[ModelId, str]], now: float) -> None:
        """The node wants to take part in something.

        cached  models with their names whose files are on the disk, the one used last first
        """
        self._cached = dict(cached)
        self._takes_part = True
        self._due = now + self._settle_s

    def pause(self) -> None:
        """Take no model for now, not even one that is being fetched."""
        self._is_paused = True

    def resume(self, now: float) -> None:
        self._is_paused = False
        if self._takes_part and not self._is_fetching:
            self._due = now

    def tick(
        self,
        specs: Mapping[ModelId, ModelSpec],
        rivals: Mapping[ModelId, Sequence[Rival]],
        now: float,
    ) -> None:
        """`specs`: all models known; `rivals`: who holds or wants which of their layers."""
        if self._is_paused or self._due is None or now < self._due:
            return
        names = {model_id: spec.name for model_id, spec in specs.items()} or self._cached
        fit = [model_id for model_id in names if self._rests_until.get(model_id, now) <= now]
        if not fit:
            self._due = now + LOOK_AGAIN_S
            return

        def need(model_id: ModelId) -> tuple[int, bool, ModelId]:
            spec = specs.get(model_id)
            copies = _copies(spec, rivals.get(model_id, ())) if spec else 0
            return (copies, model_id not in self._cached, model_id)

        chosen = min(fit, key=need)
        self._due, self._name, self._is_fetching = None, names[chosen], True
        self._effects.append(FetchModel(chosen, self._name))

    def fact(self, fact: Fact, now: float) -> None:
        match fact:
            case ModelFetched() if self._is_paused:
                self._is_fetching = False
                self._effects.append(DropModel(fact.model_id))
            case ModelFetched():
                self._is_fetching = False
                self._tell("model.adopted", Level.INFO, model=self._name)
                wish = Wish(fact.path, self._name, None, fetched_id=fact.model_id)
                self._hosting.adopt(wish, fact.obtainable)
            case LayersFetched():
                self._hosting.layers_fetched(fact.model_id, fact.layers)
            case LayersShort():
                self._hosting.layers_short(fact.model_id, fact.obtainable, now)
            case FetchFailed():
                self._failed(fact, now)

    def given_up(self, model_id: ModelId, now: float) -> None:
        """A model that came from peers is of no use here: another one is taken."""
        rest_s = self._rest_s.get(model_id, self._config.unfit_rest_min_s)
        self._rests_until[model_id] = now + rest_s
        self._rest_s[model_id] = min(2 * rest_s, self._config.unfit_rest_max_s)
        self._tell("model.rests", Level.WARNING, model=self._name, seconds=rest_s)
        self._due = now

    def _failed(self, fact: FetchFailed, now: float) -> None:
        if any(spec.model_id == fact.model_id for spec in self._hosting.models()):
            self._hosting.fetch_failed(fact.model_id, fact.reason)
            return
        self._is_fetching = False
        self._tell("model.not_fetched", Level.WARNING, model=self._name, reason=fact.reason)
        if fact.is_final:
            self.given_up(fact.model_id, now)
            return
        self._due = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, self._config.retry_max_s)

    def _tell(self, event: str, level: Level, **fields: str | float) -> None:
        self._effects.append(Tell(note(event, level, **fields)))


def _copies(spec: ModelSpec, rivals: Sequence[Rival]) -> int:
    """How often its rarest layer is held or wanted."""
    staying = [rival for rival in rivals if not rival.is_departing]
    return min(sum(layer in rival.layers for rival in staying) for layer in range(spec.layer_count))
