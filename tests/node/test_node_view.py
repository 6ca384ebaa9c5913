"""What a node makes of what others say: which spec of a model is true, and who may serve it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.gossip.membership import Member
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.node_view import Own, atlas, known_models, model_view, node_view, swarm_view
from swarm.routing.cost import SwarmView
from swarm.routing.reach import Standing
from swarm.terms import (
    HubShare,
    HubState,
    Incarnation,
    LayerRange,
    LinkSpeed,
    MemberState,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

ME, A, B, C, D = (NodeId(letter * 32) for letter in "mabcd")
SPEC = ModelSpec(ModelId("0" * 32), "model", 12, 64, 100, 1000, (7,), True)
LIE = replace(SPEC, eos_ids=(1,), context_length=4)
SPEED = ShardSpeed(SPEC.model_id, 0.001, 0.001, 0.001, 0.001, 0.0, 1 << 30)
NOBODY: tuple[ModelSpec, ...] = ()


def shard(start: int = 0, stop: int = 12) -> ShardInfo:
    return ShardInfo(
        SPEC.model_id, LayerRange(start, stop), start == 0, stop == 12, NumericClass("c"),
        ShardState.SERVING, 8, 1 << 30, 128,
    )  # fmt: skip


def member(
    node: NodeId,
    *specs: ModelSpec,
    shards: tuple[ShardInfo, ...] = (),
    state: MemberState = MemberState.ALIVE,
) -> Member:
    static = StaticRecord("n", "1", 1, 1, (), "cpu", 0, specs, shards, False)
    return Member(node, state, Incarnation(1), True, static, DynamicRecord((SPEED,), (), 0))


def known(own: tuple[ModelSpec, ...], *members: Member) -> ModelSpec:
    """`own`: models of this node."""
    (spec,) = known_models(ME, own, members).values()
    return spec


def seen(own: tuple[ModelSpec, ...], *members: Member) -> SwarmView:
    everybody = atlas(ME, own, members)
    return swarm_view(Own(ME, (), (), {}, False), everybody, lambda _: Standing.LINKED)


def servers(own: tuple[ModelSpec, ...], *members: Member) -> list[NodeId]:
    return [candidate.node for candidate in seen(own, *members).candidates]


def test_the_most_members_are_believed_whatever_their_order() -> None:
    crowd = [member(A, LIE), member(B, SPEC), member(C, SPEC)]
    assert known(NOBODY, *crowd) == known(NOBODY, *reversed(crowd)) == SPEC


def test_a_tie_goes_to_the_lowest_id() -> None:
    assert known(NOBODY, member(B, LIE), member(A, SPEC)) == SPEC
    assert known(NOBODY, member(A, LIE), member(B, SPEC)) == LIE


def test_an_own_checkpoint_is_true_against_everybody() -> None:
    own = (SPEC,)
    assert known(own, member(A, LIE), member(B, LIE)) == SPEC
    assert servers(own, member(A, LIE, shards=(shard(),)), member(B, SPEC, shards=(shard(),))) == [
        B
    ]


def test_only_the_living_are_asked() -> None:
    gone = [member(node, LIE, state=MemberState.DEAD) for node in (A, B)]
    assert known(NOBODY, *gone, member(C, SPEC)) == SPEC


def test_names_may_differ_and_the_most_common_one_is_shown() -> None:
    """Each owner names a folder; that is no contradiction."""
    other = replace(SPEC, name="aaa")
    crowd = [member(A, other), member(B, SPEC), member(C, SPEC), member(D, LIE)]
    assert known(NOBODY, *crowd) == SPEC
    holders = [member(A, other, shards=(shard(),)), member(B, SPEC, shards=(shard(),))]
    assert servers(NOBODY, *holders) == [A, B]


@pytest.mark.parametrize(
    "lie",
    [
        replace(SPEC, layer_count=13),
        replace(SPEC, hidden_size=65),
        replace(SPEC, vocab_size=1),
        replace(SPEC, context_length=9),
        replace(SPEC, eos_ids=()),
        replace(SPEC, has_text=False),
    ],
)
def test_who_contradicts_serves_nothing(lie: ModelSpec) -> None:
    crowd = [member(node, SPEC, shards=(shard(),)) for node in (B, C)]
    assert servers(NOBODY, member(A, lie, shards=(shard(),)), *crowd) == [B, C]


def test_a_shard_beyond_the_known_layers_is_no_candidate() -> None:
    """Its own record may lack the spec, so that nothing in it contradicts."""
    crowd = [member(A, shards=(shard(0, 13),)), member(B, SPEC), member(C, shards=(shard(6, 12),))]
    assert servers(NOBODY, *crowd) == [C]
    view = seen(NOBODY, *crowd)
    assert model_view(view, SPEC, None).missing == (LayerRange(0, 6),)


def test_a_shard_of_a_model_that_nobody_describes_is_no_candidate() -> None:
    assert servers(NOBODY, member(A, shards=(shard(),))) == []


def test_what_of_the_hub_is_not_there_yet_is_shown() -> None:
    held = HubShare("org/one", HubState.HELD, SPEC.model_id, 0)
    coming = HubShare("org/two", HubState.FETCHING, ModelId(""), 5 << 20)
    of_a = member(A)
    assert of_a.static is not None
    of_a = replace(of_a, static=replace(of_a.static, hub=(held, coming)))
    assert node_view(of_a, None, is_self=False, penalty_s=0.0).wants == (coming,)


def test_who_may_not_be_used_still_tells_of_its_wires() -> None:
    near = LinkSpeed(B, 0.001, 1e8)
    talker = replace(
        member(A, SPEC, shards=(shard(),)), dynamic=DynamicRecord((SPEED,), (near,), 0)
    )
    own = Own(ME, (), (), {}, False)
    everybody = atlas(ME, NOBODY, [talker, member(B, SPEC, shards=(shard(),))])
    by_node = {A: Standing.UNREACHABLE, B: Standing.DIALABLE}
    view = swarm_view(own, everybody, lambda m: by_node[m.node])
    assert [candidate.node for candidate in view.candidates] == [B]
    assert view.unlinked == {B}
    assert view.wires[(A, B)].rtt_s == 0.001
