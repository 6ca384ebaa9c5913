"""How a hop lets go of a session, and who hears of it meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from relay_bench import (
    AFTER,
    BEFORE,
    CONFIG,
    END,
    ME,
    MIDDLE,
    MODEL,
    ORIGIN,
    OTHER,
    SESSION,
    WORKER_ID,
    Bench,
    chunk,
    failed,
    opened,
    refusal,
    rows_ran,
    shard_of,
    under,
)

from swarm.messages import (
    FailureCode,
    Gap,
    RefusalCode,
    Release,
    RunFailed,
    SessionProgress,
    StepKind,
)
from swarm.terms import (
    Epoch,
    NodeId,
    NumericClass,
    ShardInfo,
)

# ---------------------------------------------------------------- endings


def test_release_frees_everything() -> None:
    bench = Bench()
    bench.begin(under(MIDDLE, 2))
    bench.relay.release(ORIGIN, Release(SESSION, Epoch(1)))
    bench.relay.release(OTHER, Release(SESSION, Epoch(2)))
    assert bench.effects() == []
    bench.relay.release(ORIGIN, Release(SESSION, Epoch(2)))
    assert bench.effects() == [END]
    assert bench.spoken_for == 0
    assert bench.ran(rows_ran(0, 10, StepKind.PREFILL)) == []


@pytest.mark.parametrize("code", [FailureCode.LINK_DOWN, FailureCode.UNREACHABLE])
def test_a_lost_origin_ends_its_sessions(code: FailureCode) -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.relay.neighbour_failed(ORIGIN, FailureCode.SILENT, "silent")
    assert bench.effects() == []
    bench.relay.neighbour_failed(ORIGIN, code, "gone")
    assert bench.effects() == [END]


@pytest.mark.parametrize("peer", [BEFORE, AFTER])
def test_a_lost_neighbour_is_told_and_the_rows_stay(peer: NodeId) -> None:
    bench = Bench()
    bench.hold(MIDDLE, 22)
    bench.relay.neighbour_failed(peer, FailureCode.LINK_DOWN, "reset")
    assert bench.effects() == [failed(peer, FailureCode.LINK_DOWN, "reset")]
    bench.relay.neighbour_failed(OTHER, FailureCode.LINK_DOWN, "reset")
    assert bench.effects() == []
    assert bench.open(under(MIDDLE, 2)) == [opened(2, 22, 0)]


def test_a_next_hop_that_lost_the_session_is_told() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.relay.gap(BEFORE, Gap(SESSION, Epoch(1), 0, 0, ORIGIN))
    assert bench.effects() == []
    bench.relay.gap(AFTER, Gap(SESSION, Epoch(1), 0, 0, ORIGIN))
    detail = "the next hop lost the session"
    assert bench.effects() == [failed(AFTER, FailureCode.UNREACHABLE, detail)]


def test_a_failed_step_ends_the_session() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.relay.run_failed(RunFailed(WORKER_ID, 1, FailureCode.OUT_OF_MEMORY, "no room"))
    assert bench.effects() == [failed(ME, FailureCode.OUT_OF_MEMORY, "no room"), END]


def test_a_lost_worker_fails_its_sessions_once() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.relay.withdraw(MODEL, FailureCode.WORKER_LOST, "crashed")
    assert bench.effects() == [failed(ME, FailureCode.WORKER_LOST, "crashed"), END]
    bench.relay.serve([])
    assert bench.effects() == []
    assert refusal(bench.open(MIDDLE)) is RefusalCode.NO_SHARD


@pytest.mark.parametrize(
    "shards", [[], [shard_of(4, 9)], [replace(shard_of(4, 8), numeric_class=NumericClass("d"))]]
)
def test_a_shard_that_is_gone_or_replaced_fails_its_sessions(shards: list[ShardInfo]) -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.relay.serve(shards)
    detail = "the shard is no longer served"
    assert bench.effects() == [failed(ME, FailureCode.WORKER_LOST, detail), END]


def test_a_shard_with_other_room_is_the_same() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    bench.relay.serve([replace(bench.shard, kv_capacity_bytes=5)])
    assert bench.effects() == []


def test_what_is_opened_and_never_resumed_is_freed() -> None:
    bench = Bench()
    assert bench.relay.next_deadline() is None
    bench.open(MIDDLE)
    due = bench.now + CONFIG.opened_max_s
    assert bench.relay.next_deadline() == due
    bench.relay.tick(due - 0.1)
    assert bench.effects() == []
    bench.relay.tick(due)
    assert bench.effects() == [END]
    assert bench.spoken_for == 0


def test_what_runs_or_is_opened_again_is_not_freed() -> None:
    bench = Bench()
    bench.begin(MIDDLE)
    assert bench.relay.next_deadline() is None
    bench.relay.tick(1e6)
    bench.now = 50.0
    bench.open(under(MIDDLE, 2))
    bench.relay.tick(50.0 + CONFIG.opened_max_s - 1)
    assert bench.relay.session_count() == 1


# ---------------------------------------------------------------- views


def test_who_hears_and_who_is_watched() -> None:
    bench = Bench()
    bench.open(MIDDLE)
    assert bench.relay.neighbours() == ()
    bench.resume(0, 0)
    bench.step(chunk(0, 10))
    assert bench.relay.neighbours() == ((SESSION, BEFORE), (SESSION, AFTER))
    assert bench.relay.audience() == {
        ORIGIN: [SessionProgress(SESSION, 0, 10, is_yours=True)],
        BEFORE: [SessionProgress(SESSION, 0, 10)],
        AFTER: [SessionProgress(SESSION, 0, 10)],
    }
    assert bench.relay.own_progress() == ()
