"""Many gossip cores with address books: links come and go by their own choice. Virtual time.

Unlike in `gossip_world`, nobody links the nodes but themselves, messages are counted in bytes and
handed over as they are (the wire has its own tests), and loss is what it is on a stream: delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from random import Random

from gossip_world import Node, World, node_id_of, static_record, verify

from swarm.config import DiscoveryConfig, GossipConfig
from swarm.discovery.addresses import AddressBook, Source
from swarm.effects import CloseLink, Dial, SaveIncarnation, Send, Tell
from swarm.errors import RemoteProtocolError
from swarm.gossip.gossip import Gossip
from swarm.gossip.records import DynamicRecord
from swarm.gossip.sealing import Signer, checked_content_of
from swarm.messages import Message, encode
from swarm.node_view import interest_in
from swarm.terms import Address, Incarnation, LinkSpeed, MemberState, ModelId, NodeId, ShardSpeed

SEALING_BYTES = 20
"""Length and tag of a frame."""
RETRANSMIT_S = 0.2
DIAL_TIMEOUT_S = 3.0
MEASURED_AFTER_S = 0.2
PUBLISH_S = 1.0

known_id = cache(node_id_of)
known_verify = lru_cache(1 << 16)(verify)
known_content = lru_cache(1 << 16)(checked_content_of)


def shared(signer: Signer) -> Signer:
    """Each signature is checked once for the whole world: what is measured is not Ed25519.

    So are bodies decoded once: a thousand nodes hold a million records.
    """
    return replace(signer, verify=known_verify, node_id_of=known_id, read=known_content)


class CrowdNode(Node):
    """A node that dials for itself, from an address book."""

    world: Crowd
    slept_s = 0.0
    is_asleep = False

    def start(self, incarnation: int | None = None) -> None:
        self.saved = self.saved if incarnation is None else incarnation
        world = self.world
        rng = Random(f"{world.seed} {self.number} {self.saved}")
        self.signer = shared(self.signer)
        config = world.config
        self.gossip = Gossip(self.node, self.signer, config, Incarnation(self.saved), rng)
        self.book = AddressBook(self.node, world.discovery, rng)
        self.book.own_addresses((address_of(self.number),))
        self.linked: dict[NodeId, LinkSpeed] = {}
        self.sent_bytes = 0
        self.dials = 0
        self.armed_at: float | None = None
        self.published_at = 0.0
        self.is_up, self.is_killed = True, False
        for seed in world.seeds_of(self.number):
            self.book.sighted(None, (address_of(seed),), Source.SEED, world.now)
        self.gossip.publish_static(self.static(), world.now)
        self.publish()
        self.settle()

    def clock(self) -> float:
        """Stands still while the machine sleeps, as CLOCK_MONOTONIC does."""
        return self.world.now - self.slept_s

    def do(self, action: Callable[..., object], *arguments: object) -> None:
        if not self.is_up or self.is_asleep:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self.do, action, *arguments)
            return
        action(*arguments, self.clock())
        self.settle()

    def static(self, **changes: object):  # type: ignore[no-untyped-def]
        return static_record(self.number, addresses=(address_of(self.number),), **changes)

    def publish(self) -> None:
        self.published_at = self.clock()
        links = tuple(speed for _, speed in sorted(self.linked.items()))
        speed = ShardSpeed(ModelId("m" * 32), 0.001, 0.002, 0.0001, 0.003, 0.0, 1 << 20)
        self.gossip.publish_dynamic(DynamicRecord((speed,), links, 0), self.clock())

    def settle(self) -> None:
        now = self.clock()
        for node in self.gossip.take_changes():
            member = self.gossip.member(node)
            if member is None or node == self.node:
                continue
            self.states.append((self.world.now, node, member.state))
            if member.static is not None and member.static.addresses:
                self.book.sighted(node, member.static.addresses, Source.GOSSIP, now)
            self.book.stands(node, interest_in(member), now)
        for effect in [*self.gossip.take_effects(), *self.book.tick(now)]:
            match effect:
                case Send():
                    self.world.carry(self, effect)
                case Dial():
                    self.dials += 1
                    self.world.dial(self, effect)
                case CloseLink():
                    self.world.hang_up(self, effect.peer)
                case SaveIncarnation():
                    self.saved = effect.incarnation
                case Tell():
                    self.notes.append(effect.note.event)
        self._arm()

    def _arm(self) -> None:
        times = (self.gossip.next_deadline(), self.book.next_deadline())
        due = min((t for t in times if t is not None), default=None)
        if due is None or (self.armed_at is not None and self.armed_at <= due):
            return
        self.armed_at = due
        self.timer += 1
        self.world.at(max(due + self.slept_s, self.world.now + 1e-6), self._ring, self.timer)

    def _ring(self, timer: int) -> None:
        if not self.is_up or timer != self.timer or self.is_asleep:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._ring, timer)
            return
        self.armed_at = None
        self.gossip.tick(self.clock())
        if self.clock() >= self.published_at + PUBLISH_S:
            self.publish()
        self.settle()

    # ------------------------------------------------------------ links

    def link_up(self, peer: NodeId, incarnation: int, address: Address | None, now: float) -> None:
        self.gossip.link_up(peer, Incarnation(incarnation), now, is_dialled=address is not None)
        self.book.link_up(peer, address, now)
        self.gossip.seeds(self.book.seed_nodes())

    def link_down(self, peer: NodeId, orderly: bool, now: float) -> None:
        self.linked.pop(peer, None)
        self.gossip.link_down(peer, orderly, now)
        self.book.link_down(peer, now)

    def dial_failed(self, dial: Dial, now: float) -> None:
        self.book.dial_failed(dial, now)
        if dial.expected is not None:
            self.gossip.dial_failed(dial.expected, now)

    def book_hears(self, other: CrowdNode, now: float) -> None:
        """Somebody is announced on the local network."""
        self.book.sighted(None, (address_of(other.number),), Source.MDNS, now)

    def measured(self, peer: NodeId, now: float) -> None:
        if frozenset((self.node, peer)) in self.world.links:
            rtt_s = 2 * self.world.distance_s(self.node, peer)
            self.linked[peer] = LinkSpeed(peer, rtt_s, 1e8)
            self.gossip.measured(peer, rtt_s)


def address_of(number: int) -> Address:
    return Address(f"10.0.{number >> 8}.{number & 255}", 7000)


class Crowd(World):
    """`stall`: the part of messages that are lost once, which delays them and all behind them."""

    nodes: list[CrowdNode]  # type: ignore[assignment]
    by_id: dict[NodeId, CrowdNode]  # type: ignore[assignment]

    def __init__(
        self,
        count: int,
        seed: int = 1,
        *,
        config: GossipConfig | None = None,
        stall: float = 0.0,
        islands: int = 1,
        start_s: float = 2.0,
        acquainted: bool = False,
    ) -> None:
        """`acquainted`: all hold each other's records from the start; only links are to be made."""
        super().__init__(0, seed, config=config, mesh=False)
        self.discovery = DiscoveryConfig()
        self.stall = stall
        self.islands = islands
        self.acquainted = acquainted
        self._sizes: deque[tuple[Message, int]] = deque(maxlen=8)
        self.sides: dict[NodeId, int] = {}
        """The side of a partition that nodes are on; 0 where nobody said."""
        for number in range(count):
            self.at(self.now + start_s * self.rng.random(), self._add, number)
        while len(self.nodes) < count:
            self.run(0.1)
        self.nodes.sort(key=lambda node: node.number)
        if acquainted:
            self._acquaint()

    def _add(self, number: int) -> None:
        node = CrowdNode.__new__(CrowdNode)
        self.nodes.append(node)
        node.__init__(self, number)  # type: ignore[misc]
        self.by_id[node.node] = node

    def _acquaint(self) -> None:
        told = {node.node: node.gossip._own.records() for node in self.nodes}
        for node in self.nodes:
            for other, records in told.items():
                if other == node.node:
                    continue
                node.gossip._judge.risen(other, Incarnation(1), self.now)
                for record in records:
                    node.gossip._parts.store.put(other, record, known_content(record))
            node.gossip.tick(self.now)
            node.settle()

    def seeds_of(self, number: int) -> list[int]:
        """Every node knows one or two of its island that came before it in number."""
        if self.acquainted:
            return []
        island = [n for n in range(number) if n % self.islands == number % self.islands]
        pick = Random(f"{self.seed} seeds {number}")
        return [pick.choice(island) for _ in range(2)] if island else []

    def distance_s(self, one: NodeId, other: NodeId) -> float:
        return self.delay_s

    # ------------------------------------------------------------ network

    def dial(self, node: Node, effect: Dial) -> None:
        assert isinstance(node, CrowdNode)
        target = self._at_address(effect)
        if target is None or target.is_killed:
            self.at(self.now + 2 * self.delay_s, self._refused, node, effect)
        elif not target.is_up or self._is_cut(node, target) or self._is_cut(target, node):
            self.at(self.now + DIAL_TIMEOUT_S, self._refused, node, effect)
        else:
            self.at(self.now + 4 * self.delay_s, self._answered, node, target, effect)

    def _at_address(self, effect: Dial) -> CrowdNode | None:
        for node in self.nodes:
            if address_of(node.number) in effect.addresses:
                return node
        return None

    def _refused(self, node: CrowdNode, effect: Dial) -> None:
        node.do(node.dial_failed, effect)

    def _answered(self, node: CrowdNode, target: CrowdNode, effect: Dial) -> None:
        pair = frozenset((node.node, target.node))
        if not node.is_up or node is target:
            return
        if not target.is_up or target.paused_until > self.now or pair in self.links:
            self._refused(node, effect)
            return
        self.links[pair] = next(self._counter)
        node.do(node.link_up, target.node, target.gossip.incarnation, address_of(target.number))
        target.do(target.link_up, node.node, node.gossip.incarnation, None)
        for here, there in ((node, target), (target, node)):
            self.at(self.now + MEASURED_AFTER_S, self._measure, here, there.node)

    def _measure(self, node: CrowdNode, peer: NodeId) -> None:
        node.do(node.measured, peer)

    def hang_up(self, node: CrowdNode, peer: NodeId) -> None:
        """With a Goodbye, so that both sides see an orderly end."""
        self.close(node.node, peer, orderly=True)

    def _down(self, node: Node, peer: NodeId, orderly: bool) -> None:
        assert isinstance(node, CrowdNode)
        if frozenset((node.node, peer)) not in self.links:
            node.do(node.link_down, peer, orderly)

    def carry(self, sender: Node, effect: Send) -> None:
        assert isinstance(sender, CrowdNode)
        link = self.links.get(frozenset((sender.node, effect.peer)))
        if link is None:
            if not self._is_cut(sender, self.by_id[effect.peer]):
                self.at(self.now + 2 * self.delay_s, self._down, sender, effect.peer, False)
            return
        sender.sent_bytes += self._size(effect.message)
        receiver = self.by_id[effect.peer]
        if self._is_cut(sender, receiver):
            return
        key = (sender.node, receiver.node)
        arrival = self.now + self.distance_s(*key) * (0.75 + 0.5 * self.rng.random())
        if self.stall and self.rng.random() < self.stall:
            arrival += RETRANSMIT_S * (1 + self.rng.random())
        arrival = max(arrival, self._last_arrival.get(key, 0.0))
        self._last_arrival[key] = arrival
        self.at(arrival, self._handed, sender.node, receiver, effect.message, link)

    def _handed(self, sender: NodeId, receiver: CrowdNode, message: Message, link: int) -> None:
        if not receiver.is_up or self.links.get(frozenset((sender, receiver.node))) != link:
            return
        if receiver.is_asleep:
            return
        if receiver.paused_until > self.now:
            self.at(receiver.paused_until, self._handed, sender, receiver, message, link)
            return
        try:
            receiver.gossip.receive(sender, message, receiver.clock())  # type: ignore[arg-type]
        except RemoteProtocolError:
            self.hang_up(receiver, sender)
        receiver.settle()

    def _size(self, message: Message) -> int:
        """Of the sealed frame. A message that goes to several peers is encoded once."""
        for known, size in self._sizes:
            if known is message:
                return size
        frame = sum(len(part) for part in encode(message))
        assert frame <= 64 * 1024
        self._sizes.append((message, frame + SEALING_BYTES))
        return frame + SEALING_BYTES

    def _is_cut(self, sender: Node, receiver: Node) -> bool:
        sides = self.sides
        if sides and sides.get(sender.node, 0) != sides.get(receiver.node, 0):
            return True
        return bool(self.cut) and (sender.node, receiver.node) in self.cut

    # ------------------------------------------------------------ faults

    def kill(self, node: Node) -> None:
        node.is_up, node.is_killed = False, True
        for peer in self.peers_of(node.node):
            self.close(node.node, peer, orderly=False)

    def restart(self, node: Node, incarnation: int) -> None:
        for peer in self.peers_of(node.node):
            self.close(node.node, peer, orderly=False)
        node.start(incarnation)

    def leave(self, node: CrowdNode) -> None:
        """In good order: it says so, then closes its links and goes."""
        node.do(node.gossip.leave)
        self.at(self.now + 0.2, self._gone, node)

    def _gone(self, node: CrowdNode) -> None:
        for peer in self.peers_of(node.node):
            self.close(node.node, peer, orderly=True)
        self.at(self.now + 1e-6, self._ended, node)

    def _ended(self, node: CrowdNode) -> None:
        node.is_up, node.is_killed = False, True

    def sleep(self, node: CrowdNode, seconds: float) -> None:
        """The lid is closed: its clock stands still, and the world goes on without it.

        What it still holds for links when it wakes is reset as soon as it sends on them.
        """
        node.is_asleep = True
        self.sides[node.node] = 1_000_000 + node.number
        self.run(seconds)
        del self.sides[node.node]
        node.is_asleep, node.armed_at = False, None
        node.slept_s += seconds
        node.settle()

    def partition_in(self, sides: Iterable[Iterable[CrowdNode]]) -> None:
        self.sides = {n.node: i for i, side in enumerate(sides) for n in side}

    def heal(self) -> None:
        self.cut.clear()
        self.sides.clear()

    # ------------------------------------------------------------ checks

    def peers_of(self, node: NodeId) -> list[NodeId]:
        pairs = [pair for pair in self.links if node in pair]
        return sorted(next(iter(pair - {node})) for pair in pairs)

    def degrees(self) -> dict[NodeId, int]:
        counts = dict.fromkeys((node.node for node in self.up()), 0)
        for pair in self.links:
            for end in pair:
                if end in counts:
                    counts[end] += 1
        return counts

    def parts(self) -> int:
        """Into how many pieces the graph of links between running nodes falls."""
        up = {node.node for node in self.up()}
        around: dict[NodeId, list[NodeId]] = {node: [] for node in up}
        for pair in self.links:
            one, other = sorted(pair)
            if one in up and other in up:
                around[one].append(other)
                around[other].append(one)
        seen: set[NodeId] = set()
        count = 0
        for start in sorted(up):
            if start in seen:
                continue
            count += 1
            todo = [start]
            seen.add(start)
            while todo:
                fresh = [n for n in around[todo.pop()] if n not in seen]
                seen.update(fresh)
                todo += fresh
        return count

    def sees(self, state: MemberState, subject: CrowdNode) -> bool:
        """Whether every other running node holds it for that now."""
        return all(node.state_of(subject) is state for node in self.up() if node is not subject)

    def knows_all(self) -> bool:
        up = self.up()
        return all(len(node.gossip.members()) >= len(up) for node in up)

    def ever(self, state: MemberState, subject: CrowdNode) -> int:
        """How many nodes have ever seen it in that state."""
        return sum(node.ever(subject, state) for node in self.nodes)

    def rates(self, seconds: float) -> list[float]:
        """Bytes a second that each running node sends over the time to come, in order of size."""
        before = {node.node: node.sent_bytes for node in self.up()}
        self.run(seconds)
        spent = [node.sent_bytes - before[node.node] for node in self.up() if node.node in before]
        return sorted(count / seconds for count in spent)


def percentile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
