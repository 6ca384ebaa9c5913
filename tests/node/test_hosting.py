"""A node's own shards: chosen, announced before they are loaded, and back after a crash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.config import MIB, ShardConfig
from swarm.effects import StartWorker, Tell, ToWorker
from swarm.errors import RequestError
from swarm.hosted import block_bytes, weight_bytes
from swarm.hosting import Budget, Hosting, Rival, Wish
from swarm.messages import (
    KV_BLOCK_TOKENS,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Message,
    RowType,
    SpeedReport,
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

SPEC = ModelSpec(ModelId("m"), "model", 12, 64, 100, 1000, (), True)
CONFIG = ShardConfig(activation_bytes=0, later_fraction=0.0)
"""Nothing is kept for later, so that sums are plain."""
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
    blocks = 60 * MIB // (KV_BLOCK_TOKENS * 4 * 100)
    assert to_worker(made) == [
        Load("/models/model", SPEC.model_id, LayerRange(4, 8), False, False, blocks)
    ]
    assert made.shards()[0].state is ShardState.LOADING
    made.worker_message(loaded(LayerRange(4, 8)), 1.0)
    (shard,) = made.shards()
    assert shard.state is ShardState.SERVING
    assert (shard.embed, shard.head, shard.numeric_class) == (False, False, "c")
    assert made.kv_capacity_bytes == 60 * MIB
    assert made.speeds(lambda _: 7)[0].kv_free_bytes == 7
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


def test_layers_that_leave_no_room_for_kv() -> None:
    made = hosting(LayerRange(2, 12), memory=105 * MIB)
    made.worker_message(inspected(), 0.0)
    assert made.shards() == ()
    (note,) = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert "none remain for their KV" in str(note.get("reason"))


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
    assert (shard.layers, shard.state) == (LayerRange(6, 12), ShardState.INTENDED)
    assert to_worker(made) == []
    made.tick(others, 12.6)
    blocks = (100 * MIB - 6 * LAYER - 5 * MIB) // (KV_BLOCK_TOKENS * 6 * 100)
    assert to_worker(made) == [
        Load("/models/model", SPEC.model_id, LayerRange(6, 12), False, True, blocks)
    ]


def intending(memory: int = 60 * MIB) -> tuple[Hosting, LayerRange]:
    """A node that has just published its intention, at 2.0 s."""
    made = hosting(memory=memory)
    made.worker_message(inspected(), 0.0)
    made.tick({}, 2.0)
    made.take_effects()
    return made, made.shards()[0].layers


def intended(name: str, layers: LayerRange) -> Rival:
    return Rival(NodeId(name), layers, ShardState.INTENDED, 0.001)


def test_the_larger_id_lets_the_smaller_go_first_and_chooses_again() -> None:
    made, mine = intending()
    made.tick({SPEC.model_id: [intended("a", mine)]}, 2.6)
    assert to_worker(made) == []
    assert not made.shards()[0].layers.overlaps(mine)
    loading = Rival(NodeId("a"), LayerRange(0, 8), ShardState.LOADING, 0.001)
    made.tick({SPEC.model_id: [loading]}, 3.2)
    (load,) = to_worker(made)
    assert isinstance(load, Load) and load.layers == LayerRange(8, 11)


def test_the_smaller_id_keeps_its_place() -> None:
    made, mine = intending()
    made.tick({SPEC.model_id: [intended("z", mine)]}, 2.6)
    assert isinstance(to_worker(made)[0], Load)


def test_a_load_of_a_larger_id_is_not_taken_back() -> None:
    made, mine = intending()
    made.tick({SPEC.model_id: [Rival(NodeId("z"), mine, ShardState.LOADING, 0.001)]}, 2.6)
    (load,) = to_worker(made)
    assert isinstance(load, Load) and not load.layers.overlaps(mine)


def test_ranges_that_overlap_in_part_are_chosen_again_too() -> None:
    """0:3 and 0:8 are not equal, and yet 8:12 would stay open."""
    made, mine = intending(memory=60 * MIB)
    made.tick({SPEC.model_id: [intended("a", LayerRange(0, 8))]}, 2.6)
    assert mine == LayerRange(0, 3)
    assert made.shards()[0].layers == LayerRange(8, 11)


def test_nobody_is_waited_for_without_end() -> None:
    made, mine = intending()
    now, turns = 2.0, 0
    while not (sent := to_worker(made)):
        now, turns = now + 0.6, turns + 1
        made.tick({SPEC.model_id: [intended("a", mine)]}, now)
    assert isinstance(sent[0], Load)
    assert turns == CONFIG.intention_turns_max + 1


# ---------------------------------------------------------------- many that join at once


@dataclass(frozen=True)
class Joiner:
    starts_at: float
    width: int
    load_s: float


class Town:
    """Nodes that hear of each other's shards after a delay, and of nothing else."""

    def __init__(self, joiners: list[Joiner], ids: list[int], delays: list[float]) -> None:
        self.nodes = [
            Hosting(
                NodeId(f"{number:03}"),
                [Wish("/models/model", "model", None)],
                Budget(10 * MIB + joiner.width * LAYER, 0),
                CONFIG,
                "/cache",
            )
            for number, joiner in zip(ids, joiners, strict=True)
        ]
        self.ids = [NodeId(f"{number:03}") for number in ids]
        self.joiners = joiners
        self.delays = delays
        self.heard: list[dict[int, list[Rival]]] = [{} for _ in joiners]
        self.loaded: dict[int, LayerRange] = {}
        self.count = 0
        self.heap: list[tuple[float, int, str, int, object]] = []

    def push(self, at: float, what: str, node: int, fact: object = None) -> None:
        heappush(self.heap, (at, self.count, what, node, fact))
        self.count += 1

    def run(self) -> None:
        for node, joiner in enumerate(self.joiners):
            self.nodes[node].start()
            self.push(joiner.starts_at, "inspected", node)
        while self.heap:
            now, _, what, node, fact = heappop(self.heap)
            if what == "heard":
                author, shards = fact  # type: ignore[misc]
                self.heard[node][author] = shards
                continue
            if what == "inspected":
                self.nodes[node].worker_message(inspected(), now)
            elif what == "loaded":
                assert isinstance(fact, LayerRange)
                self.nodes[node].worker_message(loaded(fact), now)
                self.loaded[node] = fact
            else:
                rivals = [rival for told in self.heard[node].values() for rival in told]
                self.nodes[node].tick({SPEC.model_id: rivals}, now)
            self.after(node, now)

    def after(self, node: int, now: float) -> None:
        """Carry out what the node ordered, spread what it announces, and arm its timer."""
        made = self.nodes[node]
        for message in to_worker(made):
            if isinstance(message, Load):
                self.push(now + self.joiners[node].load_s, "loaded", node, message.layers)
        if made.changed:
            made.changed = False
            told = [Rival(self.ids[node], s.layers, s.state, 0.001) for s in made.shards()]
            for other in range(len(self.nodes)):
                if other != node:
                    delay = self.delays[(node * len(self.nodes) + other) % len(self.delays)]
                    self.push(now + delay, "heard", other, (node, told))
        if (deadline := made.next_deadline()) is not None:
            self.push(deadline, "tick", node)


@st.composite
def towns(draw: st.DrawFn) -> Town:
    """2 to 6 nodes within seconds of each other, whose memory suffices, if only just."""
    count = draw(st.integers(2, 6))
    widths = draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    if (lacking := SPEC.layer_count - sum(widths)) > 0:
        widths[draw(st.integers(0, count - 1))] += lacking
    joiners = [
        Joiner(draw(st.floats(0.0, 4.0)), width, draw(st.floats(0.0, 5.0))) for width in widths
    ]
    ids = draw(st.permutations(range(count)))
    delays = draw(st.lists(st.floats(0.001, 0.2), min_size=1, max_size=count * count))
    return Town(joiners, ids, delays)


@settings(max_examples=300, deadline=None)
@given(towns())
def test_whoever_joins_at_once_covers_the_model_together(town: Town) -> None:
    town.run()
    assert len(town.loaded) == len(town.nodes)
    assert {layer for layers in town.loaded.values() for layer in range(layers.start, layers.stop)
            } == set(range(SPEC.layer_count))  # fmt: skip


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


def serving_a_choice() -> Hosting:
    made = hosting()
    made.worker_message(inspected(), 0.0)
    made.tick({}, 2.0)
    made.tick({}, 2.6)
    made.worker_message(loaded(made.shards()[0].layers), 3.0)
    to_worker(made)
    return made


def test_a_move_that_costs_the_worker_its_life_is_not_begun_again() -> None:
    made = serving_a_choice()
    former = made.shards()[0].layers
    made.intend(SPEC.model_id, LayerRange(3, 5))
    made.move(SPEC.model_id)
    assert [m.layers for m in to_worker(made) if isinstance(m, Load)] == [LayerRange(3, 5)]
    made.worker_lost("killed", 5.0)
    made.tick({}, 5.0 + CONFIG.restart_min_s)
    made.worker_message(inspected(), 7.0)
    assert [m.layers for m in to_worker(made) if isinstance(m, Load)] == [former]
    (h,) = made.all()
    assert h.is_barred, "it stays with them for a while"


@pytest.mark.parametrize("parts", ["retires", "moves"])
def test_sessions_of_a_shard_that_others_are_told_no_more_of_are_lost_with_it(parts: str) -> None:
    made = serving_a_choice()
    if parts == "retires":
        made.retire("model")
    else:
        made.intend(SPEC.model_id, LayerRange(3, 5))
        made.part(SPEC.model_id)
    assert made.worker_lost("killed", 5.0) == (SPEC.model_id,)


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
    assert made.speeds(lambda _: 0)[0].decode_s_per_layer == 0.0005


# ---------------------------------------------------------------- two models


OTHER = replace(SPEC, model_id=ModelId("n"), name="other")


def two(layers: LayerRange | None, memory: int) -> Hosting:
    wishes = [Wish("/models/model", "model", layers), Wish("/models/other", "other", layers)]
    made = Hosting(NodeId("me"), wishes, Budget.of(memory, CONFIG), CONFIG, "/cache")
    made.start()
    return made


def inspected_other() -> Inspected:
    return replace(inspected(), spec=OTHER, path="/models/other")


def test_fixed_layers_of_two_models_share_the_memory() -> None:
    made = two(LayerRange(4, 10), 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.take_effects()
    made.worker_message(inspected_other(), 0.0)
    (said,) = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert said.event == "shard.failed" and "25 MiB are left" in str(said.get("reason"))
    assert [shard.model_id for shard in made.shards()] == [SPEC.model_id]
    assert made.kv_capacity_bytes == made.shards()[0].kv_capacity_bytes == 40 * MIB


def test_two_models_that_choose_share_the_memory() -> None:
    made = two(None, 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(inspected_other(), 0.0)
    made.tick({}, 2.0)
    first, second = made.shards()
    assert (len(first.layers), len(second.layers)) == (2, 3)
    weights = 5 * LAYER + 2 * 5 * MIB  # each holds layer 0, so its embedding
    assert made.kv_capacity_bytes == first.kv_capacity_bytes == 100 * MIB - weights
    made.tick({}, 2.6)
    assert [type(message) for message in to_worker(made)][-2:] == [Load, Load]
    assert sum(len(shard.layers) for shard in made.shards()) == 5


def test_no_room_for_a_second_model_is_said() -> None:
    made = two(None, 30 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(inspected_other(), 0.0)
    made.take_effects()
    made.tick({}, 2.0)
    said = [e.note for e in made.take_effects() if isinstance(e, Tell)]
    assert [note.event for note in said] == ["shard.intended", "shard.failed"]
    assert [shard.model_id for shard in made.shards()] == [SPEC.model_id]


def test_nothing_is_served_while_the_worker_has_still_to_load() -> None:
    made = two(LayerRange(4, 6), 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(inspected_other(), 0.0)
    made.worker_message(loaded(LayerRange(4, 6)), 1.0)
    assert {shard.state for shard in made.shards()} == {ShardState.LOADING}
    assert made.speeds(lambda _: 0) == ()
    made.worker_message(replace(loaded(LayerRange(4, 6)), model_id=OTHER.model_id), 2.0)
    assert {shard.state for shard in made.shards()} == {ShardState.SERVING}
    told = [e.note.event for e in made.take_effects() if isinstance(e, Tell)]
    assert told.count("shard.serving") == 2


def test_a_second_model_that_fails_does_not_hold_up_the_first() -> None:
    made = two(LayerRange(4, 6), 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(loaded(LayerRange(4, 6)), 1.0)
    assert made.shards()[0].state is ShardState.LOADING
    made.worker_message(WorkerFailed("/models/other", "it is cut short"), 1.0)
    assert made.shards()[0].state is ShardState.SERVING


def test_the_same_model_twice_is_served_once() -> None:
    made = two(LayerRange(4, 6), 100 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(replace(inspected(), path="/models/other"), 0.0)
    made.worker_message(loaded(LayerRange(4, 6)), 1.0)
    assert [shard.state for shard in made.shards()] == [ShardState.SERVING]


def test_a_model_more_and_a_model_less() -> None:
    made = hosting(LayerRange(0, 12), memory=400 * MIB)
    made.worker_message(inspected(), 0.0)
    made.worker_message(loaded(LayerRange(0, 12)), 1.0)
    made.take_effects()
    made.load(Wish("/models/other", "other", None))
    assert Inspect("/models/other", "other", "/cache") in to_worker(made)
    other = replace(inspected(), spec=replace(SPEC, model_id=ModelId("o")), path="/models/other")
    made.worker_message(other, 2.0)
    assert made.retire("model") == SPEC.model_id
    assert made.changed and made.shards() == () and len(made.served()) == 1
    made.release(SPEC.model_id)
    assert Unload(SPEC.model_id) in to_worker(made) and made.served() == ()
    assert [spec.model_id for spec in made.models()] == ["o"]
    made.load(Wish("/models/model", "model", None))
    made.take_effects()
    assert made.retire("model") is None, "the worker has not even looked at it"
    assert not any(isinstance(message, Unload) for message in to_worker(made))


def test_one_worker_serves_what_is_loaded_later_and_comes_back_with_all_of_it() -> None:
    made = serving_a_choice()
    made.load(Wish("/models/other", "other", LayerRange(0, 2)))
    orders = made.take_effects()
    assert not any(isinstance(order, StartWorker) for order in orders), "it runs"
    made.worker_lost("killed", 5.0)
    made.load(Wish("/models/third", "third", LayerRange(0, 1)))
    assert not any(isinstance(e, StartWorker | ToWorker) for e in made.take_effects())
    made.tick({}, 5.0 + CONFIG.restart_min_s)
    start, *orders = made.take_effects()
    assert isinstance(start, StartWorker)
    paths = [e.message.path for e in orders if isinstance(e, ToWorker)]  # type: ignore[union-attr]
    assert paths == ["/models/model", "/models/other", "/models/third"]


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish("/models/model", "again", None), "again is served here already"),
        (Wish("/models/x", "model", None), "another model called model is served here already"),
    ],
)
def test_a_model_that_is_here_is_not_loaded_again(wish: Wish, said: str) -> None:
    made = hosting()
    with pytest.raises(RequestError, match=said):
        made.load(wish)
    made.worker_message(WorkerFailed("/models/model", "it is broken"), 1.0)
    made.load(Wish("/models/model", "model", None))
    with pytest.raises(RequestError, match="nothing is not served here"):
        made.retire("nothing")


@pytest.mark.parametrize("layers", [LayerRange(0, 2), None])
def test_a_model_that_is_loaded_later_finds_memory(layers: LayerRange | None) -> None:
    config = ShardConfig(activation_bytes=0)
    made = Hosting(NodeId("me"), [], Budget.of(200 * MIB, config), config, "/cache")
    made.start()
    made.load(Wish("/models/model", "model", LayerRange(4, 8)))
    made.worker_message(inspected(), 0.0)
    (first,) = [order for order in to_worker(made) if isinstance(order, Load)]
    made.worker_message(replace(loaded(first.layers), kv_blocks=first.kv_blocks), 1.0)
    made.load(Wish("/models/other", "other", layers))
    made.worker_message(inspected_other(), 2.0)
    made.tick({}, 2.0 + config.settle_s)
    made.tick({}, 3.0 + config.settle_s)
    (second,) = [order for order in to_worker(made) if isinstance(order, Load)]
    assert second.kv_blocks > 0
    taken = sum(
        weight_bytes(inspected(), order.layers) + order.kv_blocks * block_bytes(100, order.layers)
        for order in (first, second)
    )
    assert taken <= 200 * MIB
