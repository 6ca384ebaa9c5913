"""A node that takes part in a model of the swarm: what it gives up, it lets go and replaces."""

from __future__ import annotations

from swarm.adoption import Adoption
from swarm.config import MIB, ShardConfig, WeightsConfig
from swarm.effects import DropModel, Effect, FetchLayers, FetchModel, Tell, ToWorker
from swarm.fetch_facts import FetchFailed, LayersFetched, ModelFetched
from swarm.hosting import Budget, Hosting
from swarm.messages import Inspected, Unload, WorkerFailed
from swarm.terms import ModelId, ModelSpec, NodeId

CONFIG = ShardConfig(activation_bytes=0, later_fraction=0.0)
WEIGHTS = WeightsConfig()
REST_S = WEIGHTS.unfit_rest_min_s
FIRST, SECOND = (
    ModelSpec(ModelId(letter * 32), f"model {letter}", 12, 64, 100, 1000, (), True)
    for letter in "ab"
)
SPECS = {spec.model_id: spec for spec in (FIRST, SECOND)}


class Bench:
    """A node without files, and what its shell would tell it."""

    def __init__(self) -> None:
        budget = Budget.of(1000 * MIB, CONFIG)
        self.hosting = Hosting(NodeId("me"), [], budget, CONFIG, "/cache")
        self.adoption = Adoption(self.hosting, WEIGHTS, CONFIG.settle_s)
        self.now = 0.0

    def effects(self) -> list[Effect]:
        return self.hosting.take_effects() + self.adoption.take_effects()

    def look(self) -> None:
        for model_id in self.hosting.take_given_up():
            self.adoption.given_up(model_id, self.now)

    def chosen(self) -> ModelId | None:
        """What it takes at this moment."""
        self.adoption.tick(SPECS, {}, self.now)
        found = [e.model_id for e in self.effects() if isinstance(e, FetchModel)]
        return found[0] if found else None

    def fetch(self, spec: ModelSpec) -> None:
        """Up to the order for its layers."""
        path = f"/models/{spec.model_id}"
        every = frozenset(range(spec.layer_count))
        self.adoption.fact(ModelFetched(spec.model_id, path, every), self.now)
        manifest = f"{path}/manifest.json"
        told = Inspected(spec, 10 * MIB, 5 * MIB, 5 * MIB, 100, manifest, path, 0)
        self.hosting.worker_message(told, self.now)
        for _ in range(2):
            due = self.hosting.next_deadline()
            assert due is not None
            self.now = due
            self.hosting.tick({}, self.now)
        (order,) = [e for e in self.effects() if isinstance(e, FetchLayers)]
        self.ordered = order

    def fails_to_load(self, spec: ModelSpec) -> list[Effect]:
        self.adoption.fact(LayersFetched(spec.model_id, self.ordered.layers), self.now)
        failed = WorkerFailed(f"/models/{spec.model_id}", "it is of no use")
        self.hosting.worker_message(failed, self.now)
        self.look()
        return self.effects()


def begun() -> Bench:
    bench = Bench()
    bench.adoption.start([], bench.now)
    bench.now += CONFIG.settle_s
    return bench


def test_a_model_that_cannot_be_loaded_is_let_go_and_another_one_taken() -> None:
    bench = begun()
    assert bench.chosen() == FIRST.model_id
    bench.fetch(FIRST)
    effects = bench.fails_to_load(FIRST)
    assert ToWorker(Unload(FIRST.model_id)) in effects
    assert DropModel(FIRST.model_id) in effects
    told = [effect.note.event for effect in effects if isinstance(effect, Tell)]
    assert told[-2:] == ["shard.failed", "model.rests"]
    assert bench.hosting.models() == ()
    assert bench.chosen() == SECOND.model_id


def test_it_is_tried_again_ever_later() -> None:
    bench = begun()
    rest_s = REST_S
    for _ in range(8):
        assert bench.chosen() == FIRST.model_id
        bench.fetch(FIRST)
        bench.fails_to_load(FIRST)
        failed_at = bench.now
        assert bench.chosen() == SECOND.model_id
        bench.adoption.fact(FetchFailed(SECOND.model_id, "no room", is_final=True), bench.now)
        bench.effects()
        assert bench.chosen() is None
        bench.now = failed_at + rest_s
        rest_s = min(2 * rest_s, WEIGHTS.unfit_rest_max_s)
    assert rest_s == WEIGHTS.unfit_rest_max_s


def test_weights_that_cannot_be_kept_end_the_same_way() -> None:
    bench = begun()
    bench.chosen()
    bench.fetch(FIRST)
    bench.adoption.fact(FetchFailed(FIRST.model_id, "no room", is_final=True), bench.now)
    bench.look()
    assert DropModel(FIRST.model_id) in bench.effects()
    assert bench.chosen() == SECOND.model_id


def test_what_its_owner_unloads_is_let_go_too_and_nothing_else_is_taken() -> None:
    bench = begun()
    bench.chosen()
    bench.fetch(FIRST)
    assert bench.hosting.retire(FIRST.name) == FIRST.model_id
    bench.hosting.release(FIRST.model_id)
    bench.look()
    assert DropModel(FIRST.model_id) in bench.effects()
    bench.now += 10 * REST_S
    assert bench.chosen() is None
