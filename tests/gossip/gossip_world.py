"""Several gossip cores in one virtual time, joined by links that delay, lose, cut and pause."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from base64 import b32encode
from collections.abc import Callable
from dataclasses import replace
from random import Random

import nacl.exceptions
import nacl.signing

from swarm.config import GossipConfig
from swarm.effects import CloseLink, Dial, SaveIncarnation, Send, Tell
from swarm.errors import RemoteProtocolError
from swarm.gossip.gossip import Gossip
from swarm.gossip.membership import Member
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Signer
from swarm.messages import PEER_MESSAGES, Lane, decode, encode
from swarm.terms import Address, Incarnation, MemberState, ModelId, NodeId, ShardSpeed

TAG = b"test swarm"
REDIAL_S = 1.0


def node_id_of(public_key: bytes) -> NodeId:
    digest = hashlib.blake2b(public_key, digest_size=20).digest()
    return NodeId(b32encode(digest).decode().lower())


def verify(public_key: bytes, data: bytes, signature: bytes) -> bool:
    try:
        nacl.signing.VerifyKey(public_key).verify(data, signature)
    except (nacl.exceptions.BadSignatureError, ValueError):
        return False
    return True


def signer_of(number: int, tag: bytes = TAG) -> Signer:
    key = nacl.signing.SigningKey(hashlib.sha256(f"node {number}".encode()).digest())
    public = bytes(key.verify_key)
    return Signer(tag, public, lambda data: key.sign(data).signature, verify, node_id_of)


def static_record(number: int, **changes: object) -> StaticRecord:
    record = StaticRecord(
        name=f"node{number}",
        version="1",
        protocol_min=1,
        protocol_max=1,
        addresses=(Address("10.0.0.1", 7000 + number),),
        device="cpu",
        memory_bytes=1 << 30,
        models=(),
        shards=(),
        leaving=False,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def dynamic_record(decode_s: float = 0.001, queue_s: float = 0.0) -> DynamicRecord:
    speed = ShardSpeed(ModelId("m" * 32), decode_s, 0.002, 0.0001, 0.003, queue_s, 1 << 20)
    return DynamicRecord((speed,), (), 0)


class Node:
    """One core with its disk (`saved`), its log and its standing in the simulated network."""

    def __init__(self, world: World, number: int, incarnation: int = 1) -> None:
        self.world = world
        self.number = number
        self.signer = signer_of(number)
        self.node = node_id_of(self.signer.public_key)
        self.saved = incarnation
        self.is_up = False
        self.is_killed = False
        self.paused_until = 0.0
        self.notes: list[str] = []
        self.states: list[tuple[float, NodeId, MemberState]] = []
        self.sent: list[tuple[float, Send]] = []
        self.timer = 0
        self.start()

    def start(self, incarnation: int | None = None) -> None:
        self.saved = self.saved if incarnation is None else incarnation
        rng = Random(f"{self.world.seed} {self.number} {self.saved}")
        self.gossip = Gossip(
            self.node, self.signer, self.world.config, Incarnation(self.saved), rng
        )
        self.is_up, self.is_killed = True, False
        self.gossip.publish_static(static_record(self.number), self.world.now)
        self.settle()

    def settle(self) -> None:
        """Carry out what the core ordered, and set its timer anew."""
        for effect in self.gossip.take_effects():
            match effect:
                case Send():
                    self.sent.append((self.world.now, effect))
                    self.world.carry(self, effect)
                case Dial():
                    self.world.dial(self, effect)
                case CloseLink():
                    self.world.close(self.node, effect.peer, orderly=False)
                case SaveIncarnation():
                    self.saved = effect.incarnation
                case Tell():
                    self.notes.append(effect.note.event)
        for node in self.gossip.take_changes():
            member = self.gossip.member(node)
            if member:
                self.states.append((self.world.now, node, member.state))
        self.timer += 1
        deadline = self.gossip.next_deadline()
        if deadline is not None:
            self.world.at(max(deadline, self.world.now + 1e-6), self._ring, self.timer)

    def _ring(self, timer: int) -> None:
        if not self.is_up or timer != self.timer:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._ring, timer)
            return
        self.gossip.tick(self.world.now)
        self.settle()

    def do(self, action: Callable[..., object], *arguments: object) -> None:
        """Run a fact on this node now, or when its pause ends."""
        if not self.is_up:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self.do, action, *arguments)
            return
        action(*arguments, self.world.now)
        self.settle()

    def view(self) -> dict[NodeId, Member]:
        return {member.node: member for member in self.gossip.members()}

    def state_of(self, other: Node) -> MemberState | None:
        member = self.gossip.member(other.node)
        return member.state if member else None

    def ever(self, other: Node, state: MemberState) -> bool:
        return any(node == other.node and seen is state for _, node, seen in self.states)


class World:
    def __init__(
        self,
        count: int,
        seed: int = 1,
        *,
        config: GossipConfig | None = None,
        delay_s: float = 0.002,
        loss: float = 0.0,
        mesh: bool = True,
    ) -> None:
        self.seed = seed
        self.config = config or GossipConfig()
        self.rng = Random(seed)
        self.now = 100.0
        self.delay_s = delay_s
        self.loss = loss
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._counter = itertools.count()
        self.links: dict[frozenset[NodeId], int] = {}
        self._last_arrival: dict[tuple[NodeId, NodeId], float] = {}
        self.cut: set[tuple[NodeId, NodeId]] = set()
        """Ordered pairs whose messages vanish in silence."""
        self.unreachable: set[frozenset[NodeId]] = set()
        """Pairs that can never link."""
        self.nodes = [Node(self, number) for number in range(count)]
        self.by_id = {node.node: node for node in self.nodes}
        if mesh:
            self.mesh()
            self.redial()

    # ------------------------------------------------------------ time

    def at(self, when: float, action: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self._heap, (when, next(self._counter), action, arguments))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(self._heap)
            action(*arguments)
        self.now = end

    def run_until(self, condition: Callable[[], bool], limit_s: float) -> float:
        """Seconds until the condition held; fails beyond the limit."""
        start = self.now
        while not condition():
            assert self.now - start <= limit_s, f"not within {limit_s} s"
            self.run(0.01)
        return self.now - start

    # ------------------------------------------------------------ links

    def mesh(self) -> None:
        for a, b in itertools.combinations(self.nodes, 2):
            self.link(a, b)

    def redial(self) -> None:
        """Stands for discovery: absent pairs are tried again and again."""
        self.mesh()
        self.at(self.now + REDIAL_S * (0.5 + self.rng.random()), self.redial)

    def link(self, a: Node, b: Node) -> None:
        pair = frozenset((a.node, b.node))
        blocked = pair in self.unreachable or self._is_cut(a, b) or self._is_cut(b, a)
        if a is b or blocked or pair in self.links or not (a.is_up and b.is_up):
            return
        if a.paused_until > self.now or b.paused_until > self.now:
            return
        self.links[pair] = next(self._counter)
        a.do(a.gossip.link_up, b.node, b.gossip.incarnation)
        b.do(b.gossip.link_up, a.node, a.gossip.incarnation)

    def dial(self, node: Node, effect: Dial) -> None:
        for address in effect.addresses:
            number = address.port - 7000
            if 0 <= number < len(self.nodes):
                self.at(self.now + 2 * self.delay_s, self._dialled, node, self.nodes[number])

    def _dialled(self, node: Node, target: Node) -> None:
        """A process that is gone refuses; a machine that is gone says nothing."""
        self.link(node, target)
        if target.is_killed and not self._is_cut(node, target):
            node.do(node.gossip.dial_failed, target.node)

    def close(self, closer: NodeId, other: NodeId, *, orderly: bool) -> None:
        here, there = self.by_id[closer], self.by_id.get(other)
        if there is None:
            return
        was_up = self.links.pop(frozenset((closer, other)), None) is not None
        self.at(self.now, self._down, here, other, orderly)
        if was_up and not self._is_cut(here, there):
            self.at(self.now, self._down, there, closer, orderly)

    def _down(self, node: Node, peer: NodeId, orderly: bool) -> None:
        if frozenset((node.node, peer)) not in self.links:
            node.do(node.gossip.link_down, peer, orderly)

    def carry(self, sender: Node, effect: Send) -> None:
        link = self.links.get(frozenset((sender.node, effect.peer)))
        receiver = self.by_id[effect.peer]
        if link is None or self._is_cut(sender, receiver) or self.rng.random() < self.loss:
            return
        frame = b"".join(bytes(part) for part in encode(effect.message))
        assert len(frame) <= 64 * 1024
        key = (sender.node, receiver.node)
        arrival = self.now + self.delay_s * (0.5 + self.rng.random())
        arrival = max(arrival, self._last_arrival.get(key, 0.0) + 1e-9)
        self._last_arrival[key] = arrival
        self.at(arrival, self._arrive, sender.node, receiver, frame, link)

    def _arrive(self, sender: NodeId, receiver: Node, frame: bytes, link: int) -> None:
        if not receiver.is_up or self.links.get(frozenset((sender, receiver.node))) != link:
            return
        if receiver.paused_until > self.now:
            self.at(receiver.paused_until, self._arrive, sender, receiver, frame, link)
            return
        message = decode(frame, PEER_MESSAGES, Lane.CONTROL)
        assert message is not None
        try:
            receiver.gossip.receive(sender, message, self.now)  # type: ignore[arg-type]
        except RemoteProtocolError:
            self.close(receiver.node, sender, orderly=False)
        receiver.settle()

    def _is_cut(self, sender: Node, receiver: Node) -> bool:
        return (sender.node, receiver.node) in self.cut

    # ------------------------------------------------------------ faults

    def kill(self, node: Node) -> None:
        """The process ends: its peers see an end of file."""
        node.is_up, node.is_killed = False, True
        for other in self.nodes:
            self.close(node.node, other.node, orderly=False)

    def vanish(self, node: Node) -> None:
        """The machine loses power: silence."""
        node.is_up = False

    def restart(self, node: Node, incarnation: int) -> None:
        for other in self.nodes:
            self.close(node.node, other.node, orderly=False)
        node.start(incarnation)

    def pause(self, node: Node, seconds: float) -> None:
        node.paused_until = self.now + seconds
        self.at(node.paused_until, self._wake, node, seconds)

    def _wake(self, node: Node, seconds: float) -> None:
        node.do(node.gossip.loop_lag, seconds)

    def partition(self, one: list[Node], other: list[Node]) -> None:
        for a, b in itertools.product(one, other):
            self.cut |= {(a.node, b.node), (b.node, a.node)}

    def heal(self) -> None:
        self.cut.clear()

    # ------------------------------------------------------------ checks

    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.is_up]

    def agree(self) -> bool:
        """All running nodes hold equal records, and see each other alive."""
        up = self.up()
        hashes = {node.gossip.state_hash() for node in up}
        alive = all(a.state_of(b) is MemberState.ALIVE for a in up for b in up)
        return len(hashes) == 1 and alive
