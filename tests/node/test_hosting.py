"""A node's own shards: chosen, announced before they are loaded, and back after a crash."""

from __future__ import annotations

from swarm.config import MIB, ShardConfig
from swarm.effects import StartWorker, Tell, ToWorker
from swarm.hosting import Budget, Hosting, Rival, Wish
from swarm.messages import (
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    RowType,
    SpeedReport,
    WorkerFailed,
)
from swarm.terms import (
    LayerRange,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    ShardSpeed,
    ShardState,
)

SPEC = ModelSpec(ModelId("m"), "model", 12, 64, 100, 1000, (), True)
CONFIG = ShardConfig(activation_bytes=0)
LAYER = 10 * MIB


def hosting(layers: LayerRange | None = None, memory: int = 100 * MIB) -> Hosting:
    wish = Wish("/models/model", "model", layers)
    made = Hosting(NodeId("me"), [wish], Budget.of(memory, CONFIG), CONFIG, "/cache")
    made.start()
    return made


def inspected(memory: int = 0) -> Inspected:
    return Inspected(SPEC, LAYER, 5 * MIB, 5 * MIB, 100, "/cache/m/manifest.json",
                     "/models/model", memory)  # fmt: skip


def loaded(layers: LayerRange) -> Loaded:
    speed = ShardSpeed(SPEC.model_id, 0.001, 0.002, 0.0001, 0.003, 0.0, 0)
    return Loaded(SPEC.model_id, layers, NumericClass("c"), 100, RowType.FLOAT32, 256, speed, "cpu")


def to_worker(made: Hosting) -> list[Message]:
    return [e.message for e in made.take_effects() if isinstance(e, ToWorker)]


def test_fixed_layers_are_loaded_at_once() -> None:
    made = hosting(LayerRange(4, 8))
    effects = made.take_effects()
    assert isinstance(effects[0], StartWorker)
    assert effects[1] == ToWorker(Inspect("/models/model", "model", "/cache"))
    made.worker_message(inspected(), 0.0)
    assert to_worker(made) == [Load("/models/model", SPEC.model_id, LayerRange(4, 8), False, False)]
    assert made.shards()[0].state is ShardState.LOADING
    made.worker_message(loaded(LayerRange(4, 8)), 1.0)
    (shard,) = made.shards()
    assert shard.state is ShardState.SERVING
    assert (shard.embed, shard.head, shard.numeric_class) == (False, False, "c")
    assert made.kv_capacity_bytes == 60 * MIB
    assert made.speeds(7)[0].kv_free_bytes == 7
    assert made.changed


def test_layers_that_the_model_does_not_have() -> None:
    made = hosting(LayerRange(4, 13))
    made.worker_message(inspected(), 0.0)
    assert made.shards() == ()
    (note,) = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert "0:12" in str(note.get("reason"))


def test_layers_that_do_not_fit() -> None:
    made = hosting(LayerRange(0, 12))
    made.worker_message(inspected(), 0.0)
    assert made.shards() == ()
    (note,) = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert "125 MiB" not in str(note.get("reason"))
    assert "130 MiB" in str(note.get("reason"))


def test_what_the_device_has_counts_more_than_what_the_daemon_guessed() -> None:
    made = hosting(LayerRange(0, 12))
    made.worker_message(inspected(memory=200 * MIB), 0.0)
    assert len(made.shards()) == 1


def test_a_choosing_node_listens_then_intends_then_loads() -> None:
    made = hosting()
    made.worker_message(inspected(), 10.0)
    to_worker(made)
    assert made.next_deadline() == 10.0 + CONFIG.settle_s
    others = {SPEC.model_id: [Rival(NodeId("z"), LayerRange(0, 6), ShardState.SERVING, 0.001)]}
    made.tick(others, 12.0)
    (shard,) = made.shards()
    assert (shard.layers, shard.state) == (LayerRange(6, 12), ShardState.LOADING)
    assert to_worker(made) == []
    made.tick(others, 12.6)
    assert to_worker(made) == [Load("/models/model", SPEC.model_id, LayerRange(6, 12), False, True)]


def test_two_that_intend_the_same_do_not_both_load_it() -> None:
    made = hosting(memory=60 * MIB)
    made.worker_message(inspected(), 0.0)
    made.tick({}, 2.0)
    mine = made.shards()[0].layers
    rival = Rival(NodeId("a"), mine, ShardState.LOADING, 0.001)
    to_worker(made)
    made.tick({SPEC.model_id: [rival]}, 2.6)
    assert to_worker(made) == []
    assert not made.shards()[0].layers.overlaps(mine)


def test_the_smaller_id_keeps_its_place() -> None:
    made = hosting(memory=60 * MIB)
    made.worker_message(inspected(), 0.0)
    made.tick({}, 2.0)
    mine = made.shards()[0].layers
    made.take_effects()
    made.tick({SPEC.model_id: [Rival(NodeId("z"), mine, ShardState.LOADING, 0.001)]}, 2.6)
    assert isinstance(to_worker(made)[0], Load)


def test_a_lost_worker_is_restarted_later_and_later_and_serves_the_same_again() -> None:
    made = hosting()
    made.worker_message(inspected(), 0.0)
    made.tick({}, 2.0)
    made.tick({}, 2.6)
    layers = made.shards()[0].layers
    made.worker_message(loaded(layers), 3.0)
    to_worker(made)
    assert made.worker_lost("killed", 5.0) == (SPEC.model_id,)
    assert made.shards() == ()
    made.tick({}, 5.0 + CONFIG.restart_min_s)
    assert [type(m) for m in to_worker(made)] == [Inspect]
    made.worker_message(inspected(), 7.0)
    assert [type(m) for m in to_worker(made)] == [Load]
    assert made.shards()[0].layers == layers
    assert made.worker_lost("killed", 8.0) == ()
    assert made.next_deadline() == 8.0 + 2 * CONFIG.restart_min_s


def test_a_checkpoint_that_cannot_be_served_is_said_and_not_tried_for_ever() -> None:
    made = hosting()
    made.take_effects()
    made.worker_message(WorkerFailed("/models/model", "it is cut short"), 0.0)
    (note,) = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert note.get("reason") == "it is cut short"
    assert made.next_deadline() is None


def test_speeds_follow_the_worker() -> None:
    made = hosting(LayerRange(0, 4))
    made.worker_message(inspected(), 0.0)
    made.worker_message(loaded(LayerRange(0, 4)), 0.0)
    faster = ShardSpeed(SPEC.model_id, 0.0005, 0.002, 0.0001, 0.003, 0.01, 0)
    made.worker_message(SpeedReport(faster, 0, 1), 1.0)
    assert made.speeds(0)[0].decode_s_per_layer == 0.0005
