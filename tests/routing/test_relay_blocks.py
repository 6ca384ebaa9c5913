"""Blocks on a hop: named as rows come, taken from the youngest, shared by like prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from relay_bench import (
    BEFORE,
    LIMIT,
    ME,
    MIDDLE,
    ORIGIN,
    OTHER,
    SESSION,
    Bench,
    failed,
    refusal,
)

from swarm.effects import Effect, Send, ToWorker
from swarm.errors import RemoteProtocolError
from swarm.messages import (
    KV_BLOCK_TOKENS,
    PREFIX_HASH_BYTES,
    Begin,
    End,
    FailureCode,
    HopFailed,
    Open,
    Opened,
    Ran,
    RefusalCode,
    Release,
    Resume,
    RowType,
    Run,
    Step,
    StepKind,
)
from swarm.routing.rooms import packed
from swarm.terms import Epoch, NodeId, PoolKind, SessionId

T = KV_BLOCK_TOKENS
PAGED = PoolKind(is_paged=True, prefix_unit=T, reuses_generated=True)
CHAIN = bytes(range(8 * PREFIX_HASH_BYTES))
LONG = replace(MIDDLE, prompt_count=3 * T + 10, position_limit=20 * T)
FOURTH = SessionId("cd" * 8)


def chain(blocks: int, start: int = 0) -> bytes:
    return CHAIN[start * PREFIX_HASH_BYTES : (start + blocks) * PREFIX_HASH_BYTES]


def bench_of(blocks: int = 100, growth: int = 2 * T, kind: PoolKind = PAGED) -> Bench:
    made = Bench(blocks=blocks, kind=kind)
    made.config = replace(made.config, kv_growth_tokens=growth)
    made.__post_init__()
    return made


def numbers(blocks: bytes) -> list[int]:
    return [int.from_bytes(blocks[at : at + 4], "little") for at in range(0, len(blocks), 4)]


class Peer:
    """One session of a bench, by what its origin and its feeder send."""

    def __init__(
        self, bench: Bench, name: str = SESSION, order: Open = LONG, origin: NodeId = ORIGIN
    ) -> None:
        self.bench, self.origin = bench, origin
        self.order = replace(order, session=SessionId(name))
        self.worker_id = SessionId("")
        self.generation = 0

    def open(self, **changes: Any) -> Opened:
        self.order = replace(self.order, **changes)
        effects = self.see(self.bench.open(self.order, self.origin))
        (answer,) = [e.message for e in effects if isinstance(e, Send)]
        assert isinstance(answer, Opened), answer
        return answer

    def resume(self, kv_length: int = 0) -> list[Effect]:
        message = Resume(self.order.session, self.order.epoch, kv_length, kv_length)
        self.bench.relay.resume(self.origin, message)
        return self.see(self.bench.effects())

    def begin(self, **changes: Any) -> Peer:
        self.open(**changes)
        self.resume()
        return self

    def step(self, position: int, count: int) -> list[Effect]:
        kind = StepKind.PREFILL if position < self.order.prompt_count else StepKind.DECODE
        step = Step(self.order.session, self.order.epoch, position, count, kind,
                    RowType.FLOAT32, bytes(4 * count), self.origin)  # fmt: skip
        return self.see(self.bench.step(step, BEFORE))

    def ran(self, position: int, count: int) -> None:
        self.bench.ran(Ran(self.worker_id, self.generation, position, count, StepKind.PREFILL,
                           RowType.FLOAT32, 0.0, (), bytes(4 * count)))  # fmt: skip

    def run(self, position: int, count: int) -> list[int]:
        """Rows go through; returns the blocks that were added for them."""
        (run,) = [e.message for e in self.step(position, count) if isinstance(e, ToWorker)]
        assert isinstance(run, Run)
        self.ran(position, count)
        return numbers(run.blocks)

    def release(self, blocks: int = 0) -> None:
        message = Release(self.order.session, self.order.epoch, chain(blocks))
        self.bench.relay.release(self.origin, message)
        assert self.bench.effects() == [ToWorker(End(self.worker_id))]

    def see(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, ToWorker) and isinstance(effect.message, Begin):
                self.begun = effect.message
                self.worker_id, self.generation = self.begun.session, self.begun.generation
        return effects


def test_each_run_names_the_blocks_that_its_rows_need() -> None:
    peer = Peer(bench_of()).begin()
    assert (peer.begun.blocks, peer.begun.kv_length) == (b"", 0)
    assert peer.run(0, 10) == [0]
    assert peer.run(10, T) == [1]
    assert peer.run(10 + T, 3 * T - T) == [2, 3]
    assert peer.run(3 * T + 10, 1) == []


def test_a_worker_without_a_pool_is_told_of_none() -> None:
    bench = bench_of(kind=PoolKind())
    assert Peer(bench).begin(prefix=chain(3)).run(0, T) == []
    assert bench.spoken_for == 6


def test_admission_is_for_the_sequence_so_far_and_some_growth() -> None:
    bench = bench_of(blocks=10)
    Peer(bench).open()
    assert bench.spoken_for == 6
    longer = replace(LONG, session=FOURTH, length=5 * T)
    assert refusal(bench.open(longer)) is RefusalCode.KV_EXHAUSTED
    Peer(bench, FOURTH).open(position_limit=3 * T + 11)
    assert bench.spoken_for == 10


def test_a_sequence_longer_than_the_owner_allows_is_refused() -> None:
    bench = Bench(model_len_max=LIMIT - 1)
    (effect,) = bench.open(MIDDLE)
    assert isinstance(effect, Send) and "59 are allowed" in str(effect.message)
    assert len(Bench(model_len_max=LIMIT).open(MIDDLE)) == 2


def test_the_youngest_makes_room() -> None:
    bench = bench_of(blocks=8, growth=T)
    short = replace(LONG, prompt_count=T)
    first = Peer(bench, order=short).begin()
    second = Peer(bench, FOURTH, short, OTHER).begin()
    first.run(0, T)
    second.run(0, T)
    added = [first.run(position, 16) for position in range(T, 6 * T, 16)]
    assert [len(blocks) for blocks in added] == [1, 0] * 5
    preempted, end, run = first.step(6 * T, 1)
    assert isinstance(preempted, Send) and isinstance(preempted.message, HopFailed)
    assert (preempted.peer, preempted.message.session) == (OTHER, FOURTH)
    assert (preempted.message.node, preempted.message.code) == (ME, FailureCode.PREEMPTED)
    assert end == ToWorker(End(second.worker_id))
    assert isinstance(run, ToWorker) and isinstance(run.message, Run)
    assert numbers(run.message.blocks) == [1]
    assert bench.relay.session_count() == 1


def test_who_grows_may_be_the_youngest_itself() -> None:
    bench = bench_of(blocks=3, growth=T)
    short = replace(LONG, prompt_count=T)
    Peer(bench, FOURTH, replace(short, position_limit=T), OTHER).begin()
    last = Peer(bench, order=short).begin()
    last.run(0, T)
    last.run(T, 16)
    last.run(T + 16, 16)
    detail = "1 more KV blocks are needed, 0 are free"
    assert last.step(2 * T, 1) == [
        failed(ME, FailureCode.PREEMPTED, detail), ToWorker(End(last.worker_id)),
    ]  # fmt: skip
    assert bench.relay.session_count() == 1


def test_steps_that_waited_for_a_session_that_had_to_go_are_dropped() -> None:
    bench = bench_of(blocks=1, growth=0)
    peer = Peer(bench, order=replace(LONG, prompt_count=T))
    peer.open()
    for position in (T, T + 1):
        peer.step(position, 1)
    peer.step(0, T)
    effects = peer.resume()
    assert [type(e.message) for e in effects if isinstance(e, Send)].count(HopFailed) <= 1
    assert bench.relay.session_count() <= 1


# ---------------------------------------------------------------- prefixes


def kept(bench: Bench, **changes: Any) -> Peer:
    """A session has run its prompt and 2 blocks of an answer, and left all it could."""
    peer = Peer(bench).begin(prefix=chain(3), **changes)
    peer.run(0, 3 * T + 10)
    for position in range(3 * T + 10, 5 * T):
        peer.run(position, 1)
    peer.release(5)
    return peer


def test_a_next_turn_starts_from_what_was_left() -> None:
    bench = bench_of()
    kept(bench)
    assert bench.spoken_for == 0
    peer = Peer(bench, FOURTH, replace(LONG, prompt_count=7 * T))
    offered = peer.open(prefix=chain(6))
    assert (offered.kv_length, offered.cached_length, offered.cache_unit) == (0, 5 * T, T)
    (begin,) = peer.resume(4 * T)
    assert isinstance(begin, ToWorker)
    assert (peer.begun.kv_length, peer.begun.blocks) == (4 * T, packed(range(4)))
    assert (peer.begun.generation, peer.begun.hop_count) == (2, 1)
    assert peer.run(4 * T, T) == [5]
    again = bench.open(replace(peer.order, epoch=Epoch(2)))
    assert again == [Send(ORIGIN, Opened(FOURTH, Epoch(2), 5 * T, 4 * T))]


def test_a_live_prompt_is_shared_and_its_blocks_stay_when_one_ends() -> None:
    bench = bench_of()
    first = Peer(bench).begin(prefix=chain(3))
    first.run(0, 2 * T)
    second = Peer(bench, FOURTH)
    assert second.open(prefix=chain(3)).cached_length == 2 * T
    second.resume(2 * T)
    assert first.run(2 * T, T) == [2]
    assert second.run(2 * T, T) == [3]
    first.release()
    third = Peer(bench, "ef" * 8)
    assert third.open(prefix=chain(3)).cached_length == 3 * T
    assert numbers(third.begun.blocks) == []


def test_rows_that_were_not_acknowledged_are_never_offered() -> None:
    bench = bench_of()
    peer = Peer(bench).begin(prefix=chain(3))
    peer.run(0, T)
    peer.step(T, 2 * T)
    peer.release(5)
    assert Peer(bench, FOURTH).open(prefix=chain(3)).cached_length == T


def test_a_worker_whose_answers_differ_from_prompts_shares_whole_pieces_of_prompts() -> None:
    bench = bench_of(kind=PoolKind(is_paged=True, prefix_unit=2 * T))
    kept(bench)
    offered = Peer(bench, FOURTH, replace(LONG, prompt_count=7 * T)).open(prefix=chain(6))
    assert (offered.cached_length, offered.cache_unit) == (2 * T, 2 * T)


def test_a_rebuild_takes_no_prompt_of_others_for_what_was_generated() -> None:
    """Of a worker whose answers have other bits than prompts of the same ids."""
    bench = bench_of(kind=PoolKind(is_paged=True, prefix_unit=T))
    longer = Peer(bench, order=replace(LONG, prompt_count=6 * T + 1)).begin(prefix=chain(6))
    longer.run(0, 6 * T + 1)
    longer.release(6)
    moved = replace(LONG, prompt_count=2 * T + 5, length=5 * T + 1)
    assert Peer(bench, FOURTH, moved).open(prefix=chain(5)).cached_length == 2 * T


@pytest.mark.parametrize("kv_length", [T - 1, 6 * T])
def test_nobody_starts_where_nothing_was_offered(kv_length: int) -> None:
    bench = bench_of()
    kept(bench)
    peer = Peer(bench, FOURTH, replace(LONG, prompt_count=7 * T))
    peer.open(prefix=chain(6))
    (gap,) = peer.resume(kv_length)
    assert isinstance(gap, Send) and type(gap.message).__name__ == "Gap"


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": OTHER},
        {"order": replace(LONG, layers=replace(LONG.layers, stop=7))},
        {"order": replace(LONG, prefix=chain(3, start=1))},
    ],
    ids=["another origin", "other layers", "other ids"],
)
def test_what_is_not_the_same_is_not_shared(changes: dict[str, Any]) -> None:
    bench = bench_of()
    kept(bench)
    order = changes.pop("order", LONG)
    if not order.prefix:
        order = replace(order, prefix=chain(3))
    assert Peer(bench, FOURTH, order, **changes).open().cached_length == 0


def test_a_start_from_nothing_gives_the_offer_back() -> None:
    bench = bench_of()
    kept(bench)
    peer = Peer(bench, FOURTH)
    peer.open(prefix=chain(3))
    assert peer.resume(0) == []
    assert bench.spoken_for == 6
    assert len(peer.run(0, T)) == 1


def test_under_other_hashes_an_unstarted_session_is_matched_again() -> None:
    bench = bench_of()
    kept(bench)
    peer = Peer(bench, FOURTH)
    assert peer.open(prefix=chain(3, start=1)).cached_length == 0
    assert peer.open(epoch=Epoch(2), prefix=chain(3)).cached_length == 3 * T
    assert peer.open(epoch=Epoch(3), prefix=b"").cached_length == 0


def test_rows_of_a_route_without_hashes_are_not_left_to_others() -> None:
    bench = bench_of()
    peer = Peer(bench).begin(prefix=chain(3))
    peer.run(0, T + 5)
    peer.open(epoch=Epoch(2), prefix=b"")
    peer.resume(T + 5)
    peer.run(T + 5, T)
    peer.release()
    assert Peer(bench, FOURTH).open(prefix=chain(3)).cached_length == T


def test_a_promise_that_rested_on_anothers_blocks_may_be_taken_back() -> None:
    bench = bench_of(blocks=8, growth=0)
    first = Peer(bench, order=replace(LONG, prompt_count=4 * T)).begin(prefix=chain(3))
    first.run(0, 4 * T)
    second = Peer(bench, FOURTH, replace(LONG, prompt_count=6 * T))
    assert second.open(prefix=chain(3)).cached_length == 3 * T
    Peer(bench, "ef" * 8, replace(LONG, prompt_count=T)).begin()
    (lost, end) = second.resume(0)
    assert isinstance(lost, Send) and isinstance(lost.message, HopFailed)
    assert lost.message.code is FailureCode.PREEMPTED
    assert end == ToWorker(End(second.worker_id))


@pytest.mark.parametrize("prefix", [bytes(PREFIX_HASH_BYTES - 1), bytes(21 * PREFIX_HASH_BYTES)])
def test_hashes_of_more_than_a_session_may_be_long(prefix: bytes) -> None:
    bench = bench_of()
    Peer(bench).begin()
    with pytest.raises(RemoteProtocolError):
        bench.relay.release(ORIGIN, Release(SESSION, Epoch(1), prefix))
