"""What the judge and the exchange of one node work on together."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from swarm.config import GossipConfig
from swarm.gossip.health import LocalHealth
from swarm.gossip.heartbeat import Heartbeats
from swarm.gossip.membership import Membership
from swarm.gossip.neighbours import Neighbours
from swarm.gossip.own import Own
from swarm.gossip.rumours import Rumours
from swarm.gossip.sealing import Signer
from swarm.gossip.spread import Spread
from swarm.gossip.store import RecordStore
from swarm.terms import Incarnation, NodeId


@dataclass(frozen=True, slots=True)
class Parts:
    config: GossipConfig
    signer: Signer
    rng: Random
    membership: Membership
    store: RecordStore
    heartbeats: Heartbeats
    spread: Spread
    own: Own
    health: LocalHealth
    rumours: Rumours
    neighbours: Neighbours

    @property
    def is_partial(self) -> bool:
        """Too many members for a link to each: news travels as rumours."""
        return self.neighbours.is_partial


def build_parts(
    me: NodeId, signer: Signer, config: GossipConfig, incarnation: Incarnation, rng: Random
) -> Parts:
    heartbeats = Heartbeats(
        config.heartbeat_interval_s, config.heartbeat_missed_max, config.hash_mismatch_s
    )
    store = RecordStore()
    spread = Spread(heartbeats, config.records_per_message)
    membership = Membership(me, incarnation, config.tombstone_s)
    return Parts(
        config=config,
        signer=signer,
        rng=rng,
        membership=membership,
        store=store,
        heartbeats=heartbeats,
        spread=spread,
        own=Own(signer, config, incarnation, store, spread),
        health=LocalHealth(config.local_health_max),
        rumours=Rumours(spread, config, rng),
        neighbours=Neighbours(config, membership, heartbeats, store, rng),
    )
