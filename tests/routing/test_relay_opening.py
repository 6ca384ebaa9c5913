"""What a hop takes on: opening, refusals, and where a resume may start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from relay_bench import (
    AFTER,
    BEFORE,
    CONFIG,
    END,
    FIRST,
    LAST,
    LIMIT,
    LIMIT_BLOCKS,
    ME,
    MIDDLE,
    ORIGIN,
    OTHER,
    PROMPT,
    ROW,
    SESSION,
    WORKER_ID,
    Bench,
    begin_of,
    chunk,
    credit,
    decode_step,
    gap,
    opened,
    refusal,
    rows_ran,
    rows_run,
    shard_of,
    under,
)

from swarm.effects import Send, ToWorker
from swarm.errors import RemoteProtocolError
from swarm.messages import (
    PREFIX_HASH_BYTES,
    Begin,
    Gap,
    Open,
    RefusalCode,
    Refused,
    Release,
    Run,
    StepKind,
    Token,
)
from swarm.routing.relay_rules import LOGPROBS_MAX
from swarm.shard.kv_blocks import blocks_for
from swarm.terms import (
    Epoch,
    LayerRange,
    ModelId,
    NodeId,
    SampledToken,
    Sampling,
    SessionId,
)

# ---------------------------------------------------------------- opening


def test_an_open_reserves_begins_and_says_what_is_held() -> None:
    bench = Bench()
    assert bench.open(MIDDLE) == [begin_of(MIDDLE), opened()]
    assert bench.spoken_for == LIMIT_BLOCKS
    assert bench.open(MIDDLE) == [opened()]


def test_a_higher_epoch_keeps_rows_and_reservation() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    assert bench.open(replace(under(MIDDLE, 2), next=OTHER)) == [opened(2, 22, 0)]
    assert bench.spoken_for == LIMIT_BLOCKS


@pytest.mark.parametrize(
    "change",
    [
        {"layers": LayerRange(5, 8)},
        {"position_limit": LIMIT - 1},
        {"position_limit": LIMIT + 10},
        {"prompt_count": PROMPT - 1},
        {"sampling": Sampling(seed=4)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_work_under_a_higher_epoch_starts_from_nothing(change: dict[str, object]) -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    other = replace(under(MIDDLE, 2), **change)  # type: ignore[arg-type]
    assert bench.open(other) == [begin_of(other, generation=2), opened(2)]
    assert bench.spoken_for == blocks_for(other.position_limit)


def test_other_work_without_room_changes_nothing() -> None:
    bench = Bench(blocks=LIMIT_BLOCKS)
    bench.hold(MIDDLE, 22)
    larger = replace(under(MIDDLE, 2), position_limit=LIMIT + 10)
    assert refusal(bench.open(larger)) is RefusalCode.KV_EXHAUSTED
    assert bench.spoken_for == LIMIT_BLOCKS
    assert bench.open(under(MIDDLE, 3)) == [opened(3, 22, 0)]


def test_old_epochs_are_refused() -> None:
    bench = Bench()
    bench.open(under(MIDDLE, 2))
    assert refusal(bench.open(MIDDLE)) is RefusalCode.OLD_EPOCH
    bench.resume(0, 0, epoch=2)
    assert refusal(bench.open(under(MIDDLE, 2))) is RefusalCode.OLD_EPOCH


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (replace(MIDDLE, model_id=ModelId("x")), RefusalCode.NO_SHARD),
        (replace(MIDDLE, layers=LayerRange(4, 9)), RefusalCode.NO_SHARD),
        (FIRST, RefusalCode.NO_SHARD),
        (replace(MIDDLE, head=True, next=ORIGIN), RefusalCode.NO_SHARD),
        (replace(MIDDLE, position_limit=CONFIG.positions_max + 1), RefusalCode.KV_EXHAUSTED),
        (replace(MIDDLE, position_limit=90_000, prompt_count=3000), RefusalCode.KV_EXHAUSTED),
    ],
)
def test_what_is_not_to_be_had_here(order: Open, code: RefusalCode) -> None:
    bench = Bench()
    assert refusal(bench.open(order)) is code
    assert bench.relay.session_count() == 0
    assert bench.spoken_for == 0


def test_the_head_goes_with_the_last_layer() -> None:
    bench = Bench(shard_of(8, 12))
    assert refusal(bench.open(replace(LAST, layers=LayerRange(8, 11)))) is RefusalCode.NO_SHARD
    headless = replace(LAST, head=False, next=AFTER)
    assert refusal(bench.open(headless)) is RefusalCode.NO_SHARD
    assert bench.open(LAST) == [begin_of(LAST), opened(sampling_level=1)]


@pytest.mark.parametrize("peer", [BEFORE, AFTER])
def test_a_missing_link_is_named(peer: NodeId) -> None:
    bench = Bench()
    bench.linked.discard(peer)
    (effect,) = bench.open(MIDDLE)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Refused)
    assert (effect.message.code, effect.message.peer) == (RefusalCode.NO_LINK, peer)
    assert not effect.message.waited


def waiting(*unlinked: NodeId) -> Bench:
    """A hop that has taken MIDDLE in and lacks links."""
    bench = Bench()
    bench.linked -= set(unlinked)
    bench.dialable = set(unlinked)
    assert bench.open(MIDDLE) == [begin_of(MIDDLE)]
    return bench


def test_the_next_hop_is_dialled_before_opened_is_said() -> None:
    bench = waiting(AFTER)
    assert bench.relay.take_wishes() == [AFTER]
    assert bench.relay.next_deadline() == bench.now + CONFIG.hop_link_wait_s
    bench.relay.link_up(BEFORE)
    assert bench.effects() == []
    bench.relay.link_up(AFTER)
    assert bench.effects() == [opened()]
    bench.relay.link_up(AFTER)
    assert bench.effects() == []
    assert bench.relay.next_deadline() == bench.now + CONFIG.opened_max_s


def test_the_feeder_is_dialled_back_when_it_does_not_come() -> None:
    bench = waiting(BEFORE)
    assert bench.relay.take_wishes() == []
    assert bench.relay.next_deadline() == bench.now + CONFIG.dial_back_s
    bench.relay.tick(bench.now + CONFIG.dial_back_s)
    assert bench.relay.take_wishes() == [BEFORE]
    assert bench.relay.next_deadline() == bench.now + CONFIG.hop_link_wait_s
    bench.relay.link_up(BEFORE)
    assert bench.effects() == [opened()]


def test_a_link_that_does_not_come_is_a_refusal_and_frees_the_session() -> None:
    bench = waiting(BEFORE, AFTER)
    bench.relay.link_up(AFTER)
    bench.relay.tick(bench.now + CONFIG.dial_back_s)
    bench.relay.tick(bench.now + CONFIG.hop_link_wait_s)
    (refused, end) = bench.effects()
    assert isinstance(refused, Send)
    assert isinstance(refused.message, Refused)
    assert (refused.message.peer, refused.message.waited) == (BEFORE, True)
    assert end == END
    assert bench.spoken_for == 0


def test_rows_outlive_a_link_that_does_not_come() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    bench.linked.discard(OTHER)
    bench.dialable = {OTHER}
    assert bench.open(replace(under(MIDDLE, 2), next=OTHER)) == []
    bench.relay.tick(bench.now + CONFIG.hop_link_wait_s)
    assert refusal(bench.effects()) is RefusalCode.NO_LINK
    assert bench.open(under(MIDDLE, 3)) == [opened(3, 22, 0)]


def test_a_release_ends_the_wait() -> None:
    bench = waiting(AFTER)
    bench.relay.release(ORIGIN, Release(SESSION, Epoch(1)))
    assert bench.effects() == [END]
    bench.relay.link_up(AFTER)
    bench.relay.tick(bench.now + 100)
    assert bench.effects() == []


def test_no_origin_takes_all_places() -> None:
    bench = Bench()
    ids = [SessionId(f"{i:016x}") for i in range(5)]
    for number in range(3):
        assert len(bench.open(replace(MIDDLE, session=ids[number]))) == 2
    assert refusal(bench.open(replace(MIDDLE, session=ids[3]))) is RefusalCode.SESSION_LIMIT
    assert len(bench.open(replace(MIDDLE, session=ids[3]), OTHER)) == 2
    assert refusal(bench.open(replace(MIDDLE, session=ids[4]), OTHER)) is RefusalCode.SESSION_LIMIT
    assert len(bench.open(under(replace(MIDDLE, session=ids[0]), 2))) == 1


def test_a_leaving_node_takes_nothing_new() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    assert [origin for origin, _ in bench.relay.farewells()] == [ORIGIN]
    stranger = replace(MIDDLE, session=SessionId("cd" * 8))
    assert refusal(bench.open(stranger)) is RefusalCode.LEAVING
    assert bench.open(under(MIDDLE, 2)) == [opened(2)]


SAMPLING = MIDDLE.sampling


@pytest.mark.parametrize(
    "order",
    [
        replace(MIDDLE, session=SessionId("x")),
        replace(MIDDLE, session=SessionId("ab" * 2000)),
        replace(MIDDLE, epoch=Epoch(0)),
        replace(MIDDLE, prompt_count=0),
        replace(MIDDLE, prompt_count=LIMIT + 1),
        replace(MIDDLE, position_limit=-1),
        replace(MIDDLE, hop_count=0),
        replace(MIDDLE, length=-1),
        replace(MIDDLE, length=LIMIT + 1),
        replace(MIDDLE, prompt_count=40, prefix=bytes(PREFIX_HASH_BYTES + 1)),
        replace(MIDDLE, prompt_count=40, prefix=bytes(2 * PREFIX_HASH_BYTES)),
        replace(MIDDLE, prompt_count=32, prefix=bytes(PREFIX_HASH_BYTES)),
        replace(MIDDLE, embed=True, previous=ORIGIN),
        replace(FIRST, embed=False, previous=BEFORE),
        replace(FIRST, previous=BEFORE),
        replace(LAST, next=AFTER),
        replace(MIDDLE, previous=ME),
        replace(MIDDLE, next=ME),
        replace(MIDDLE, sampling=replace(SAMPLING, temperature=-0.1)),
        replace(MIDDLE, sampling=replace(SAMPLING, temperature=float("nan"), top_p=float("nan"))),
        replace(MIDDLE, sampling=replace(SAMPLING, top_p=0.0)),
        replace(MIDDLE, sampling=replace(SAMPLING, top_p=1.1)),
        replace(MIDDLE, sampling=replace(SAMPLING, top_k=-1)),
        replace(MIDDLE, sampling=replace(SAMPLING, logprobs=-1)),
        replace(MIDDLE, sampling=replace(SAMPLING, logprobs=LOGPROBS_MAX + 1)),
    ],
)
def test_orders_that_nobody_honest_gives(order: Open) -> None:
    bench = Bench(shard_of(0, 12))
    with pytest.raises(RemoteProtocolError):
        bench.open(order)
    assert bench.effects() == []
    assert bench.relay.session_count() == 0


def test_an_origin_may_be_a_hop_of_its_own_route() -> None:
    alone = replace(FIRST, layers=LayerRange(0, 12), head=True, previous=ME, next=ME)
    assert len(Bench(shard_of(0, 12)).open(alone, ME)) == 2
    assert len(Bench().open(replace(MIDDLE, previous=ORIGIN))) == 2
    assert len(Bench().open(replace(MIDDLE, next=ORIGIN))) == 2


# ---------------------------------------------------------------- one id, two origins


def test_nobody_can_squat_on_anothers_session() -> None:
    """The same id from two origins is two sessions, fed by the same hop."""
    bench = Bench()
    bench.open(replace(MIDDLE, next=OTHER, sampling=Sampling(seed=9)), OTHER)
    (begun, answer) = bench.open(MIDDLE)
    assert answer == opened()
    assert isinstance(begun, ToWorker)
    assert isinstance(begun.message, Begin)
    mine = begun.message.session
    assert mine != WORKER_ID
    bench.resume(0, 0)
    (run,) = bench.step(chunk(0, 10))
    assert isinstance(run, ToWorker)
    assert isinstance(run.message, Run)
    assert run.message.session == mine
    bench.relay.release(OTHER, Release(SESSION, Epoch(1)))
    assert bench.effects() == [END]
    result = replace(rows_ran(0, 10, StepKind.PREFILL), session=mine)
    assert bench.ran(result) == [Send(AFTER, chunk(0, 10)), credit(10)]


# ---------------------------------------------------------------- resuming


def test_resume_from_the_outbox_sends_again() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 23)
    bench.open(under(MIDDLE, 2))
    assert bench.resume(23, 5, epoch=2) == [
        Send(AFTER, chunk(5, 5, epoch=2)),
        Send(AFTER, chunk(10, 10, epoch=2)),
    ]
    assert bench.credit(10, epoch=2) == [Send(AFTER, decode_step(20, 3, epoch=2))]


def test_a_head_sends_its_tokens_again() -> None:
    bench = Bench(shard_of(8, 12))
    bench.hold(LAST, 23)
    assert bench.open(under(LAST, 2)) == [opened(2, 23, 19, sampling_level=1)]
    assert bench.resume(23, 21, epoch=2) == [
        Send(ORIGIN, Token(SESSION, Epoch(2), SampledToken(22, 122))),
        Send(ORIGIN, Token(SESSION, Epoch(2), SampledToken(23, 123))),
    ]


def test_resume_with_nothing_begins_again() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    bench.open(under(MIDDLE, 2))
    assert bench.resume(0, 22, epoch=2) == [begin_of(MIDDLE, generation=2)]
    run = rows_run(0, 10, StepKind.PREFILL, 22, generation=2)
    assert bench.step(chunk(0, 10, epoch=2)) == [run]
    assert bench.ran(rows_ran(0, 10, StepKind.PREFILL, generation=2)) == [credit(10, 2)]


def test_resume_of_a_length_that_is_not_held_is_a_gap() -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    bench.open(under(MIDDLE, 2))
    assert bench.resume(21, 21, epoch=2) == [gap(21, 22, 2)]
    assert bench.resume(22, 22, epoch=2) == []


def test_resume_below_the_outbox_is_a_gap() -> None:
    """Not silence: the origin would wait for rows that nobody sends."""
    bench = Bench(config=replace(CONFIG, outbox_bytes_max=4 * ROW))
    bench.hold(MIDDLE, 24)
    assert bench.open(under(MIDDLE, 2)) == [opened(2, 24, 20)]
    assert bench.resume(24, 19, epoch=2) == [gap(19, 24, 2)]
    assert bench.resume(24, 20, epoch=2) == [Send(AFTER, decode_step(20, 4, epoch=2))]


def test_resume_below_a_heads_tokens_is_a_gap() -> None:
    bench = Bench(shard_of(8, 12))
    bench.hold(LAST, 22)
    bench.open(under(LAST, 2))
    assert bench.resume(22, 18, epoch=2) == [gap(18, 22, 2)]


def test_resume_of_an_unknown_session_is_a_gap() -> None:
    bench = Bench()
    unknown = Send(ORIGIN, Gap(SESSION, Epoch(1), 7, 0))
    assert bench.resume(7, 7) == [unknown]
    bench.open(MIDDLE)
    assert bench.resume(0, 0, epoch=2) == [Send(ORIGIN, Gap(SESSION, Epoch(2), 0, 0))]


def test_resume_of_an_old_epoch_or_twice_does_nothing() -> None:
    bench = Bench()
    bench.open(under(MIDDLE, 2))
    assert bench.resume(0, 0, epoch=1) == []
    assert bench.resume(0, 0, epoch=2) == []
    bench.step(chunk(0, 10, epoch=2))
    assert bench.resume(0, 0, epoch=2) == []


@pytest.mark.parametrize(("kv_length", "send_from"), [(-1, 0), (0, -1), (0, LIMIT + 1)])
def test_resume_at_no_position_at_all(kv_length: int, send_from: int) -> None:
    bench = Bench()
    bench.open(MIDDLE)
    with pytest.raises(RemoteProtocolError):
        bench.resume(kv_length, send_from)


def test_steps_before_resume_wait_for_it() -> None:
    bench = Bench()
    bench.open(MIDDLE)
    assert bench.step(chunk(0, 10)) == []
    assert bench.resume(0, 0) == [rows_run(0, 10, StepKind.PREFILL, 19)]
