"""Several workers as one: what each is told, and what the core hears of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.crew import Crew, Deal, Surveyed
from swarm.messages import (
    Begin,
    End,
    FailureCode,
    Inspect,
    Inspected,
    Load,
    Loaded,
    LoadProgress,
    Message,
    Ran,
    Recall,
    RowType,
    Run,
    RunFailed,
    SpeedReport,
    StepKind,
    Unload,
    WorkerFailed,
)
from swarm.part_sums import TEXT_MAX, whole_class, whole_device
from swarm.terms import (
    LayerRange,
    ModelId,
    ModelSpec,
    NumericClass,
    Parts,
    SampledToken,
    Sampling,
    SessionId,
    ShardSpeed,
)

MODEL = ModelId("m")
SPEC = ModelSpec(MODEL, "model", 12, 64, 100, 1000, (), True)
INSPECT = Inspect("/m", "model", "/cache")
FOUND = Inspected(SPEC, 10, 5, 5, 100, "", "/m", 1000)
LOAD = Load("/m", MODEL, LayerRange(2, 12), False, True, 50)
S = SessionId("1")
FIRST, LAST = LayerRange(2, 6), LayerRange(6, 12)
GREEDY = Sampling(temperature=0.0)


class Bench:
    """A crew of three, of which the middle one has nothing of this model."""

    def __init__(self, parts: Parts = (FIRST, None, LAST)) -> None:
        self.parts = parts
        self.crew = Crew(("cuda:0", "cuda:1", "cpu"), lambda model_id: self.parts)

    def order(self, message: Message) -> list[tuple[int, Message]]:
        deal = self.crew.order(message)
        assert deal.told == []
        return deal.orders

    def load(self, *loaded: Loaded) -> Deal:
        """All parts, and what was told at the last."""
        deal = Deal()
        told = {answer.layers: answer for answer in loaded}
        for device, order in self.order(LOAD):
            assert isinstance(order, Load)
            assert deal.told == []
            deal = self.crew.answered(device, told.get(order.layers) or answer_to(order))
        return deal

    def serving(self, *loaded: Loaded) -> Bench:
        assert len(self.load(*loaded).told) == 1
        return self


def answer_to(order: Load, *, name: str = "gpu", kv_blocks: int | None = None, unit: int = 32,
              layer_s: float = 0.001, numeric_class: str = "c") -> Loaded:  # fmt: skip
    speed = ShardSpeed(MODEL, layer_s, 2 * layer_s, layer_s / 10, 0.003 if order.head else 0.0,
                       0.01, 0)  # fmt: skip
    return Loaded(
        MODEL, order.layers, NumericClass(numeric_class), 100, RowType.FLOAT32, 256, speed, name,
        order.kv_blocks if kv_blocks is None else kv_blocks, unit, True, order.head,
    )  # fmt: skip


def part(layers: LayerRange) -> Load:
    return replace(LOAD, layers=layers, head=layers.stop == 12)


def begin(layers: LayerRange = LOAD.layers, generation: int = 1) -> Begin:
    head = layers.stop == 12
    return Begin(S, generation, MODEL, layers, False, head, 3, 9, GREEDY, b"blocks", 0, 2)


def run(position: int = 0, generation: int = 1) -> Run:
    return Run(S, generation, position, 3, StepKind.PREFILL, RowType.FLOAT16, 2, b"more", True,
               b"in")  # fmt: skip


def ran(position: int = 0, generation: int = 1, compute_s: float = 0.5) -> Ran:
    return Ran(S, generation, position, 3, StepKind.PREFILL, RowType.FLOAT32, compute_s, (),
               b"between")  # fmt: skip


# -------------------------------------------------------------------- checkpoints


def test_devices_look_at_a_checkpoint_one_after_the_other() -> None:
    bench = Bench()
    assert bench.order(INSPECT) == [(0, INSPECT)]
    assert bench.crew.answered(0, LoadProgress(0.0, "x")) == Deal(told=[LoadProgress(0.0, "x")])
    assert bench.crew.answered(0, FOUND) == Deal(orders=[(1, INSPECT)])
    other = replace(FOUND, memory_bytes=2000)
    assert bench.crew.answered(1, other) == Deal(orders=[(2, INSPECT)])
    assert bench.crew.answered(2, FOUND) == Deal(told=[Surveyed((FOUND, other, FOUND))])


def test_a_device_that_cannot_look_is_named() -> None:
    bench = Bench()
    bench.order(INSPECT)
    bench.crew.answered(0, FOUND)
    deal = bench.crew.answered(1, WorkerFailed("/m", "there is no such device"))
    assert deal == Deal(told=[WorkerFailed("/m", "cuda:1: there is no such device")])
    assert bench.crew.answered(2, FOUND) == Deal()


def test_files_that_change_between_two_looks() -> None:
    bench = Bench()
    bench.order(INSPECT)
    bench.crew.answered(0, FOUND)
    other = replace(FOUND, spec=replace(SPEC, model_id=ModelId("n")))
    (told,) = bench.crew.answered(1, other).told
    assert isinstance(told, WorkerFailed) and "changed" in told.detail


def test_a_look_that_was_asked_for_anew_has_no_answer_of_the_old_one() -> None:
    bench = Bench()
    bench.order(INSPECT)
    again = replace(INSPECT)
    bench.order(again)
    assert bench.crew.answered(0, FOUND) == Deal()
    assert bench.crew.answered(0, FOUND) == Deal(orders=[(1, again)])


# -------------------------------------------------------------------- loading


def test_each_device_loads_its_part_and_the_core_hears_of_one_shard() -> None:
    bench = Bench()
    assert bench.order(LOAD) == [(0, part(FIRST)), (2, part(LAST))]
    first = answer_to(part(FIRST), layer_s=0.001)
    assert bench.crew.answered(0, first) == Deal()
    last = answer_to(part(LAST), name="cpu", layer_s=0.006, kv_blocks=40, numeric_class="d")
    (told,) = bench.crew.answered(2, last).told
    assert isinstance(told, Loaded)
    assert (told.layers, told.kv_blocks, told.prefix_unit, told.guides) == (LOAD.layers, 40, 32, 1)
    assert told.numeric_class == "c@2:6+d@6:12"
    assert told.device == "gpu + cpu"
    assert told.speed.decode_s_per_layer == pytest.approx((4 * 0.001 + 6 * 0.006) / 10)
    assert (told.speed.head_s, told.speed.queue_s) == pytest.approx((0.003, 0.02))


@pytest.mark.parametrize(
    ("blocks", "units", "whole"),
    [
        ((50, 50), (32, 96), (50, 96)),
        ((50, 0), (32, 0), (50, 0)),
        ((0, 0), (0, 0), (0, 0)),
        ((20, 50), (0, 32), (20, 0)),
    ],
)
def test_the_pool_is_that_of_the_fullest_device(
    blocks: tuple[int, int], units: tuple[int, int], whole: tuple[int, int]
) -> None:
    (told,) = Bench().load(
        answer_to(part(FIRST), kv_blocks=blocks[0], unit=units[0]),
        answer_to(part(LAST), kv_blocks=blocks[1], unit=units[1]),
    ).told  # fmt: skip
    assert isinstance(told, Loaded)
    assert (told.kv_blocks, told.prefix_unit) == whole
    assert (told.numeric_class, told.device) == ("c", "2 x gpu")


def test_one_device_that_cannot_load_ends_it_for_all() -> None:
    bench = Bench()
    bench.order(LOAD)
    deal = bench.crew.answered(2, WorkerFailed("/m", "it is full"))
    assert deal.told == [WorkerFailed("/m", "cpu: it is full")]
    assert deal.orders == [(0, Unload(MODEL))]
    assert bench.crew.answered(0, answer_to(part(FIRST))) == Deal()
    assert bench.order(LOAD) == [(0, part(FIRST)), (2, part(LAST))]


def test_a_shard_that_moves_to_other_devices_leaves_nothing_behind() -> None:
    bench = Bench().serving()
    bench.parts = (None, FIRST, LAST)
    assert bench.order(LOAD) == [(0, Unload(MODEL)), (1, part(FIRST))]
    (told,) = bench.crew.answered(1, answer_to(part(FIRST))).told
    assert isinstance(told, Loaded)
    assert bench.order(Unload(MODEL)) == [(1, Unload(MODEL)), (2, Unload(MODEL))]
    assert bench.order(Unload(MODEL)) == []


def test_what_did_not_die_is_not_loaded_again() -> None:
    bench = Bench().serving()
    bench.order(begin())
    bench.crew.lost(0)
    assert bench.crew.served_on(2) is None
    assert bench.order(LOAD) == [(0, part(FIRST))]
    (told,) = bench.crew.answered(0, answer_to(part(FIRST))).told
    assert isinstance(told, Loaded) and told.layers == LOAD.layers


def test_an_order_that_changes_nothing_is_answered_too() -> None:
    bench = Bench().serving()
    assert bench.order(LOAD) == [(2, part(LAST))]
    assert len(bench.crew.answered(2, answer_to(part(LAST))).told) == 1


def test_a_part_that_was_being_loaded_when_another_device_died_counts_later() -> None:
    bench = Bench()
    bench.order(LOAD)
    bench.crew.lost(0)
    assert bench.order(LOAD) == [(0, part(FIRST))]
    assert bench.crew.answered(2, answer_to(part(LAST))) == Deal()
    assert len(bench.crew.answered(0, answer_to(part(FIRST))).told) == 1


def test_answers_belong_to_orders_in_turn() -> None:
    """A load that was overtaken by an unload is not taken for what is there."""
    bench = Bench()
    bench.order(LOAD)
    bench.order(Unload(MODEL))
    bench.order(LOAD)
    for device, layers in ((0, FIRST), (2, LAST)):
        assert bench.crew.answered(device, answer_to(part(layers), kv_blocks=1)) == Deal()
    assert bench.crew.answered(0, answer_to(part(FIRST))) == Deal()
    assert len(bench.crew.answered(2, answer_to(part(LAST))).told) == 1


def test_speeds_are_those_of_all_parts() -> None:
    bench = Bench().serving()
    speed = replace(answer_to(part(LAST)).speed, decode_s_per_layer=0.011, queue_s=1.0)
    (told,) = bench.crew.answered(2, SpeedReport(speed, 70, 3)).told
    assert isinstance(told, SpeedReport)
    assert told.speed.decode_s_per_layer == pytest.approx((4 * 0.001 + 6 * 0.011) / 10)
    assert (told.speed.queue_s, told.kv_used_bytes) == (pytest.approx(1.01), 70)
    assert bench.crew.speed_of(2, MODEL) == speed
    assert bench.crew.speed_of(1, MODEL) is None
    assert bench.crew.answered(1, SpeedReport(speed, 70, 3)) == Deal()


def test_texts_for_records_stay_short() -> None:
    many = [answer_to(part(LayerRange(i, i + 1)), numeric_class=f"{i}" * 200) for i in range(5)]
    classes = {whole_class(many), whole_class(many[1:])}
    assert len(classes) == 2 and all(len(text) <= TEXT_MAX for text in classes)
    assert whole_device(["a" * 300, "b" * 300]) == "2 devices"


# -------------------------------------------------------------------- sessions


def test_rows_pass_the_devices_in_turn() -> None:
    bench = Bench().serving()
    assert bench.order(begin()) == [
        (0, replace(begin(), layers=FIRST, head=False, hop_count=3)),
        (2, replace(begin(), layers=LAST, head=True, hop_count=3)),
    ]
    recall = Recall(S, 1, 0, 0, b"ids")
    assert bench.order(recall) == [(2, recall)]
    assert bench.order(run()) == [(0, run())]
    assert bench.order(run(3)) == [(0, run(3))]
    passed = replace(run(), row_type=RowType.FLOAT32, payload=b"between")
    assert bench.crew.answered(0, ran()) == Deal(orders=[(2, passed)])
    token = SampledToken(3, 42)
    answer = replace(ran(), compute_s=0.25, tokens=(token,), payload=b"")
    assert bench.crew.answered(2, answer) == Deal(told=[replace(answer, compute_s=0.75)])
    (second,) = bench.crew.answered(0, ran(3)).orders
    assert second == (2, replace(passed, position=3))
    assert bench.order(End(S)) == [(0, End(S)), (2, End(S))]
    assert bench.crew.answered(2, ran(3)) == Deal()
    assert bench.order(run(6)) == [] and bench.order(End(S)) == []


@pytest.mark.parametrize(
    ("layers", "devices"),
    [(LayerRange(2, 5), [0]), (LayerRange(5, 7), [0, 2]), (LayerRange(7, 12), [2])],
)
def test_a_route_that_uses_a_part_uses_only_its_devices(
    layers: LayerRange, devices: list[int]
) -> None:
    bench = Bench().serving()
    orders = bench.order(begin(layers))
    assert [device for device, _ in orders] == devices
    told = [order.layers for _, order in orders if isinstance(order, Begin)]
    assert told[0].start == layers.start and told[-1].stop == layers.stop
    bench.order(run())
    for device in devices[:-1]:
        assert len(bench.crew.answered(device, ran()).orders) == 1
    assert bench.crew.answered(devices[-1], ran()).told == [
        replace(ran(), compute_s=0.5 * len(devices))
    ]


def test_a_session_that_begins_anew_hears_nothing_of_before() -> None:
    bench = Bench().serving()
    bench.order(begin())
    bench.order(run())
    assert [device for device, _ in bench.order(begin(generation=2))] == [0, 2]
    assert bench.crew.answered(0, ran()) == Deal()
    assert bench.order(run()) == []
    assert bench.order(run(generation=2)) == [(0, run(generation=2))]
    assert len(bench.crew.answered(0, ran(generation=2)).orders) == 1


def test_a_session_that_begins_anew_on_fewer_devices_leaves_the_others() -> None:
    bench = Bench().serving()
    bench.order(begin())
    assert bench.order(begin(LayerRange(7, 12), 2))[0] == (0, End(S))


def test_a_device_without_blocks_is_told_none() -> None:
    bench = Bench().serving(answer_to(part(LAST), kv_blocks=0))
    first, last = (order for _, order in bench.order(begin()))
    assert isinstance(first, Begin) and isinstance(last, Begin)
    assert (first.blocks, last.blocks) == (b"blocks", b"")
    bench.order(run())
    ((_, passed),) = bench.crew.answered(0, ran()).orders
    assert isinstance(passed, Run) and passed.blocks == b""


def test_a_step_that_fails_anywhere_is_told_once() -> None:
    bench = Bench().serving()
    bench.order(begin())
    bench.order(run())
    bench.order(run(3))
    bench.crew.answered(0, ran())
    failed = RunFailed(S, 1, FailureCode.STEP_FAILED, "no memory")
    assert bench.crew.answered(2, failed) == Deal(told=[failed])
    assert bench.crew.answered(2, failed) == Deal()
    assert bench.crew.answered(0, ran(3)) == Deal()
    assert bench.order(End(S)) == [(0, End(S)), (2, End(S))]


def test_a_lost_device_ends_only_what_used_it() -> None:
    """Sessions that ran on the others alone go on, though their shard must be loaded again."""
    bench = Bench().serving()
    bench.order(begin())
    bench.order(run())
    other = replace(begin(LayerRange(7, 12)), session=SessionId("2"))
    bench.order(other)
    bench.crew.lost(0)
    assert bench.crew.answered(0, ran()) == Deal()
    assert bench.order(run(3)) == []
    assert bench.order(End(S)) == [(0, End(S)), (2, End(S))]
    assert bench.order(End(SessionId("2"))) == [(2, End(SessionId("2")))]


def test_nothing_begins_on_a_shard_that_is_gone() -> None:
    bench = Bench().serving()
    bench.crew.lost(2)
    assert bench.order(begin()) == []
    assert bench.order(run()) == []
