"""Records under our own key that we did not write: their author is looked for, bids are bounded."""

from __future__ import annotations

from random import Random

from gossip_world import node_id_of, signer_of, static_record

from swarm.config import GossipConfig
from swarm.effects import Dial
from swarm.gossip.gossip import Gossip
from swarm.gossip.own import FOREIGN_BIDS_AT_PACE, FOREIGN_PAUSE_MAX_S, LOOKED_AT_MAX
from swarm.gossip.sealing import Content, Version, seal
from swarm.messages import Records
from swarm.terms import Address, Incarnation

PEER = node_id_of(signer_of(1).public_key)
HERE = Address("10.0.0.1", 7000)
HOUR_S = 3600.0


def node() -> Gossip:
    signer = signer_of(0)
    me = node_id_of(signer.public_key)
    gossip = Gossip(me, signer, GossipConfig(), Incarnation(5), Random(1))
    gossip.publish_static(static_record(0, addresses=(HERE,)), 0.0)
    gossip.link_up(PEER, Incarnation(1), 0.0)
    gossip.take_effects()
    return gossip


def of_copy(content: Content, incarnation: int, sequence: int = 9) -> Records:
    version = Version(Incarnation(incarnation), sequence)
    return Records((seal(signer_of(0), content, version, 1 << 14),))


def dials(gossip: Gossip) -> list[Dial]:
    return [effect for effect in gossip.take_effects() if isinstance(effect, Dial)]


def test_a_copy_is_looked_for_at_its_addresses_but_not_at_ours() -> None:
    gossip = node()
    there = tuple(Address("10.0.0.7", port) for port in range(7000, 7020))
    gossip.receive(PEER, of_copy(static_record(0, addresses=(HERE, *there)), 6), 1.0)
    assert dials(gossip) == [Dial((address,), None) for address in there[:LOOKED_AT_MAX]]
    assert gossip.incarnation == 7


def test_the_own_record_from_before_a_lost_disk_sets_off_no_dial() -> None:
    gossip = node()
    gossip.receive(PEER, of_copy(static_record(0, addresses=(HERE,)), 6), 1.0)
    assert dials(gossip) == []
    assert gossip.incarnation == 7


def test_copies_that_cannot_meet_do_not_outbid_each_other_without_end() -> None:
    gossip = node()
    record = static_record(0, addresses=(Address("10.0.0.7", 7000),))
    now, raised = 1.0, []
    while now < HOUR_S:
        before = gossip.incarnation
        gossip.receive(PEER, of_copy(record, before + 1), now)
        if gossip.incarnation > before:
            raised.append(now)
        now += 0.5
    assert raised[FOREIGN_BIDS_AT_PACE - 1] <= 2.5 * FOREIGN_BIDS_AT_PACE
    assert len(raised) <= FOREIGN_BIDS_AT_PACE + 6 + HOUR_S / FOREIGN_PAUSE_MAX_S
    late = [later - earlier for earlier, later in zip(raised[20:], raised[21:], strict=False)]
    assert min(late) >= FOREIGN_PAUSE_MAX_S
    before = gossip.incarnation
    gossip.receive(PEER, of_copy(record, before + 1), now + HOUR_S)
    gossip.receive(PEER, of_copy(record, before + 9), now + HOUR_S + 2.5)
    assert gossip.incarnation == before + 10, "after a calm, the first pace again"
