"""Which nodes should serve other layers: lost ones come back, nothing moves in vain or for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.routing.moves import Holder, Move, improvement, repairs
from swarm.routing.placement import copies_held, throughput
from swarm.terms import LayerRange, NodeId

LAYERS = 12
GAIN = 1.2


def holder(name: str, start: int, stop: int, room: int = 0, ms: float = 1.0) -> Holder:
    return Holder(NodeId(name), LayerRange(start, stop), ms / 1e3, True, room)


def moved(holders: list[Holder], *moves: Move) -> list[Holder]:
    targets = {move.node: move.layers for move in moves}
    return [replace(h, layers=targets.get(h.node, h.layers)) for h in holders]


def held(holders: list[Holder]) -> set[int]:
    return {n for h in holders for n in range(h.layers.start, h.layers.stop)}


def test_who_can_be_spared_and_is_ready_first_brings_lost_layers_back() -> None:
    slow = replace(holder("a", 0, 4, 4), load_s=9.0)
    fast = replace(holder("b", 0, 4, 4), load_s=2.0)
    swarm = [slow, fast, holder("c", 0, 4), holder("d", 8, 12, 4)]
    assert repairs(LAYERS, swarm) == (Move(NodeId("b"), LayerRange(4, 8)),)


def test_nobody_leaves_layers_that_it_holds_alone() -> None:
    assert repairs(LAYERS, [holder("a", 0, 6, 6), holder("b", 6, 10, 4)]) == ()


def test_all_choose_anew_where_single_moves_do_not_suffice() -> None:
    """8:12 is lost; what could be spared lies askew."""
    swarm = [holder("a", 0, 6, 6), holder("b", 2, 8, 6)]
    moves = repairs(LAYERS, swarm)
    assert held(moved(swarm, *moves)) == set(range(LAYERS))
    assert len(moves) == 1, "who has a range of the plan keeps it"


def test_nobody_chooses_anew_while_all_layers_are_still_there() -> None:
    """Somebody has only said that it will go."""
    swarm = [holder("a", 0, 4, 8), holder("b", 4, 8, 4)]
    assert held(moved(swarm, *repairs(LAYERS, swarm))) == set(range(LAYERS))
    assert repairs(LAYERS, swarm, may_plan_anew=False) == ()
    spare = holder("c", 0, 4, 4)
    assert repairs(LAYERS, [*swarm, spare], may_plan_anew=False) == (
        Move(NodeId("a"), LayerRange(4, 12)),
    )


def test_what_somebody_is_about_to_load_counts() -> None:
    coming = replace(holder("a", 4, 8), is_steady=False)
    assert repairs(LAYERS, [coming, holder("b", 0, 4, 4), holder("c", 0, 4, 4),
                            holder("d", 8, 12)]) == ()  # fmt: skip


@pytest.mark.parametrize(("slow_ms", "expected"), [(1.1, None), (5.0, LayerRange(6, 12))])
def test_a_slow_part_is_helped_once_it_is_worth_it(
    slow_ms: float, expected: LayerRange | None
) -> None:
    swarm = [holder("a", 0, 6, 6), holder("b", 0, 6, 6), holder("c", 6, 12, 6, slow_ms)]
    move = improvement(LAYERS, swarm, 1, GAIN)
    assert (move.layers if move else None) == expected
    if move is not None:
        assert improvement(LAYERS, moved(swarm, move), 1, GAIN) is None


def test_a_wanted_copy_is_worth_a_move() -> None:
    swarm = [holder(name, 0, 6, 6) for name in "abc"] + [holder("d", 6, 12, 6)]
    move = improvement(LAYERS, swarm, 2, 1e9)
    assert move == Move(NodeId("a"), LayerRange(6, 12))


def test_nothing_moves_while_something_is_under_way_or_lost() -> None:
    swarm = [holder("a", 0, 6, 6), holder("b", 0, 6, 6), holder("c", 6, 12, 6, 9.0)]
    assert improvement(LAYERS, swarm, 1, GAIN) is not None
    assert improvement(LAYERS, [*swarm, replace(swarm[0], is_steady=False)], 1, GAIN) is None
    assert improvement(LAYERS, swarm[:2], 1, GAIN) is None


@st.composite
def swarms(draw: st.DrawFn) -> list[Holder]:
    found = []
    for number in range(draw(st.integers(2, 6))):
        start = draw(st.integers(0, LAYERS - 1))
        stop = draw(st.integers(start + 1, LAYERS))
        room = draw(st.sampled_from([0, stop - start, LAYERS]))
        ms = draw(st.sampled_from([0.2, 1.0, 1.5, 7.0]))
        found.append(holder(f"{number}", start, stop, room, ms))
    return found


@settings(max_examples=300, deadline=None)
@given(swarms(), st.integers(1, 3))
def test_moves_keep_within_room_and_cover_and_come_to_an_end(
    swarm: list[Holder], copies: int
) -> None:
    room = {h.node: h.room_layers for h in swarm}
    for _ in range(40):
        fixes = repairs(LAYERS, swarm)
        move = improvement(LAYERS, swarm, copies, GAIN)
        moves = fixes or ((move,) if move else ())
        if not moves:
            return
        after = moved(swarm, *moves)
        assert all(len(m.layers) <= room[m.node] for m in moves), "never over a node's budget"
        assert after != swarm, "a move that moves nothing"
        assert len(held(after)) > len(held(swarm)) if fixes else held(after) == held(swarm)
        if not fixes:
            mover = moves[0].node
            assert held([h for h in swarm if h.node != mover]) == held(swarm)
            before = copies_held(LAYERS, [h.served for h in swarm], copies)
            more = copies_held(LAYERS, [h.served for h in after], copies)
            speeds = [throughput(LAYERS, [h.served for h in s]) for s in (swarm, after)]
            assert more > before or (more == before and speeds[1] >= GAIN * speeds[0])
        swarm = after
    pytest.fail("it moves for ever")
