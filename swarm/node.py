"""All decisions of one node. No clock, no I/O, no randomness of its own.

`NodeCore` joins gossip, discovery, routing and hosting: every fact comes in by one method, what
is to be done comes out of `take_effects`. `node_io` is its shell.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from swarm.asks import Ask
from swarm.config import Config
from swarm.discovery.addresses import Source
from swarm.effects import Effect, SavePeers, Send, Tell, ToWorker
from swarm.errors import NoRoute, RemoteProtocolError
from swarm.fetch_facts import Fact
from swarm.gossip.gossip import Gossip, GossipMessage
from swarm.gossip.sealing import Signer
from swarm.hosting import Hosting
from swarm.messages import (
    Credit,
    FailureCode,
    Gap,
    Heartbeat,
    History,
    HopFailed,
    HopTimes,
    Lane,
    Message,
    MirrorTo,
    Open,
    Opened,
    Progress,
    Refused,
    Release,
    Resume,
    Step,
    Token,
)
from swarm.node_picture import About as About
from swarm.node_picture import CoverNews, Picture
from swarm.node_view import interest_in
from swarm.node_ways import Ways
from swarm.node_worker import WorkerCare
from swarm.notes import FieldValue, Level, note
from swarm.routing.cost import SwarmView
from swarm.routing.origins import Origins
from swarm.routing.planner import ViewPlanner
from swarm.routing.reach import Standing
from swarm.routing.relay import Relay
from swarm.routing.sentinel import Sentinel
from swarm.shard.kv_blocks import KvPools
from swarm.snapshot import ModelView, Snapshot
from swarm.stay_keeper import StayKeeper
from swarm.terms import (
    Address,
    Incarnation,
    LinkSpeed,
    MemberState,
    ModelId,
    NodeId,
    Order,
    SessionId,
    ShardState,
    Way,
)


class NodeCore:
    def __init__(
        self,
        about: About,
        config: Config,
        signer: Signer,
        incarnation: Incarnation,
        hosting: Hosting,
        rng: Random,
    ) -> None:
        self.about = about
        self._me = about.node
        self.config = config
        self._now = 0.0
        self._gossip = Gossip(about.node, signer, config.gossip, incarnation, rng)
        self._hosting = hosting
        self._pools = KvPools()
        self._picture = Picture(about, self._gossip, hosting, self._pools)
        self._ways = Ways(about.node, config, self._picture, rng)
        self._book, self._reach = self._ways.book, self._ways.reach
        self._relay = Relay(about.node, config.routing, self._pools, hosting.model_len_max)
        self._worker = WorkerCare(about.node, config, hosting, self._relay, self._picture.market)
        planner = ViewPlanner(config.routing, self.swarm_view)
        self._origins = Origins(about.node, config.routing, planner)
        self._sentinel = Sentinel(
            about.node, config.routing, self._origins, self._relay, self._picture.incarnation_of
        )
        self.stays = StayKeeper(about.node)
        self._parts = (
            hosting, self._worker, self._origins, self._relay, self._sentinel, self.stays
        )  # fmt: skip
        self._book.own_addresses(about.addresses)
        self._foreign: dict[str, str] = {}
        self._cover = CoverNews()
        self._in_use: frozenset[NodeId] = frozenset()
        self._out: list[Effect] = []
        self.stirred = True
        """Set by all that may leave effects or move a deadline closer; whoever looks clears it."""

    # ------------------------------------------------------------ life

    def start(
        self, seeds: tuple[Address, ...], remembered: tuple[Address, ...], now: float
    ) -> None:
        self._ways.start(seeds, remembered, now)
        self._hosting.start()
        self._publish(now)
        self._settle(now)

    def leave(self, now: float) -> None:
        if not self._picture.leaving:
            self._picture.leaving = True
            self._publish(now)
            self._tell("node.leaving", sessions=self._relay.session_count())
            self.hand_over(now)

    def hand_over(self, now: float) -> None:
        """Ask every origin to move its session away; only `leave` announces departure too."""
        for origin, failed in self._relay.farewells():
            self._deliver(origin, failed, now)
        self._settle(now)

    def depart(self, now: float) -> None:
        """The last word before the links close."""
        self._gossip.leave(now)
        self.stays.depart(now)
        self._settle(now)

    @property
    def is_idle(self) -> bool:
        """No session runs from or through here."""
        return not self._origins.session_count() and not self._relay.session_count()

    def addresses_changed(self, addresses: tuple[Address, ...], now: float) -> None:
        if addresses != self._picture.addresses:
            self._picture.addresses = addresses
            self._ways.moved(addresses, now)
            self._publish(now)
            self._settle(now)

    # ------------------------------------------------------------ links

    def link_up(
        self,
        peer: NodeId,
        incarnation: Incarnation,
        address: Address | None,
        now: float,
        way: Way,
    ) -> None:
        """`address`: where the peer was dialled; None when it dialled us."""
        self._picture.link_up(peer, way)
        self._gossip.link_up(peer, incarnation, now, is_dialled=address is not None)
        self._ways.link_up(peer, address, way, now)
        self._gossip.seeds(self._book.seed_nodes())
        self._out.append(SavePeers(self._book.remembered()))
        self._origins.joined(peer)
        for message in self._reach.link_up(peer):
            self._deliver(peer, message, now)
        self._relay.link_up(peer)
        self._settle(now)

    def link_down(self, peer: NodeId, cause: str, *, orderly: bool, now: float) -> None:
        self._ways.link_down(peer, orderly=orderly, now=now)
        self._picture.link_down(peer)
        self._sentinel.vigil.forget(peer)
        self._origins.forget(peer)
        self._gossip.link_down(peer, orderly, now)
        self._origins.node_failed(peer, FailureCode.LINK_DOWN, cause, now)
        self._relay.neighbour_failed(peer, FailureCode.LINK_DOWN, cause)
        self._settle(now)

    def link_measured(self, speed: LinkSpeed, now: float) -> None:
        if speed.peer in self._picture.links:
            self._picture.link_measured(speed)
            self._gossip.measured(speed.peer, speed.rtt_s)

    def heard(self, peer: NodeId, now: float) -> None:
        self._gossip.heard(peer, now)
        self._sentinel.heard(peer, now)

    def dial_failed(
        self, addresses: tuple[Address, ...], expected: NodeId | None, now: float
    ) -> None:
        if missed := self._ways.dial_failed(addresses, expected, now):
            self._gossip.dial_failed(missed, now)
        self._settle(now)

    def relay_failed(self, peer: NodeId, via: NodeId, now: float) -> None:
        if missed := self._ways.relay_failed(peer, via, now):
            self._gossip.dial_failed(missed, now)
        self._settle(now)

    def reached_self(self, addresses: tuple[Address, ...], now: float) -> None:
        """A dial to these ended at this very node."""
        self._ways.reached_self(addresses)
        self._settle(now)

    def sighted(self, node: NodeId, addresses: tuple[Address, ...], now: float) -> None:
        self._book.sighted(node, addresses, Source.MDNS, now)
        self._settle(now)

    def foreign_swarm(self, tag: str, name: str) -> None:
        if tag not in self._foreign:
            self._foreign[tag] = name
            self._tell("swarm.foreign", tag=tag, node_name=name)

    def receive(self, peer: NodeId, message: Message, now: float) -> None:
        """Raises RemoteProtocolError: the shell then closes the link."""
        if isinstance(message, GossipMessage):
            self._sentinel.heard(peer, now)
            self._gossip.receive(peer, message, now)
            if self._gossip.is_quiet:
                if not isinstance(message, Heartbeat):
                    self.stirred = True
                return  # most of what an idle node hears; a heartbeat only puts deadlines off
        else:
            self.heard(peer, now)
            self._dispatch(peer, message, now)
        self._settle(now)

    # ------------------------------------------------------------ worker

    def worker_message(self, message: Message, now: float, device: int = 0) -> None:
        if self._worker.message(message, now, device):
            self._publish_if_changed(now)
        self._settle(now)

    def worker_lost(self, reason: str, now: float, device: int = 0) -> None:
        self._worker.lost(reason, now, device)
        self._publish_if_changed(now)
        self._settle(now)

    def asked(self, ask: Ask, now: float) -> None:
        self._worker.asked(ask, now)
        self._settle(now)

    def fetch_fact(self, fact: Fact, now: float) -> None:
        self._worker.fetch_fact(fact, now)
        self._publish_if_changed(now)
        self._settle(now)

    # ------------------------------------------------------------ sessions

    def generate(self, session: SessionId, order: Order, now: float) -> None:
        """Raises NoRoute or CapacityError when the session cannot start now."""
        spec = self._picture.known_models().get(order.model_id)
        if spec is None:
            raise NoRoute(order.model_id, (), "no node of the swarm knows this model")
        self._now = now
        self._origins.start(session, order, spec, now)
        self._settle(now)

    def cancel(self, session: SessionId, now: float) -> None:
        self._origins.cancel(session, now)
        self._settle(now)

    # ------------------------------------------------------------ time

    def loop_lag(self, lag_s: float, now: float) -> None:
        self.stirred = True
        self._gossip.loop_lag(lag_s, now)
        if lag_s >= self.config.gossip.link_silence_max_s:
            self._book.network_changed(now)
        self._sentinel.vigil.stalled(lag_s, now)
        self._worker.stalled(lag_s)
        self._origins.stalled(lag_s)

    def tick(self, now: float) -> None:
        self._now = now
        if _is_due(self._gossip.next_deadline(), now) and self._gossip.tick(now):
            self._worker.somebody_silent(now)
        if _is_due(self._ways.next_deadline(), now):
            self._ways.tick(self._in_use, now)
        if _is_due(self._hosting.next_deadline(), now):
            self._hosting.tick(self._picture.rivals(), now)
        self._publish_if_changed(now)
        for part in (self._origins, self._relay, self.stays):
            if _is_due(part.next_deadline(), now):
                part.tick(now)
        if _is_due(self._reach.next_deadline(), now):
            self._reach.tick(self._picture.life_of, now)
        if self._worker.tick(now):
            self._publish_if_changed(now)
        if self._sentinel.penalties.take_expired(now):
            self._origins.view_changed(now)
        self._settle(now)
        if _is_due(self._sentinel.next_deadline(), now):
            for peer in self._sentinel.tick(self._picture.links, now):
                self._gossip.probe(peer, now)
            self._settle(now)

    def next_deadline(self) -> float | None:
        parts = (*self._parts, self._gossip, self._ways, self._reach)
        moments = [part.next_deadline() for part in parts]
        moments.append(self._sentinel.penalties.next_expiry())
        return min((moment for moment in moments if moment is not None), default=None)

    def take_effects(self) -> list[Effect]:
        effects, self._out = self._out, []
        return effects

    # ------------------------------------------------------------ views

    def models(self, now: float) -> tuple[ModelView, ...]:
        self._now = now
        return self._picture.models(self._cover_view(), self._origins.token_at, now)

    def manifests(self) -> dict[ModelId, tuple[str, str]]:
        return self._hosting.manifests()

    def holders(self, model_id: ModelId) -> tuple[NodeId, ...]:
        """Linked members that can hand out the text files of a model."""
        return self._picture.holders(model_id)

    def seek_holder(self, model_id: ModelId, now: float) -> bool:
        """Dial members that have the model; False when there is nobody to be dialled."""
        self._now = now
        strangers = self._picture.dialable_holders(model_id, self._reach, now)
        self._ways.want(strangers, now)
        self._settle(now)
        return bool(strangers)

    def snapshot(self, now: float) -> Snapshot:
        self._now = now
        whole = self._picture.snapshot(
            self._cover_view(), self._origins, self._relay, self._sentinel.penalties, now
        )
        return replace(whole, foreign_swarms=tuple(self._foreign))

    # ------------------------------------------------------------ inside: messages

    def _dispatch(self, peer: NodeId, message: Message, now: float) -> None:
        self._now = now
        match message:
            case Step():
                self._relay.step(peer, message, now)
            case Token() | Opened() | Refused() | HopFailed() | HopTimes():
                self._origins.receive(peer, message, now)
            case Credit() | Gap():
                self._origins.receive(peer, message, now)
                if isinstance(message, Credit):
                    self._relay.credit(peer, message)
                else:
                    self._relay.gap(peer, message)
            case Progress():
                self._origins.progress(peer, message, now)
                self._sentinel.penalties.worked(peer, message.steps_done, now)
            case Open():
                self._relay.open(peer, message, self._standing, now)
            case History() | Resume() | MirrorTo() | Release():
                self._relay.told(peer, message)
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} is not for a node")

    def _settle(self, now: float) -> None:
        """Gather effects of all parts; deliver what this node sends to itself; react to changes."""
        self._now = now
        self.stirred = True
        if changed := self._gossip.take_changes():
            self._members_changed(changed, now)
        while self._gather(now):
            pass
        if self._has_usage_moved():
            self._sentinel.watch(self._picture.links, now)
            self._keep_links()

    def _gather(self, now: float) -> bool:
        """One round; True when own messages were delivered and may have caused more."""
        gathered = self._gossip.take_effects()
        for part in self._parts:
            if part.has_effects:
                gathered += part.take_effects()
        own: list[Message] = []
        for effect in gathered:
            if isinstance(effect, Send):
                if effect.peer == self._me:
                    own.append(effect.message)
                else:
                    self._post(effect, now)
            elif isinstance(effect, ToWorker):
                self._out += self._worker.orders(effect, now)
            else:
                self._out.append(effect)
        for message in own:
            self._dispatch(self._me, message, now)
        return self._reach_out(now) or bool(own)

    def _has_usage_moved(self) -> bool:
        """Whether other peers than before may be in use, or be linked."""
        origins, relay, reach, picture = self._origins, self._relay, self._reach, self._picture
        if not (origins.changed or relay.changed or reach.changed or picture.changed):
            return False
        origins.changed = relay.changed = reach.changed = picture.changed = False
        return True

    def _reach_out(self, now: float) -> bool:
        """Dial whom sessions need; True when they were told of somebody out of reach."""
        lost = self._ways.reach_out(self._relay.take_wishes(), now)
        self._out += self._ways.take_effects()
        for peer in lost:
            self._origins.out_of_reach(peer, now)
        return bool(lost)

    def _keep_links(self) -> None:
        """Gossip closes links that it has too many of, but none that sessions use."""
        used = frozenset((*self._origins.in_use(), *self._relay.in_use()))
        self._reach.still_needed(used)
        in_use = (used | frozenset(self._reach.wanted())) - {self._me}
        if in_use != self._in_use:
            self._in_use = in_use
            self._gossip.in_use(in_use)

    def _deliver(self, peer: NodeId, message: Message, now: float) -> None:
        if peer == self._me:
            self._dispatch(self._me, message, now)
        else:
            self._post(Send(peer, message), now)

    def _post(self, send: Send, now: float) -> None:
        """To another node."""
        peer, message = send.peer, send.message
        if peer not in self._picture.links:
            self._reach.send(peer, message, now)
            return
        self._out.append(send)
        if message.LANE is Lane.CONTROL:
            self._sentinel.vigil.sent(peer, now)
            self._gossip.sent(peer, now)

    def _members_changed(self, changed: tuple[NodeId, ...], now: float) -> None:
        for node in changed:
            member = self._gossip.member(node)
            if member is None or node == self._me:
                continue
            gone = member.state in (MemberState.DEAD, MemberState.LEFT)
            self.stays.seen(node, is_here=not gone, now=now)
            if member.static is not None and member.static.addresses:
                self._book.sighted(node, member.static.addresses, Source.GOSSIP, now)
            self._book.stands(node, interest_in(member), now)
            if member.static is not None:
                is_serving = any(s.state is ShardState.SERVING for s in member.static.shards)
                self._sentinel.penalties.announced(node, is_serving=is_serving, now=now)
            if gone:
                detail = f"it is {member.state.value}"
                self._origins.node_failed(node, FailureCode.UNREACHABLE, detail, now)
                self._relay.neighbour_failed(node, FailureCode.UNREACHABLE, detail)
        is_moved = self._picture.has_cover_moved(changed) or self._sentinel.penalties.is_used(now)
        if is_moved and not self._picture.leaving:
            self._out += self._cover.news(self.models(now))
        self._worker.news(now)
        for node in self._picture.begun_anew(changed):
            self._origins.began_anew(node)
        self._origins.view_changed(now)

    # ------------------------------------------------------------ inside: records and views

    def _publish_if_changed(self, now: float) -> None:
        if self._hosting.changed:
            self._publish(now)
        elif self._picture.has_dynamic_moved():
            self._gossip.publish_dynamic(self._picture.dynamic(), now)

    def _publish(self, now: float) -> None:
        self._hosting.changed = False
        self._pools.serve(self._hosting.pools())
        self._relay.serve(self._hosting.served())
        self._gossip.publish_static(self._picture.static(), now)
        self._gossip.publish_dynamic(self._picture.dynamic(), now)

    def swarm_view(self, *, desperate: bool = False) -> SwarmView:
        view = self._picture.swarm(
            self._sentinel.penalties, self._reach, self._now, desperate=desperate
        )
        bad_wires = self._origins.bad_wires.at(self._now)
        rates = self.stays.rates(self._picture.notices(view.candidates), self._now)
        return replace(view, loads=self._origins.loads(), bad_wires=bad_wires, rates=rates)

    def _cover_view(self) -> SwarmView:
        return self._picture.cover(self._sentinel.penalties, self._reach, self._now)

    def _standing(self, node: NodeId) -> Standing:
        return self._picture.standing(node, self._reach, self._now)

    def _tell(self, event: str, level: Level = Level.INFO, **fields: FieldValue) -> None:
        self.stirred = True
        self._out.append(Tell(note(event, level, **fields)))


def _is_due(moment: float | None, now: float) -> bool:
    return moment is not None and now >= moment
