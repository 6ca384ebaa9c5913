"""The joined core: members, records and verdicts of one node. Pure; the shell keeps one timer.

Facts come in as methods with `now` (seconds of any steady clock). After each call the caller
takes the effects and carries them out in order. After an own stall, `loop_lag` comes before
anything else.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import assert_never

from swarm.config import GossipConfig
from swarm.effects import CloseLink, Effect
from swarm.errors import LocalProtocolError
from swarm.gossip.exchange import Exchange
from swarm.gossip.hearsay import Hearsay
from swarm.gossip.heartbeat import AwakeTime
from swarm.gossip.judge import Judge
from swarm.gossip.membership import Entry, Member
from swarm.gossip.own import with_health
from swarm.gossip.pace import DynamicPace
from swarm.gossip.parts import build_parts
from swarm.gossip.records import DynamicRecord, StaticRecord
from swarm.gossip.sealing import Signer
from swarm.messages import (
    Digest,
    Heartbeat,
    Message,
    ProbeAnswer,
    ProbeRequest,
    Records,
    Summary,
    Suspicion,
    Verdict,
)
from swarm.terms import INCARNATION_LIMIT, Incarnation, NodeId

GossipMessage = (
    Heartbeat | Records | Summary | Digest | Suspicion | Verdict | ProbeRequest | ProbeAnswer
)
GOSSIP_MESSAGES: tuple[type[Message], ...] = (
    Heartbeat,
    Records,
    Summary,
    Digest,
    Suspicion,
    Verdict,
    ProbeRequest,
    ProbeAnswer,
)
"""What `Gossip.receive` takes."""


class Gossip:
    def __init__(
        self,
        me: NodeId,
        signer: Signer,
        config: GossipConfig,
        incarnation: Incarnation,
        rng: Random,
    ) -> None:
        """`incarnation`: already raised above the last one kept on disk, and saved."""
        if signer.node_id_of(signer.public_key) != me:
            raise LocalProtocolError("the signer's key is not this node's")
        self._parts = build_parts(me, signer, config, incarnation, rng)
        self._members = self._parts.membership
        self._own = self._parts.own
        self._judge = Judge(self._parts)
        self._hearsay = Hearsay(self._parts, self._judge)
        self._exchange = Exchange(self._parts, self._judge, self._hearsay)
        self._pace = DynamicPace(config, rng)
        self._awake = AwakeTime()
        self._in_use: frozenset[NodeId] = frozenset()
        self._seeds: tuple[NodeId, ...] = ()
        self._views: dict[NodeId, Member] = {}
        """Of the nodes that did not change since they were last looked at."""
        self._all: tuple[Member, ...] | None = None
        self._changed: set[NodeId] = set()
        self._due: float | None = None
        self._is_due_known = False
        """Whether `_due` still stands; what is heard and sent only puts deadlines off."""
        self._now = 0.0

    # ------------------------------------------------------------ facts

    def link_up(
        self, peer: NodeId, incarnation: Incarnation, now: float, *, is_dialled: bool = True
    ) -> None:
        """A link to `peer` is authenticated, or a better one has replaced it.

        `is_dialled`: by this side, which is then the one that closes it when it is surplus.
        Never raises for what the peer says of itself: the answer to nonsense is CloseLink.
        """
        t = self._at(now)
        if peer == self._own.me:
            raise LocalProtocolError("a link to this very node")
        if self._own.has_left:
            return
        if not 1 <= incarnation < INCARNATION_LIMIT:
            # Links should not let it through. Kept here, it would make every honest peer that
            # hears of it from us hang up on us.
            self._parts.spread.order(CloseLink(peer, "an incarnation out of range"))
            return
        self._judge.link_up(peer, incarnation, t)
        self._parts.neighbours.link_up(peer, t, is_dialled=is_dialled)
        self._exchange.link_up(peer, t)

    def link_down(self, peer: NodeId, orderly: bool, now: float) -> None:
        """The last link to `peer` is gone. `orderly`: closed on purpose after a Goodbye."""
        t = self._at(now)
        self._exchange.link_down(peer)
        is_released = self._judge.link_down(peer, orderly, t)
        self._parts.neighbours.link_down(peer, t, is_released=is_released)

    def dial_failed(self, peer: NodeId, now: float) -> None:
        """A dial to where `peer` should live has ended without a link to it."""
        self._at(now)
        self._judge.dial_failed(peer)

    def measured(self, peer: NodeId, rtt_s: float) -> None:
        """The round trip over the link to `peer`."""
        self._is_due_known = False
        self._parts.neighbours.measured(peer, rtt_s)

    def heard(self, peer: NodeId, now: float) -> None:
        """Any bytes came from the peer, on any lane: it lives.

        Cheap, and like `sent` it only puts deadlines off: the shell need not set its timer anew.
        """
        self._now = t = now - self._awake.stalled_s
        if self._judge.heard(peer, t):
            self._is_due_known = False

    def sent(self, peer: NodeId, now: float) -> None:
        """Something was sent to the peer on the control lane: no heartbeat is needed."""
        self._parts.heartbeats.sent(peer, now - self._awake.stalled_s)

    def receive(self, peer: NodeId, message: GossipMessage, now: float) -> None:
        """A message from a linked peer; one from a peer whose link is gone is ignored.

        Raises RemoteProtocolError for content that no honest peer sends: close the link.
        """
        self._now = t = now - self._awake.stalled_s
        if peer not in self._parts.heartbeats or self._own.has_left:
            return
        is_news = self._judge.heard(peer, t)
        if isinstance(message, Heartbeat):
            if self._exchange.heartbeat_received(peer, message, t) or is_news:
                self._is_due_known = False
            return
        self._is_due_known = False
        match message:
            case Records():
                self._exchange.records_received(peer, message, t)
            case Summary():
                self._exchange.summary_received(peer, message, t)
            case Digest():
                self._exchange.digest_received(peer, message, t)
            case Suspicion():
                self._hearsay.suspicion_received(peer, message, t)
            case Verdict():
                self._hearsay.verdict_received(peer, message, t)
            case ProbeRequest():
                self._judge.probe_request(peer, message, t)
            case ProbeAnswer():
                self._judge.probe_answer(peer, message, t)
            case _:
                assert_never(message)
        self._parts.rumours.tick(t)
        self._follow_incarnation()

    def publish_static(self, record: StaticRecord, now: float) -> None:
        """Say who this node is and what it serves; told to everybody at once if it is news."""
        t = self._at(now)
        if self._own.has_left or record == self._own.static:
            return
        self._own.write(record, t)
        self._members.touch(self._own.me)

    def publish_dynamic(self, record: DynamicRecord, now: float) -> None:
        """Offer the present figures. They are written when they moved, or age; never too often."""
        t = self._at(now)
        links = self._parts.neighbours.nearest(record.links)
        if links != record.links:
            record = replace(record, links=links)
        self._pace.offer(with_health(record, self._parts.health.score))
        self._write_dynamic(t)

    def loop_lag(self, lag_s: float, now: float) -> None:
        """The own loop ran `lag_s` late: that time is nobody's silence."""
        if lag_s <= 0:
            return
        self._awake.stalled(lag_s)
        t = self._at(now)
        self._parts.health.lagged(lag_s, t)
        if lag_s >= self._parts.config.heartbeat_interval_s:
            self._parts.heartbeats.hurry(t)

    def in_use(self, peers: frozenset[NodeId]) -> None:
        """Exactly these peers are used by sessions, or wanted: their links stay."""
        self._in_use = peers
        self._is_due_known = False
        self._parts.neighbours.keep(peers, self._seeds, self._now)

    def seeds(self, peers: tuple[NodeId, ...]) -> None:
        """These live where the operator told this node to look."""
        if peers == self._seeds:
            return
        self._seeds = peers
        self._is_due_known = False
        self._parts.neighbours.keep(self._in_use, peers, self._now)

    def probe(self, peer: NodeId, now: float) -> None:
        """Somebody doubts that `peer` lives: find out now, directly and through others."""
        self._judge.probe(peer, self._at(now))

    def leave(self, now: float) -> None:
        """Say goodbye to all. Afterwards nothing is sent or judged any more."""
        t = self._at(now)
        if self._own.has_left:
            return
        static = self._own.static
        if static and not static.leaving:
            self._own.write(replace(static, leaving=True), t)
        self._parts.spread.push(Verdict(self._own.me, self._own.incarnation, True), t)
        self._own.has_left = True
        self._parts.rumours.clear()
        self._members.departed(self._own.me, t)

    def tick(self, now: float) -> bool:
        """Do what is due. Call at `next_deadline`, or whenever. True when a peer fell silent."""
        t = self._at(now)
        if self._own.has_left:
            return False
        self._parts.health.tick(t)
        for peer in self._parts.heartbeats.due(t):
            self._parts.spread.send(peer, self._own.heartbeat(), t)
        has_silence = self._judge.tick(t)
        self._exchange.tick(t)
        for peer in self._parts.neighbours.tick(t):
            self._judge.close_surplus(peer)
        self._write_dynamic(t)
        self._parts.rumours.tick(t)
        return has_silence

    def next_deadline(self) -> float | None:
        """When `tick` has something to do next (real time; the past means now)."""
        if not self._is_due_known:
            self._due, self._is_due_known = self._find_deadline(), True
        return self._due

    def _find_deadline(self) -> float | None:
        if self._own.has_left:
            return None
        times = (
            self._parts.health.next_deadline(),
            self._parts.heartbeats.next_deadline(self._parts.health.factor),
            self._judge.next_deadline(self._now),
            self._exchange.next_deadline(),
            self._pace.next_deadline(self._members.living_count),
            self._parts.rumours.next_deadline(),
            self._parts.neighbours.next_deadline(),
        )
        due = math.inf
        for t in times:
            if t is not None and t < due:
                due = t
        return None if due == math.inf else self._awake.real(due)

    @property
    def is_quiet(self) -> bool:
        """Nothing waits to be taken, neither effects nor changes."""
        return not (self._changed or self._members.has_news or self._parts.spread.has_effects)

    def take_effects(self) -> list[Effect]:
        for entry in self._members.take_notes():
            self._parts.spread.tell(entry)
        return self._parts.spread.take()

    # ------------------------------------------------------------ views

    @property
    def incarnation(self) -> Incarnation:
        return self._own.incarnation

    @property
    def local_health(self) -> int:
        """0 is well, up to `local_health_max`."""
        return self._parts.health.score

    def silent(self) -> frozenset[NodeId]:
        """Linked peers from which nothing comes and which are being probed for it."""
        return self._judge.silent()

    def members(self) -> tuple[Member, ...]:
        """Everybody known, this node and the departed included, in the order of node ids."""
        self._note_changes()
        if self._all is None:
            self._all = tuple(self._view(entry) for entry in self._members.entries())
        return self._all

    def member(self, node: NodeId) -> Member | None:
        self._note_changes()
        entry = self._members.get(node)
        return self._view(entry) if entry else None

    def state_hash(self) -> bytes:
        """8 bytes over the records of all living members; equal for equal views."""
        return self._parts.store.state_hash()

    def take_changes(self) -> tuple[NodeId, ...]:
        """Nodes whose state, link or records changed since the last call (or are forgotten)."""
        self._note_changes()
        if not self._changed:
            return ()
        changed, self._changed = tuple(sorted(self._changed)), set()
        return changed

    # ------------------------------------------------------------ inner moves

    def _at(self, now: float) -> float:
        """The awake time of a fact that may bring deadlines nearer."""
        self._is_due_known = False
        self._now = self._awake.of(now)
        return self._now

    def _write_dynamic(self, t: float) -> None:
        record = None if self._own.has_left else self._pace.due(t, self._members.living_count)
        if record:
            self._own.write(record, t)
            self._members.touch(self._own.me)

    def _follow_incarnation(self) -> None:
        """Our own entry follows when a message made our incarnation rise."""
        entry = self._members.get(self._own.me)
        if entry and self._own.incarnation > entry.incarnation:
            self._members.risen(self._own.me, self._own.incarnation, self._now)

    def _note_changes(self) -> None:
        """Views of what has changed are made anew."""
        changed = self._members.take_changes()
        if changed:
            self._all = None
            self._changed.update(changed)
            for node in changed:
                self._views.pop(node, None)

    def _view(self, entry: Entry) -> Member:
        view = self._views.get(entry.node)
        if view is None:
            view = self._views[entry.node] = Member(
                node=entry.node,
                state=entry.state,
                incarnation=entry.incarnation,
                linked=entry.linked,
                static=self._parts.store.static(entry.node),
                dynamic=self._parts.store.dynamic(entry.node),
                wanted=self._parts.neighbours.wants(entry.node),
            )
        return view
