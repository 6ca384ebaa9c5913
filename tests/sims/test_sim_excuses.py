"""What faults explain: those to the machines of an answer, and between them, for as long as they
last. And that what is done to long runs changes nothing of them.
"""

from __future__ import annotations

import weakref

import pytest

from sims import progress, runner
from sims.pool import Job, play
from sims.progress import Milestones
from sims.runner import Options, Spectator
from sims.truth import FOREVER, Truth
from sims.world import World
from swarm.node import NodeCore


def kinds(truth: Truth, among: set[int], start_s: float, stop_s: float) -> list[str]:
    return [fault.kind for fault in truth.harm(among, start_s, stop_s)]


def test_a_fault_harms_its_node_while_it_lasts() -> None:
    truth = Truth()
    truth.begin("stalled", 10.0, 1)
    truth.end("stalled", 12.0, 1)
    assert kinds(truth, {1, 2}, 11.0, 20.0) == ["stalled"]
    assert kinds(truth, {1, 2}, 12.5, 20.0) == []
    assert kinds(truth, {2, 3}, 11.0, 20.0) == []
    truth.begin("wedged", 15.0, 3)
    assert truth.harm({3}, 500.0, 600.0)[0].until_s == FOREVER


def test_a_cut_harms_those_who_need_both_of_its_ends() -> None:
    truth = Truth()
    truth.begin("cut", 10.0, 2, 1)
    assert kinds(truth, {1, 3}, 0.0, 20.0) == []
    assert kinds(truth, {1, 2}, 0.0, 20.0) == ["cut"]
    truth.clear(15.0, 1, 2)
    assert kinds(truth, {1, 2}, 16.0, 20.0) == []


def test_a_partition_is_one_deed_however_many_pairs_it_cuts() -> None:
    truth = Truth()
    for index, pair in enumerate(((1, 3), (1, 4), (2, 3), (2, 4))):
        truth.begin("cut", 10.0, *pair, is_part=index > 0)
    truth.begin("cut", 11.0, 1, 2)
    assert len(truth.harm({1, 2, 3, 4}, 0.0, 20.0)) == 2


def test_a_start_is_no_harm_and_a_crash_is_harm_of_its_moment() -> None:
    truth = Truth()
    truth.touch("start", 10.0, 1)
    truth.touch("crash", 11.0, 1)
    assert kinds(truth, {1}, 0.0, 20.0) == ["crash"]
    assert kinds(truth, {1}, 11.5, 20.0) == []
    assert truth.quiet_s(13.0, 1) == 2.0


def test_two_faults_of_one_kind_at_one_place_end_one_by_one() -> None:
    truth = Truth()
    truth.begin("clogged", 10.0, 1, 2)
    truth.begin("clogged", 11.0, 2, 1)
    truth.end("clogged", 12.0, 1, 2)
    assert truth.has("clogged", 1, 2)
    assert len(truth.harm({1, 2}, 12.5, 13.0)) == 1
    truth.end("clogged", 13.0, 1, 2)
    assert not truth.has_any("clogged")
    assert truth.harm({1, 2}, 13.5, 14.0) == []


def test_an_answer_has_to_do_with_its_origin_and_its_hops_alone() -> None:
    seen: list[set[int]] = []

    class Look(Spectator):
        def begins(self, world: World) -> None:
            self.world = world

        def at_rest(self) -> None:
            if self.world.requests and self.world.requests[0].is_over and not seen:
                seen.append(self.world.trails.of(self.world.requests[0]))

    assert play(Job("worker crash", 1), Look()).passed
    assert len(seen[0]) == 5, "the client, three hops, and one in the place of the one that crashed"


def test_collecting_garbage_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = play(Job("rolling restart", 1))
    monkeypatch.setattr(runner, "COLLECT_S", 0.7)
    collected = play(Job("rolling restart", 1))
    assert plain.passed and collected.trace_hash == plain.trace_hash


def test_what_dead_processes_have_left_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the world holds on to a node that was killed: not its timers, not the caches of
    mDNS. Otherwise each life costs its buffers until the end of the run."""
    monkeypatch.setattr(runner, "COLLECT_S", 1.0)
    cores: dict[tuple[int, int], weakref.ref[NodeCore]] = {}
    left: list[int] = []

    class Look(Spectator):
        def begins(self, world: World) -> None:
            self.world = world

        def at_rest(self) -> None:
            """Asked right after a collection, among other moments."""
            began = [node for node in self.world.nodes if node.starts and hasattr(node, "core")]
            for node in began:
                cores.setdefault((node.number, node.starts), weakref.ref(node.core))
            left.append(sum(core() is not None for core in cores.values()) - len(began))

    assert play(Job("rolling restart", 1), Look()).passed
    assert len(cores) >= 6 and left[-1] == 0


def test_a_long_run_says_how_it_fares(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "MILESTONE_S", 15.0)
    told = play(Job("kill storm", 1, Options(node_count=6, minutes=0.5)), Milestones("storm"))
    lines = capsys.readouterr().err.splitlines()
    assert told.passed and len(lines) == 2
    assert lines[0].startswith("storm: 0 virtual minutes") and "answers whole" in lines[0]
