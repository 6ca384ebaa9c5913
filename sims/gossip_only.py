"""Swarms of membership alone: a thousand nodes' gossip cores and address books, nothing else.

The cores are the production ones. Instead of nodes, links and a network there is one heap of
events: messages keep their order on a link, take a latency, and a lost packet costs a
retransmission, as on TCP. What is sent is counted as the bytes of sealed frames.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

from sims import wire
from sims.machine import SECOND_NS
from sims.plain_suite import PlainIdentity, plain_signature
from sims.wire import Profile
from swarm.config import DiscoveryConfig, GossipConfig
from swarm.discovery.addresses import AddressBook, Interest, Source
from swarm.effects import CloseLink, Dial, Effect, Send, Tell
from swarm.gossip.gossip import Gossip
from swarm.gossip.membership import Member
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Signer
from swarm.link.frames import LENGTH_BYTES
from swarm.link.identity import node_id_of
from swarm.link.noise import TAG_BYTES
from swarm.messages import Message, encode
from swarm.terms import (
    Address,
    Incarnation,
    LayerRange,
    LinkSpeed,
    MemberState,
    ModelId,
    NodeId,
    NumericClass,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

RETRANSMIT_S = 0.2
"""The least time after which TCP sends a lost segment again; doubles with each further loss."""
PORT = 7000
JOIN_SPREAD_S = 0.05
"""Between two machines that are switched on."""
SIGHTED = 3
"""Machines that a new one hears of by multicast before gossip tells it of all others."""
RECORD_DOMAIN = b"gossip record"
MODEL = ModelId(f"{12:032x}")
LAYERS = 12
EPSILON_S = 1e-6


class GossipNode:
    """One node: its core, its address book and the links it has."""

    def __init__(self, world: GossipWorld, number: int) -> None:
        identity = PlainIdentity(f"{world.seed} {number}".encode())
        self.number = number
        self.id = identity.node_id
        self.address = Address(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", PORT)
        self.links: dict[NodeId, int] = {}
        """Peer to the number of the link."""
        self.bytes_sent = 0
        self.static = _static(number, self.address, LayerRange(0, LAYERS))
        self.known: dict[NodeId, StaticRecord] = {}
        """The last static record that was seen of each other node."""
        self.deaths = 0
        self._world = world
        self._timer = 0
        rng = Random(f"{world.seed}/{number}")
        self.gossip = Gossip(self.id, _signer(identity), world.config, Incarnation(1), rng)
        self.book = AddressBook(self.id, DiscoveryConfig(), rng)
        self._rng = rng

    # ------------------------------------------------------------ facts

    def start(self, sighted: list[GossipNode]) -> None:
        now = self._world.now_s
        self.book.own_addresses((self.address,))
        for other in sighted:
            self.book.sighted(other.id, (other.address,), Source.MDNS, now)
        self.gossip.publish_static(self.static, now)
        self.measure()
        self.settle()

    def serve(self, layers: LayerRange) -> None:
        self.static = _static(self.number, self.address, layers)
        self.gossip.publish_static(self.static, self._world.now_s)
        self.settle()

    def measure(self) -> None:
        """Offer figures that have moved."""
        speed = ShardSpeed(MODEL, 0.001 * self._rng.uniform(0.5, 2.0), 0.002, 1e-4, 0.003, 0.0, 1)
        links = tuple(LinkSpeed(peer, 0.0003, 1e8) for peer in sorted(self.links))
        self.gossip.publish_dynamic(DynamicRecord((speed,), links, 0), self._world.now_s)

    def link_up(self, peer: GossipNode, link: int, *, is_dialled: bool) -> None:
        now = self._world.now_s
        self.links[peer.id] = link
        self.gossip.link_up(peer.id, Incarnation(1), now, is_dialled=is_dialled)
        self.gossip.measured(peer.id, 0.0003)
        self.book.link_up(peer.id, peer.address if is_dialled else None, now)
        self.settle()

    def link_down(self, peer: NodeId, link: int, *, orderly: bool) -> None:
        if self.links.get(peer) != link:
            return
        now = self._world.now_s
        del self.links[peer]
        self.gossip.link_down(peer, orderly, now)
        self.book.link_down(peer, now)
        self.settle()

    def dial_missed(self, dial: Dial) -> None:
        now = self._world.now_s
        self.book.dial_failed(dial, now)
        if dial.expected is not None:
            self.gossip.dial_failed(dial.expected, now)
        self.settle()

    def receive(self, sender: NodeId, message: Message, link: int) -> None:
        if self.links.get(sender) == link:
            self.gossip.receive(sender, message, self._world.now_s)  # type: ignore[arg-type]
            self.settle()

    # ------------------------------------------------------------ effects

    def settle(self) -> None:
        now = self._world.now_s
        self._look_at_changes(now)
        for effect in [*self.gossip.take_effects(), *self.book.tick(now)]:
            self._carry_out(effect)
        self._look_at_changes(now)
        deadlines = (self.gossip.next_deadline(), self.book.next_deadline())
        due = min((at for at in deadlines if at is not None), default=None)
        self._timer += 1
        if due is not None:
            self._world.at(max(due, now + EPSILON_S), self._ring, self._timer)

    def _ring(self, timer: int) -> None:
        if timer == self._timer:
            self.gossip.tick(self._world.now_s)
            self.settle()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._world.carry(self, effect)
            case Dial():
                self._world.dial(self, effect)
            case CloseLink():
                self._world.close(self, effect.peer)
            case Tell():
                self.deaths += effect.note.event == "member.dead"
            case _:
                pass

    def _look_at_changes(self, now: float) -> None:
        for node in self.gossip.take_changes():
            member = self.gossip.member(node)
            if member is None or node == self.id:
                continue
            if member.static is not None and self.known.get(node) is not member.static:
                self.known[node] = member.static
                self.book.sighted(node, member.static.addresses, Source.GOSSIP, now)
                self._world.learned(self, node, member.static)
            self.book.stands(node, _interest(member), now)


class GossipWorld:
    def __init__(
        self,
        count: int,
        seed: int,
        *,
        profile: Profile = wire.WIRED,
        loss: float = 0.0,
        config: GossipConfig | None = None,
    ) -> None:
        self.seed = seed
        self.config = config or GossipConfig()
        self.now_s = 100.0
        self.loss = loss
        self.on_learned: Callable[[GossipNode, NodeId, StaticRecord], None] = _ignore
        """Told when a node has a new static record of another one."""
        self._rng = Random(seed)
        self._delays_ns = wire.delays_ns(profile)
        self._events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._count = itertools.count()
        self._arrivals: dict[tuple[NodeId, NodeId], float] = {}
        self._cut_between: tuple[frozenset[NodeId], frozenset[NodeId]] | None = None
        self._frame_bytes: tuple[Message | None, int] = (None, 0)
        self.nodes = [GossipNode(self, number + 1) for number in range(count)]
        self.by_id = {node.id: node for node in self.nodes}
        self._by_address = {node.address: node for node in self.nodes}
        for number, node in enumerate(self.nodes):
            earlier = self.nodes[:number]
            sighted = self._rng.sample(earlier, min(SIGHTED, len(earlier)))
            self.at(self.now_s + number * JOIN_SPREAD_S, node.start, sighted)

    # ------------------------------------------------------------ time

    def at(self, when_s: float, action: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self._events, (when_s, next(self._count), action, arguments))

    def run(self, duration_s: float) -> None:
        end_s = self.now_s + duration_s
        events = self._events
        while events and events[0][0] <= end_s:
            self.now_s, _, action, arguments = heapq.heappop(events)
            action(*arguments)
        self.now_s = end_s

    def run_until(self, condition: Callable[[], bool], limit_s: float, step_s: float) -> float:
        """Seconds until it was found true; infinite when that took too long."""
        began_s = self.now_s
        while not condition():
            if self.now_s - began_s > limit_s:
                return float("inf")
            self.run(step_s)
        return self.now_s - began_s

    # ------------------------------------------------------------ asking

    def is_one_view(self) -> bool:
        """Everybody holds the same records, and everybody for alive."""
        if len({node.gossip.state_hash() for node in self.nodes}) > 1:
            return False
        return all(
            member.state is MemberState.ALIVE
            for node in self.nodes
            for member in node.gossip.members()
        ) and all(len(node.gossip.members()) == len(self.nodes) for node in self.nodes)

    def learned(self, node: GossipNode, author: NodeId, record: StaticRecord) -> None:
        self.on_learned(node, author, record)

    # ------------------------------------------------------------ links

    def carry(self, sender: GossipNode, effect: Send) -> None:
        link = sender.links.get(effect.peer)
        if link is None:
            return
        sender.bytes_sent += self._size(effect.message)
        if self._is_cut(sender.id, effect.peer):
            return
        arrival_s = self.now_s + self._latency_s()
        pair = (sender.id, effect.peer)
        arrival_s = max(arrival_s, self._arrivals.get(pair, 0.0) + EPSILON_S)
        self._arrivals[pair] = arrival_s
        receiver = self.by_id[effect.peer]
        self.at(arrival_s, receiver.receive, sender.id, effect.message, link)

    def dial(self, node: GossipNode, effect: Dial) -> None:
        other = next((self._by_address[a] for a in effect.addresses if a in self._by_address), None)
        self.at(self.now_s + 3 * self._latency_s(), self._dialled, node, other, effect)

    def _dialled(self, node: GossipNode, other: GossipNode | None, effect: Dial) -> None:
        if other is None or self._is_cut(node.id, other.id):
            node.dial_missed(effect)
        elif other.id not in node.links:
            link = next(self._count)
            node.link_up(other, link, is_dialled=True)
            other.link_up(node, link, is_dialled=False)

    def close(self, node: GossipNode, peer: NodeId) -> None:
        """In good order: the other side learns of it."""
        link = node.links.get(peer)
        if link is not None:
            self.at(self.now_s, self._closed, node, peer, link)

    def _closed(self, node: GossipNode, peer: NodeId, link: int) -> None:
        node.link_down(peer, link, orderly=True)
        if not self._is_cut(node.id, peer):
            other = self.by_id[peer]
            self.at(self.now_s + self._latency_s(), _down, other, node.id, link)

    # ------------------------------------------------------------ faults

    def part(self, count: int) -> None:
        """The first `count` nodes and the others reach each other no more."""
        ids = [node.id for node in self.nodes]
        self._cut_between = (frozenset(ids[:count]), frozenset(ids[count:]))

    def heal(self) -> None:
        self._cut_between = None

    def _is_cut(self, a: NodeId, b: NodeId) -> bool:
        cut = self._cut_between
        return cut is not None and ((a in cut[0]) is not (b in cut[0]))

    # ------------------------------------------------------------ small parts

    def _latency_s(self) -> float:
        draw = self._rng.random
        delay_s = self._delays_ns[int(draw() * wire.TABLE_SIZE)] / SECOND_NS
        again_s = RETRANSMIT_S
        while self.loss and draw() < self.loss:
            delay_s += again_s
            again_s *= 2
        return delay_s

    def _size(self, message: Message) -> int:
        """Of its sealed frame. The same message often goes to many peers one after the other."""
        last, size = self._frame_bytes
        if last is not message:
            size = LENGTH_BYTES + TAG_BYTES + sum(len(part) for part in encode(message))
            self._frame_bytes = (message, size)
        return size


def _down(node: GossipNode, peer: NodeId, link: int) -> None:
    node.link_down(peer, link, orderly=True)


def _ignore(node: GossipNode, author: NodeId, record: StaticRecord) -> None:
    """Nobody asked to be told."""


def _interest(member: Member) -> Interest:
    match member.state:
        case MemberState.DEAD:
            return Interest.ABSENT
        case MemberState.LEFT:
            return Interest.DEPARTED
        case _:
            return Interest.WANTED if member.wanted else Interest.RESTING


def _signer(identity: PlainIdentity) -> Signer:
    return Signer(
        swarm_tag=b"gossip only",
        public_key=identity.public_key,
        sign=lambda data: identity.sign(RECORD_DOMAIN, data),
        verify=lambda public_key, data, signature: (
            plain_signature(public_key, RECORD_DOMAIN, data) == signature
        ),
        node_id_of=node_id_of,
    )


_BLANK = StaticRecord(
    name="",
    version="0",
    protocol_min=1,
    protocol_max=1,
    addresses=(),
    device="stub",
    memory_bytes=1 << 30,
    models=(),
    shards=(),
    leaving=False,
)


def _static(number: int, address: Address, layers: LayerRange) -> StaticRecord:
    shard = ShardInfo(
        model_id=MODEL,
        layers=layers,
        embed=layers.start == 0,
        head=layers.stop == LAYERS,
        numeric_class=NumericClass("stub"),
        state=ShardState.SERVING,
        kv_bytes_per_token_layer=100,
        kv_capacity_bytes=1 << 20,
        row_bytes=8,
    )
    return replace(_BLANK, name=f"n{number}", addresses=(address,), shards=(shard,))
