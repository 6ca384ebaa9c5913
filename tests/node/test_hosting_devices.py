"""What a node with several devices takes on: by each one's memory, and what goes on without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarm.config import MIB, ShardConfig
from swarm.effects import StartWorker, StopWorker, Tell, ToWorker
from swarm.hosted import weight_bytes
from swarm.hosting import Budget, Hosting, Wish
from swarm.messages import (
    KV_BLOCK_TOKENS,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    RowType,
    Unload,
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

CONFIG = ShardConfig(activation_bytes=0, later_fraction=0.0, settle_s=0.0, intention_s=0.0)
LAYER, ENDS, KV = 10 * MIB, 5 * MIB, 100


def budget(*sizes: int, spills: tuple[bool, ...] = ()) -> Budget:
    flags = spills or (False,) * len(sizes)
    return Budget.join(
        [Budget.of(size * MIB, CONFIG, spills=f) for size, f in zip(sizes, flags, strict=True)]
    )


def hosting(whole: Budget, *wishes: Wish) -> Hosting:
    made = Hosting(NodeId("me"), wishes or (wish("a"),), whole, CONFIG, "/cache")
    made.start()
    return made


def wish(name: str, layers: LayerRange | None = None) -> Wish:
    return Wish(f"/models/{name}", name, layers)


def found(name: str = "a", count: int = 12, memory: int = 0, layer: int = LAYER) -> Inspected:
    spec = ModelSpec(ModelId(name), name, count, 64, 100, 1000, (), True)
    return Inspected(spec, layer, ENDS, ENDS, KV, "/m.json", f"/models/{name}", memory)


def loaded(order: Load) -> Loaded:
    speed = ShardSpeed(order.model_id, 0.001, 0.002, 0.0001, 0.003, 0.0, 0)
    return Loaded(order.model_id, order.layers, NumericClass("c"), KV, RowType.FLOAT32, 256, speed,
                  "2 x cpu", order.kv_blocks)  # fmt: skip


def orders(made: Hosting) -> list[Message]:
    return [e.message for e in made.take_effects() if isinstance(e, ToWorker)]


def serve(made: Hosting, *seen: Inspected) -> Load:
    """Through choosing and loading; the order to load."""
    made.inspected(seen, 0.0)
    made.tick({}, 0.0)
    made.tick({}, 0.0)
    (load,) = [order for order in orders(made) if isinstance(order, Load)]
    made.worker_message(loaded(load), 1.0)
    return load


def states(made: Hosting) -> dict[str, ShardState]:
    return {shard.model_id: shard.state for shard in made.shards()}


def said(made: Hosting) -> list[str]:
    return [str(e.note.get("reason")) for e in made.take_effects() if isinstance(e, Tell)]


def test_every_device_gets_its_worker() -> None:
    effects = hosting(budget(100, 100)).take_effects()
    assert effects[:2] == [StartWorker(0), StartWorker(1)]
    assert effects[2:] == [ToWorker(Inspect("/models/a", "a", "/cache"))]


def test_layers_that_no_device_holds_alone() -> None:
    """Of each 100 MiB 70 are for weights: six layers with embedding or head, no seven."""
    made = hosting(budget(100, 100))
    load = serve(made, found(), found())
    assert (load.layers, load.embed, load.head) == (LayerRange(0, 12), True, True)
    assert made.parts_of(ModelId("a")) == (LayerRange(0, 6), LayerRange(6, 12))
    assert load.kv_blocks == (100 - 60 - 5) * MIB // (KV_BLOCK_TOKENS * 6 * KV)
    (shard,) = made.shards()
    assert (shard.state, shard.cuts) == (ShardState.SERVING, (6,))
    assert made.kv_capacity_bytes == 70 * MIB
    (pool,) = made.pools()
    assert pool.capacity == load.kv_blocks


def test_a_device_that_comes_back_with_other_room_costs_the_others_no_load() -> None:
    """What a crew loads again it tells by the order: it must be the same for those that stayed."""
    made = hosting(budget(100, 100))
    first = serve(made, found(), found())
    made.worker_lost("crashed", 2.0, 1)
    made.tick({}, 100.0)
    made.inspected((found(memory=110 * MIB), found(memory=110 * MIB)), 101.0)
    (again,) = [order for order in orders(made) if isinstance(order, Load)]
    assert again == first
    made.worker_message(loaded(again), 102.0)
    made.worker_lost("crashed", 103.0, 1)
    made.tick({}, 200.0)
    made.inspected((found(memory=100 * MIB), found(memory=70 * MIB)), 201.0)
    (less,) = [order for order in orders(made) if isinstance(order, Load)]
    assert less.layers == first.layers and less.kv_blocks < first.kv_blocks, "it would not fit"


def test_what_each_device_says_of_itself_counts() -> None:
    """One is larger than the daemon thought, and counts weights in half the bytes."""
    made = hosting(budget(100, 100))
    seen = (found(memory=100 * MIB), found(memory=200 * MIB, layer=LAYER // 2))
    serve(made, *seen)
    first, second = made.parts_of(ModelId("a"))
    assert first is not None and second is not None and len(second) > 2 * len(first)
    assert made.kv_capacity_bytes == 300 * MIB - sum(
        weight_bytes(sizes, part) for sizes, part in zip(seen, (first, second), strict=True)
    )


def test_given_layers_that_do_not_fit_on_all_devices_together() -> None:
    made = hosting(budget(60, 60), wish("a", LayerRange(0, 12)))
    made.inspected((found(), found()), 0.0)
    (reason,) = said(made)
    assert reason.startswith("layers 0:12 need 130 MiB for weights alone, 1")
    assert reason.endswith("MiB are left of what is allowed on 2 devices")


def test_a_cpu_beside_a_gpu_only_takes_what_is_left() -> None:
    gpu_holds_all = hosting(budget(200, 400, spills=(False, True)))
    serve(gpu_holds_all, found(), found())
    assert gpu_holds_all.parts_of(ModelId("a")) == (LayerRange(0, 12), None)
    assert gpu_holds_all.shards()[0].cuts == ()
    too_small = hosting(budget(100, 400, spills=(False, True)))
    serve(too_small, found(), found())
    assert too_small.parts_of(ModelId("a")) == (LayerRange(0, 6), LayerRange(6, 12))


def two_models() -> Hosting:
    """The first fills the GPU, the second lies on the CPU."""
    made = hosting(budget(190, 400, spills=(False, True)), wish("a", LayerRange(0, 12)))
    serve(made, found(), found())
    made.load(wish("b", LayerRange(0, 12)))
    serve(made, found("b"), found("b"))
    assert made.parts_of(ModelId("a")) == (LayerRange(0, 12), None)
    assert made.parts_of(ModelId("b")) == (None, LayerRange(0, 12))
    made.take_effects()
    return made


def test_a_lost_device_takes_along_only_what_lies_on_it() -> None:
    made = two_models()
    assert made.worker_lost("it crashed", 10.0, 1) == (ModelId("b"),)
    assert states(made) == {"a": ShardState.SERVING}
    made.take_effects()
    due = made.next_deadline()
    assert due == 10.0 + CONFIG.restart_min_s
    made.tick({}, due)
    assert made.take_effects() == [
        StartWorker(1), ToWorker(Inspect("/models/b", "b", "/cache")),
    ]  # fmt: skip
    serve(made, found("b"), found("b"))
    assert set(states(made).values()) == {ShardState.SERVING}
    assert made.parts_of(ModelId("b")) == (None, LayerRange(0, 12))


def test_a_wedged_device_is_ended_alone_and_pauses_are_its_own() -> None:
    made = two_models()
    assert made.worker_stuck("it is silent", 10.0, 0) == (ModelId("a"),)
    assert StopWorker(0) in made.take_effects()
    assert made.worker_lost("it crashed", 10.1, 1) == (ModelId("b"),)
    assert states(made) == {}
    made.tick({}, 11.0)
    assert StartWorker(0) in made.take_effects()
    assert made.worker_lost("again", 11.0, 0) == ()
    assert made.next_deadline() == 10.1 + CONFIG.restart_min_s
    made.tick({}, 11.1)
    assert made.next_deadline() == 11.0 + 2 * CONFIG.restart_min_s


def test_words_of_a_living_device_count_while_another_one_is_lost() -> None:
    made = two_models()
    made.worker_lost("it crashed", 10.0, 1)
    made.take_effects()
    made.worker_message(WorkerFailed("/models/a", "it went bad"), 10.1)
    assert said(made) == ["it went bad"]


def test_a_model_that_goes_makes_room_on_its_devices() -> None:
    made = two_models()
    assert made.retire("b") == ModelId("b")
    made.release(ModelId("b"))
    assert orders(made) == [Unload(ModelId("b"))]
    made.load(wish("c", LayerRange(0, 12)))
    serve(made, found("c"), found("c"))
    assert made.parts_of(ModelId("c")) == (None, LayerRange(0, 12))


def test_a_node_that_rests_ends_all_its_workers_and_starts_all_again() -> None:
    made = hosting(budget(100, 100))
    serve(made, found(), found())
    made.worker_lost("it crashed", 5.0, 1)
    made.retire("a")
    made.release(ModelId("a"))
    made.take_effects()
    assert made.rest()
    assert made.take_effects() == [StopWorker(0)]
    assert made.next_deadline() is None
    made.load(wish("a"))
    assert made.take_effects()[:2] == [StartWorker(0), StartWorker(1)]


def test_a_model_that_comes_while_a_device_is_down_waits_for_it() -> None:
    made = hosting(budget(100, 100))
    serve(made, found(), found())
    made.worker_lost("it crashed", 5.0, 1)
    made.take_effects()
    made.load(wish("b"))
    assert made.take_effects() == []
    made.tick({}, 5.0 + CONFIG.restart_min_s)
    assert made.take_effects() == [
        StartWorker(1),
        ToWorker(Inspect("/models/a", "a", "/cache")),
        ToWorker(Inspect("/models/b", "b", "/cache")),
    ]


def test_a_move_that_its_devices_cannot_hold_goes_back() -> None:
    made = hosting(budget(100, 100))
    serve(made, found(count=12), found(count=12))
    parts = made.parts_of(ModelId("a"))
    made.intend(ModelId("a"), LayerRange(0, 6))
    made.move(ModelId("a"))
    (load,) = [order for order in orders(made) if isinstance(order, Load)]
    assert load.layers == LayerRange(0, 6)
    assert made.parts_of(ModelId("a")) == (LayerRange(0, 3), LayerRange(3, 6))
    made.worker_message(WorkerFailed("/models/a", "no room"), 2.0)
    (load,) = [order for order in orders(made) if isinstance(order, Load)]
    assert load.layers == LayerRange(0, 12) and made.parts_of(ModelId("a")) == parts


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=2, max_size=4),
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    spilling=st.integers(0, 4),
)
@example(sizes=[22, 22], counts=[1], spilling=0)
def test_no_device_is_ever_asked_for_more_than_it_has(
    sizes: list[int], counts: list[int], spilling: int
) -> None:
    """Weights and pools of all models, on each device, stay within its budget."""
    flags = tuple(index == spilling for index in range(len(sizes)))
    names = [str(index) for index in range(len(counts))]
    whole = budget(*sizes, spills=flags)
    made = hosting(whole, *map(wish, names))
    for name, count in zip(names, counts, strict=True):
        made.inspected(tuple(found(name, count) for _ in sizes), 0.0)
    for _ in range(3):
        made.tick({}, 1.0)
    for order in orders(made):
        if isinstance(order, Load):
            made.worker_message(loaded(order), 2.0)
    for device, (size, each) in enumerate(zip(sizes, whole.devices, strict=True)):
        weights = sum(h.weight_bytes_on(device) for h in made.all())
        pools = sum(h.pool_bytes_on(device) for h in made.all() if h.loaded is not None)
        assert weights <= each.weights
        assert weights + pools <= size * MIB


def test_one_device_is_told_as_before() -> None:
    made = hosting(replace(budget(100)))
    assert made.take_effects()[0] == StartWorker()
    made.worker_lost("it crashed", 1.0)
    (note,) = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert note.get("device") is None


@pytest.mark.parametrize("count", [1, 2])
def test_one_layer_that_fits_nowhere(count: int) -> None:
    made = hosting(budget(*[10] * count))
    made.inspected((found(),) * count, 0.0)
    made.tick({}, 0.0)
    assert said(made) == [f"not one layer fits into {7 * count} MiB"]
