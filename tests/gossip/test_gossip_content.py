"""Signed nonsense: values that no honest node announces reach nobody's planner or terminal."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from gossip_world import World, dynamic_record, node_id_of, signer_of, static_record

from swarm.config import GossipConfig
from swarm.effects import CloseLink, Dial, Send, Tell
from swarm.errors import RemoteProtocolError
from swarm.gossip import seldom
from swarm.gossip.content import (
    ADDRESSES_MAX,
    CONTEXT_MAX,
    HIDDEN_MAX,
    LAYERS_MAX,
    LINKS_MAX,
    MODELS_MAX,
    TEXT_MAX,
    VOCAB_MAX,
    check_content,
)
from swarm.gossip.gossip import Gossip
from swarm.gossip.prober import DIAL_ADDRESSES_MAX
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Content, Version, seal
from swarm.gossip.seldom import Seldom
from swarm.messages import Records, Suspicion, Verdict
from swarm.notes import Level, Note
from swarm.terms import (
    INCARNATION_LIMIT,
    Address,
    Incarnation,
    LayerRange,
    LinkSpeed,
    MemberState,
    ModelId,
    ModelSpec,
    NodeId,
    NumericClass,
    ShardInfo,
    ShardState,
)

IDS = [node_id_of(signer_of(number).public_key) for number in range(4)]
ME, PEER, OTHER = IDS[:3]
SPEC = ModelSpec(ModelId("m" * 32), "model", 12, 64, 100, 1000, (1,), True)
SHARD = ShardInfo(
    SPEC.model_id, LayerRange(0, 12), True, True, NumericClass("c"), ShardState.SERVING, 8, 0, 128
)
GOOD = static_record(1, models=(SPEC,), shards=(SHARD,))
(SPEED,) = dynamic_record().speeds
LINK = LinkSpeed(OTHER, 0.0, 1e6)
MOVING = DynamicRecord((SPEED,), (LINK,), 0)


def numbered(index: int) -> ModelId:
    return ModelId(f"{index:032x}")


def with_spec(**changes: object) -> StaticRecord:
    return replace(GOOD, models=(replace(SPEC, **changes),), shards=())  # type: ignore[arg-type]


def with_shard(**changes: object) -> StaticRecord:
    return replace(GOOD, shards=(replace(SHARD, **changes),))  # type: ignore[arg-type]


def with_speed(**changes: object) -> DynamicRecord:
    return replace(MOVING, speeds=(replace(SPEED, **changes),))  # type: ignore[arg-type]


def with_link(**changes: object) -> DynamicRecord:
    return replace(MOVING, links=(replace(LINK, **changes),))  # type: ignore[arg-type]


FIT: list[Content] = [
    GOOD,
    MOVING,
    static_record(1, addresses=(), device="", name=""),
    with_spec(layer_count=LAYERS_MAX, hidden_size=HIDDEN_MAX),
    with_spec(vocab_size=VOCAB_MAX, context_length=CONTEXT_MAX, eos_ids=()),
    with_shard(numeric_class=NumericClass(""), state=ShardState.LOADING, kv_capacity_bytes=0),
    with_shard(cuts=(1, 11)),
    replace(GOOD, models=(), shards=(replace(SHARD, layers=LayerRange(0, LAYERS_MAX)),)),
    with_speed(head_s=0.0, queue_s=0.0, kv_free_bytes=0),
    with_link(rtt_s=0.0),
]

UNFIT: list[Content] = [
    replace(GOOD, departs_in_s=-5.0),
    replace(GOOD, departs_in_s=1e9),
    replace(GOOD, name="\x1b[2J"),
    replace(GOOD, name="\u202eeman"),
    replace(GOOD, name="x" * (TEXT_MAX + 1)),
    replace(GOOD, version="1\n2"),
    replace(GOOD, device="\x9b2J"),
    replace(GOOD, memory_bytes=-1),
    replace(GOOD, protocol_min=2, protocol_max=1),
    replace(GOOD, addresses=(Address("10.0.0.1", 0),)),
    replace(GOOD, addresses=(Address("10.0.0.1", 65536),)),
    replace(GOOD, addresses=(Address("", 1),)),
    replace(GOOD, addresses=(Address("a b", 1),)),
    replace(GOOD, addresses=tuple(Address("h", i + 1) for i in range(ADDRESSES_MAX + 1))),
    with_spec(layer_count=-1),
    with_spec(layer_count=0),
    with_spec(layer_count=1 << 60),
    with_spec(hidden_size=0),
    with_spec(hidden_size=HIDDEN_MAX + 1),
    with_spec(vocab_size=0),
    with_spec(vocab_size=VOCAB_MAX + 1),
    with_spec(context_length=0),
    with_spec(context_length=CONTEXT_MAX + 1),
    with_spec(eos_ids=(-1,)),
    with_spec(eos_ids=tuple(range(65))),
    with_spec(name="a\x1b[31mb"),
    with_spec(model_id=ModelId("m\x00")),
    replace(GOOD, models=(SPEC, replace(SPEC, layer_count=11))),
    replace(GOOD, models=tuple(replace(SPEC, model_id=numbered(i)) for i in range(MODELS_MAX + 1))),
    with_shard(layers=LayerRange(0, 13)),
    replace(GOOD, models=(), shards=(replace(SHARD, layers=LayerRange(0, LAYERS_MAX + 1)),)),
    with_shard(row_bytes=0),
    with_shard(cuts=(0,)),
    with_shard(cuts=(4, 12)),
    with_shard(cuts=(6, 6)),
    with_shard(cuts=(8, 4)),
    with_shard(kv_bytes_per_token_layer=-1),
    with_shard(kv_capacity_bytes=-1),
    with_shard(numeric_class=NumericClass("\x1bc")),
    replace(GOOD, shards=(SHARD,) * 60),
    with_speed(decode_s_per_layer=0.0),
    with_speed(decode8_s_per_layer=-1.0),
    with_speed(prefill_s_per_token_layer=1e300),
    with_speed(head_s=-1e-9),
    with_speed(queue_s=math.inf),
    with_speed(queue_s=math.nan),
    with_speed(kv_free_bytes=-1),
    replace(MOVING, speeds=(SPEED, SPEED)),
    with_link(goodput_bytes_s=0.0),
    with_link(goodput_bytes_s=5e-324),
    with_link(rtt_s=-1.0),
    with_link(peer=NodeId("\x1b")),
    replace(MOVING, links=(LINK, LINK)),
    replace(MOVING, links=tuple(replace(LINK, peer=NodeId(str(i))) for i in range(LINKS_MAX + 1))),
    replace(MOVING, local_health=-1),
]


@pytest.mark.parametrize("content", FIT, ids=range(len(FIT)))
def test_what_honest_nodes_say_fits(content: Content) -> None:
    check_content(content)


@pytest.mark.parametrize("content", UNFIT, ids=range(len(UNFIT)))
def test_what_cannot_be_is_refused_in_printable_words(content: Content) -> None:
    with pytest.raises(RemoteProtocolError, match="a record's ") as caught:
        check_content(content)
    assert str(caught.value).isprintable()


def core(number: int = 0) -> Gossip:
    gossip = Gossip(IDS[number], signer_of(number), GossipConfig(), Incarnation(5), Random(1))
    gossip.publish_static(static_record(number), 0.0)
    gossip.link_up(PEER if number == 0 else ME, Incarnation(1), 0.0)
    gossip.take_effects()
    return gossip


def sealed(number: int, content: Content, sequence: int = 1, incarnation: int = 1) -> Records:
    version = Version(Incarnation(incarnation), sequence)
    return Records((seal(signer_of(number), content, version, 1 << 20),))


def told(gossip: Gossip, event: str) -> list[Note]:
    effects = gossip.take_effects()
    return [e.note for e in effects if isinstance(e, Tell) and e.note.event == event]


UNFIT_SMALL = [
    with_spec(layer_count=-1),
    with_shard(layers=LayerRange(0, 13)),
    with_speed(queue_s=-1),
]


@pytest.mark.parametrize("content", UNFIT_SMALL, ids=range(len(UNFIT_SMALL)))
def test_the_author_of_an_unfit_record_is_hung_up_on(content: Content) -> None:
    gossip = core()
    with pytest.raises(RemoteProtocolError):
        gossip.receive(PEER, sealed(1, content), 1.0)
    member = gossip.member(PEER)
    assert member is not None and member.static is None and member.dynamic is None


@pytest.mark.parametrize("content", UNFIT_SMALL, ids=range(len(UNFIT_SMALL)))
def test_who_passes_an_unfit_record_on_keeps_its_link(content: Content) -> None:
    gossip = core()
    both = (*sealed(2, content).records, *sealed(3, static_record(3)).records)
    gossip.receive(PEER, Records(both), 1.0)
    assert gossip.member(OTHER) is None, "it is not even a member by this"
    assert gossip.member(IDS[3]) is not None, "the rest of the message counts"
    (entry,) = told(gossip, "gossip.unfit")
    assert entry.get("carrier") == PEER[:8] and entry.get("node") == OTHER[:8]


def test_unfit_records_are_told_seldom() -> None:
    gossip = core()
    count = 0
    for sequence in range(1, 200):
        gossip.receive(PEER, sealed(2, with_spec(hidden_size=0), sequence), 1.0 + sequence)
        count += len(told(gossip, "gossip.unfit"))
    assert count == 4, "once a minute in 199 seconds"


def test_an_honest_carrier_of_anothers_future_does_not_split_the_swarm() -> None:
    """A record that only some builds take: they stay linked, and the rest of gossip goes on."""
    world = World(3)
    world.run(1)
    odd = sealed(9, with_spec(layer_count=LAYERS_MAX + 1))
    carrier = world.nodes[0]
    for other in world.nodes[1:]:
        other.gossip.receive(carrier.node, odd, world.now)
        other.settle()
    world.run(5)
    assert world.agree()


def test_one_record_of_many_addresses_is_one_small_dial() -> None:
    gossip = core()
    many = tuple(Address("192.0.2.1", port) for port in range(1, ADDRESSES_MAX + 1))
    gossip.receive(PEER, sealed(2, static_record(2, addresses=many)), 1.0)
    dials = [effect for effect in gossip.take_effects() if isinstance(effect, Dial)]
    assert dials == [Dial(many[:DIAL_ADDRESSES_MAX], OTHER)]


def test_a_repeated_equivocation_is_told_once_a_minute() -> None:
    gossip = core()
    gossip.receive(PEER, sealed(2, static_record(2, name="one")), 1.0)
    count = 0
    for step in range(100):
        gossip.receive(PEER, sealed(2, static_record(2, name=f"two {step}")), 2.0 + step / 100)
        count += len(told(gossip, "member.contradicted"))
    assert count == 1
    gossip.receive(PEER, sealed(2, static_record(2, name="two")), 70.0)
    assert len(told(gossip, "member.contradicted")) == 1


def test_many_keys_do_not_make_many_notes() -> None:
    gate = Seldom()
    assert sum(gate.allows(NodeId(str(i)), 1.0) for i in range(1000)) == seldom.NODES_MAX
    assert gate.allows(NodeId("later"), 1.0 + seldom.INTERVAL_S)


def test_we_do_not_send_what_others_would_hang_up_for() -> None:
    gossip = core()
    gossip.publish_static(static_record(0, name="\x1b[2J"), 1.0)
    effects = gossip.take_effects()
    assert not any(isinstance(effect, Send) for effect in effects)
    (entry,) = [effect.note for effect in effects if isinstance(effect, Tell)]
    assert entry.event == "gossip.unfit_own" and entry.level is Level.ERROR
    gossip.publish_static(static_record(0, name="plain"), 2.0)
    assert any(isinstance(effect, Send) for effect in gossip.take_effects())


# ---------------------------------------------------------------- incarnations


@pytest.mark.parametrize("incarnation", [-1, 0, INCARNATION_LIMIT, (1 << 63) - 1])
def test_a_link_of_an_impossible_incarnation_is_closed_and_leaves_nothing(incarnation: int) -> None:
    gossip = core()
    gossip.link_up(OTHER, Incarnation(incarnation), 1.0)
    closes = [effect for effect in gossip.take_effects() if isinstance(effect, CloseLink)]
    assert [close.peer for close in closes] == [OTHER]
    assert gossip.member(OTHER) is None
    gossip.receive(OTHER, sealed(2, static_record(2)), 1.1)
    gossip.link_down(OTHER, False, 1.2)
    assert gossip.member(OTHER) is None


def test_an_impossible_incarnation_tears_no_honest_links() -> None:
    world = World(4)
    world.run(1)
    honest, links = world.nodes[:3], dict(world.links)
    for node in honest:
        node.gossip.link_up(node_id_of(signer_of(9).public_key), Incarnation(1 << 60), world.now)
        node.settle()
        node.gossip.link_down(node_id_of(signer_of(9).public_key), False, world.now)
        node.settle()
    world.run(7)
    assert world.links == links, "not one was made anew"
    assert world.agree()


def test_the_last_incarnation_is_never_raised_over_the_limit() -> None:
    last = Incarnation(INCARNATION_LIMIT - 1)
    gossip = Gossip(ME, signer_of(0), GossipConfig(), last, Random(1))
    gossip.link_up(PEER, Incarnation(1), 0.0)
    gossip.receive(PEER, Suspicion(ME, last, PEER), 1.0)
    gossip.receive(PEER, Verdict(ME, last, False), 2.0)
    gossip.receive(PEER, sealed(0, static_record(0), 99, INCARNATION_LIMIT - 1), 3.0)
    assert gossip.incarnation == last
    member = gossip.member(ME)
    assert member is not None and member.state is MemberState.ALIVE
