"""The hop's side of sessions: accept steps in order, run them, keep and pass on the rows.

    OPENED ──resume──► RUNNING          a higher epoch's `Open` leads back to OPENED;
       ▲                  │             release, a lost origin or a lost worker ends the session
       └──── open ────────┘

A hop knows the KV length it holds. Rows it has are trimmed, rows beyond it are refused with
`Gap`, older epochs are dropped, and only an explicit `Resume(kv_length=0)`, or an `Open` of other
work, starts again from nothing. Epochs are about routing only: the rows of a position never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swarm.config import RoutingConfig
from swarm.effects import Effect, Tell, ToWorker
from swarm.errors import KvExhausted, RemoteProtocolError
from swarm.messages import (
    Credit,
    End,
    FailureCode,
    Gap,
    History,
    HopFailed,
    MirrorTo,
    Open,
    Ran,
    RefusalCode,
    Refused,
    Release,
    Resume,
    RunFailed,
    Step,
    Token,
)
from swarm.notes import Level, note
from swarm.routing.hop_session import HopPhase, HopSession, evicted
from swarm.routing.outbox import Feed, Rows, needs_credit, step_of
from swarm.routing.reach import Standing
from swarm.routing.refusals import full, is_same_shard, no_link, old_epoch, refused, unplaceable
from swarm.routing.relay_mirrors import RelayMirrors
from swarm.routing.relay_rules import (
    check_open,
    check_release,
    check_resume,
    check_step,
    is_same_work,
    rows_of,
    step_problem,
    unanswered_max,
)
from swarm.routing.rooms import Pools, Room, a_standby, first_to_go
from swarm.terms import ModelId, NodeId, SampledToken, SessionId, ShardInfo, short


class Relay(RelayMirrors):
    """All sessions that run through this node's shards."""

    def __init__(
        self, me: NodeId, config: RoutingConfig, pools: Pools, model_len_max: int = 0
    ) -> None:
        """`model_len_max`: positions of the longest sequence its owner wants served; 0: any."""
        super().__init__(me, config)
        self._pools = pools
        self._positions_max = min(model_len_max or config.positions_max, config.positions_max)
        self._shards: dict[ModelId, ShardInfo] = {}
        self._by_worker_id: dict[SessionId, HopSession] = {}
        self._begun = 0
        self.is_leaving = False
        self._parting: set[ModelId] = set()
        self._wishes: list[NodeId] = []
        self.changed = False
        """Set when other peers than before may be in use; whoever looks at it clears it."""
        self.steps_done = 0
        """Results of the worker so far, for whatever session."""

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def take_wishes(self) -> list[NodeId]:
        """Neighbours to which sessions need a link now."""
        if not self._wishes:
            return []
        wishes, self._wishes = self._wishes, []
        return wishes

    # ------------------------------------------------------------ shards

    def serve(self, shards: Iterable[ShardInfo]) -> None:
        """These shards, and no others, are ready to run; sessions on others must go elsewhere."""
        serving = {shard.model_id: shard for shard in shards}
        for model_id, known in list(self._shards.items()):
            shard = serving.get(model_id)
            if shard is None or not is_same_shard(known, shard):
                self.withdraw(model_id, FailureCode.WORKER_LOST, "the shard is no longer served")
        self._shards = serving

    def withdraw(self, model_id: ModelId, code: FailureCode, detail: str) -> None:
        """The shard is gone with its worker: every session on it must go elsewhere."""
        self._shards.pop(model_id, None)
        self._parting.discard(model_id)
        for s in list(self._sessions.values()):
            if s.order.model_id == model_id:
                self._fail(s, self._me, code, detail)
                self._drop(s)

    def farewells(self, model_id: ModelId | None = None) -> list[tuple[NodeId, HopFailed]]:
        """This node, or its shard of a model, is about to go: what to tell the origins.

        New sessions are refused from now on; those that are here may still be opened again.
        """
        self.is_leaving = self.is_leaving or model_id is None
        self._parting |= {model_id} if model_id else set()
        return [
            (s.origin, HopFailed(s.session, s.epoch, self._me, FailureCode.LEAVING, "it leaves"))
            for s in self._sessions.values()
            if model_id in (None, s.order.model_id)
        ]

    def stays(self, model_id: ModelId) -> None:
        """The shard does not go after all."""
        self._parting.discard(model_id)

    # ------------------------------------------------------------ from the origin

    def open(
        self, peer: NodeId, order: Open, standing: Callable[[NodeId], Standing], now: float
    ) -> None:
        """Raises RemoteProtocolError for an order that no honest origin gives."""
        check_open(order, peer, self._me)
        known = self._sessions.get((peer, order.session))
        shard = self._shards.get(order.model_id)
        refusal = (
            old_epoch(order, known)
            or unplaceable(order, shard, standing, self._positions_max)
            or (self._full(order, peer) if known is None else None)
        )
        if refusal is not None:
            self._send(peer, refusal)
            return
        assert shard is not None
        if known is None:
            s = self._begin(order, peer, shard, now)
        else:
            s = self._reopen(known, order, shard, now)
        if s is not None:
            self._answer(s, standing, now)

    def told(self, peer: NodeId, message: History | Resume | MirrorTo | Release) -> None:
        """What an origin orders of a session that is open."""
        match message:
            case History():
                if (s := self._sessions.get((peer, message.session))) is not None:
                    s.hear(message)
            case Resume():
                self.resume(peer, message)
            case MirrorTo():
                self.mirror_to(peer, message)
            case Release():
                self.release(peer, message)

    def resume(self, peer: NodeId, message: Resume) -> None:
        s = self._sessions.get((peer, message.session))
        if s is None or message.epoch > s.epoch:
            self._send(peer, Gap(message.session, message.epoch, message.kv_length, 0))
            return
        if message.epoch < s.epoch or s.phase is not HopPhase.OPENED:
            return
        check_resume(message, s.order)
        if not s.can_start(message.kv_length):
            self._send(peer, self._gap_of(s, message.kv_length))
            return
        if not s.can_deliver(message.kv_length, message.send_from):
            self._send(peer, self._gap_of(s, message.send_from))
            return
        if not self._is_begun(s, message.kv_length):
            return
        self.changed = True
        self._effects += map(ToWorker, s.recalls())
        held = s.resume(message.send_from)
        for position in sorted(s.tokens):
            self._send_token(s, s.tokens[position])
        self._pump(s)
        self._keep_outboxes_small()  # its origin counts on nothing older any more
        for step in held:
            self._accept(s, step)

    def release(self, peer: NodeId, message: Release) -> None:
        s = self._sessions.get((peer, message.session))
        if s is not None and message.epoch >= s.epoch:
            check_release(message, s.order)
            s.room.leave(message.prefix)
            self._drop(s)

    def tick(self, now: float) -> None:
        """Free what was opened and never resumed: its origin has gone another way."""
        for s in list(self._sessions.values()):
            due = s.next_deadline(self._config.opened_max_s)
            if due is None or now < due:
                continue
            if s.unlinked:
                self._unlinked(s, now)
            else:
                self._tell("hop.expired", s, origin=short(s.origin))
                self._drop(s)

    # ------------------------------------------------------------ from neighbours

    def step(self, peer: NodeId, step: Step, now: float) -> None:
        """Raises RemoteProtocolError for a step that `peer` alone must answer for."""
        check_step(step)
        s = self._sessions.get((step.origin or peer, step.session))
        if s is not None and step.epoch < s.epoch:
            return
        if s is None or step.epoch > s.epoch or peer != s.order.previous:
            gap = Gap(step.session, step.epoch, step.position, 0, step.origin)
            self._send(peer, gap)
            return
        problem = step_problem(step, s.order, s.shard.row_bytes)
        if s.under_way >= unanswered_max(self._config.credit_steps):
            problem = problem or f"{s.under_way} steps are under way without credit"
        if problem is not None:
            self._refuse_step(s, problem)
            return
        s.used_at = now
        if s.phase is HopPhase.RUNNING:
            self._accept(s, step)
        else:
            s.held_steps.append(step)

    def credit(self, peer: NodeId, message: Credit) -> None:
        s = self._sessions.get((message.origin or self._me, message.session))
        if s is not None and message.epoch == s.epoch and peer == s.order.next:
            s.feed.acknowledged(message.kv_length)
            self._pump_link(peer)
        elif s is not None and message.epoch == s.epoch:
            self._mirror_acknowledged(s, peer, message.kv_length)

    def gap(self, peer: NodeId, message: Gap) -> None:
        """The next hop does not hold what we send to it: the origin must sort that out."""
        s = self._sessions.get((message.origin or self._me, message.session))
        if s is not None and message.epoch == s.epoch and peer == s.order.next:
            self._fail(s, peer, FailureCode.UNREACHABLE, "the next hop lost the session")
        elif s is not None and message.epoch == s.epoch and s.is_mirrored_to(peer):
            self._end_mirror(s, "it lost the session")

    def neighbour_failed(self, peer: NodeId, code: FailureCode, detail: str) -> None:
        """The link to a peer broke, went silent, or membership buried it.

        Sessions keep their KV for the next epoch; those of a lost origin end at once, and silence
        alone does not make an origin lost.
        """
        for s in list(self._sessions.values()):
            if s.origin == peer:
                if code in (FailureCode.LINK_DOWN, FailureCode.UNREACHABLE):
                    self._drop(s)
            elif peer in s.neighbours:
                self._fail(s, peer, code, detail)
            elif s.is_mirrored_to(peer):
                s.mirror = None

    # ------------------------------------------------------------ from the worker

    def ran(self, result: Ran, now: float) -> None:
        self.steps_done += 1
        s = self._by_worker_id.get(result.session)
        if s is None or result.generation != s.generation:
            return
        s.produced = result.position + result.count
        s.room.ran(min(s.produced, s.accepted), s.order.prompt_count)
        for token in result.tokens:
            s.tokens[token.position] = token
            if s.phase is HopPhase.RUNNING:
                self._send_token(s, token)
        if not s.order.head:
            rows = Rows(result.position, result.count, result.kind, result.row_type, result.payload)
            s.outbox.append(rows)
            self._pump(s)
            self._pump_mirror(s)
            self._keep_outboxes_small()
        if s.answer():
            self._credit(s)
        if s.timed(result, now):
            self._send(s.origin, s.times())

    def run_failed(self, result: RunFailed) -> None:
        s = self._by_worker_id.get(result.session)
        if s is not None and result.generation == s.generation:
            self._fail(s, self._me, result.code, result.detail)
            s.room.spoil()
            self._drop(s)

    # ------------------------------------------------------------ opening

    def _full(self, order: Open, origin: NodeId) -> Refused | None:
        share = sum(s.origin == origin for s in self._sessions.values())
        is_leaving = self.is_leaving or order.model_id in self._parting
        return full(order, len(self._sessions), share, self._config, is_leaving=is_leaving)

    def _begin(
        self, order: Open, origin: NodeId, shard: ShardInfo, now: float
    ) -> HopSession | None:
        self._begun += 1
        worker_id = SessionId(f"{self._begun:016x}")
        feed = Feed(self._config.credit_steps)
        blocks = self._pools.pool(order.model_id)
        assert blocks is not None, "every shard that is served has a pool"
        room = Room(worker_id, origin, blocks, self._config.kv_growth_tokens)
        s = HopSession(order, origin, shard, worker_id, feed, room, opened_at=now, used_at=now)
        if not self._reserve(s, order):
            return None
        self._sessions[s.key] = self._by_worker_id[worker_id] = s
        self.changed = True
        self._effects.append(ToWorker(s.begin()))
        return s

    def _reopen(
        self, s: HopSession, order: Open, shard: ShardInfo, now: float
    ) -> HopSession | None:
        """Under a new route the same work goes on; other work starts from nothing."""
        is_same = is_same_work(s.order, order) and (
            s.accepted > 0 or s.order.prefix == order.prefix
        )
        if not is_same and not self._reserve(s, order):
            return None
        s.reopen(order, shard, now)
        self.changed = True
        if not is_same:
            self._effects.append(ToWorker(s.forget()))
        return s

    def _is_begun(self, s: HopSession, kv_length: int) -> bool:
        """Start with so many positions. False: the session had to go."""
        if kv_length == s.accepted and not s.room.offered:
            return True
        try:
            if kv_length != s.accepted:
                self._effects.append(ToWorker(s.begin_again(kv_length)))
            else:
                s.room.begin(kv_length)
        except KvExhausted as error:
            self._preempt(s, str(error))
            return False
        return True

    def _answer(self, s: HopSession, standing: Callable[[NodeId], Standing], now: float) -> None:
        """`Opened`, as soon as whom it needs is linked."""
        unlinked = [peer for peer in s.needs if standing(peer) is not Standing.LINKED]
        if not unlinked:
            self._send(s.origin, s.opened())
            return
        config = self._config
        s.wait_for(unlinked, now + config.hop_link_wait_s, now + config.dial_back_s)
        if s.order.next in unlinked:
            self._wishes.append(s.order.next)

    def link_up(self, peer: NodeId) -> None:
        for s in self._sessions.values():
            if peer in s.unlinked:
                s.unlinked.remove(peer)
                if not s.unlinked:
                    self._send(s.origin, s.opened())

    def _unlinked(self, s: HopSession, now: float) -> None:
        """A neighbour did not come: dial it from this side, or say that the pair is none."""
        if now < s.link_by:
            s.dial_back_at = None
            self._wishes.append(s.order.previous)
            return
        self._send(s.origin, no_link(s.order, s.unlinked[0], waited=True))
        s.unlinked.clear()
        if not s.accepted:
            self._drop(s)

    def _reserve(self, s: HopSession, order: Open) -> bool:
        """False: there is no room, the origin was told, and nothing has changed."""
        while True:
            try:
                s.room.reserve(order)
            except KvExhausted as error:
                spare = None if order.standby else a_standby(self._sessions.values(), s.room.blocks)
                if spare is None:
                    self._send(s.origin, refused(order, RefusalCode.KV_EXHAUSTED, str(error)))
                    return False
                self._preempt(spare, str(error))
            else:
                return True

    # ------------------------------------------------------------ rows in

    def _accept(self, s: HopSession, step: Step) -> None:
        rows = rows_of(step)
        if s.worker_id not in self._by_worker_id:
            return  # it had to make room for another one while its steps waited
        if rows.position > s.accepted:
            self._send(s.origin, self._gap_of(s, rows.position))
            return
        if rows.stop > s.produced:
            s.await_answer(rows)
        elif needs_credit(rows):
            self._credit(s)
        if rows.stop > s.accepted:
            rows = rows.from_position(s.accepted)
            blocks = self._grow(s, rows.stop)
            if blocks is not None:
                s.accepted = rows.stop
                s.clock.arrived(s.used_at)
                self._effects.append(ToWorker(s.run(rows, blocks)))

    def _grow(self, s: HopSession, stop: int) -> bytes | None:
        """Blocks for rows below `stop`. Where none are left, whoever came last goes elsewhere;
        None: that is this one."""
        while True:
            try:
                return s.room.grow(stop)
            except KvExhausted as error:
                last = first_to_go(self._sessions.values(), s.room.blocks)
                self._preempt(last, str(error))
                if last is s:
                    return None

    def _preempt(self, s: HopSession, detail: str) -> None:
        self._fail(s, self._me, FailureCode.PREEMPTED, detail)
        self._drop(s)

    def _refuse_step(self, s: HopSession, problem: str) -> None:
        """The origin answers for what it feeds; other feeders send what they were told to."""
        if s.order.previous == s.origin:
            raise RemoteProtocolError(f"step of a session: {problem}")
        self._fail(s, s.order.previous, FailureCode.STEP_FAILED, problem)
        self._drop(s)

    def _credit(self, s: HopSession) -> None:
        if s.phase is HopPhase.RUNNING:
            credit = Credit(s.session, s.epoch, s.produced, s.origin)
            self._send(s.order.previous, credit)

    def _gap_of(self, s: HopSession, position: int) -> Gap:
        return Gap(s.session, s.epoch, position, s.accepted, s.origin)

    # ------------------------------------------------------------ rows out

    def _pump(self, s: HopSession) -> None:
        if s.phase is not HopPhase.RUNNING or s.order.head:
            return
        in_flight = sum(
            other.feed.in_flight_bytes
            for other in self._sessions.values()
            if other.order.next == s.order.next
        )
        budget = self._config.link_inflight_bytes_max - in_flight
        began_at = s.feed.next_position
        while rows := s.feed.take(s.outbox, budget):
            budget -= len(rows.payload)
            self._send(s.order.next, step_of(s.session, s.epoch, rows, s.origin))
        if s.feed.next_position > began_at:
            self._keep_outboxes_small()

    def _pump_link(self, peer: NodeId) -> None:
        """Room came free on a link: every session that uses it may send."""
        for s in self._sessions.values():
            if s.order.next == peer:
                self._pump(s)

    def _send_token(self, s: HopSession, token: SampledToken) -> None:
        if token.position - 1 >= s.send_from:
            self._send(s.origin, Token(s.session, s.epoch, token))

    def _keep_outboxes_small(self) -> None:
        """Over budget, the sessions that were idle longest lose the rows they have sent.

        Not those that wait for `Resume`: their origin was told what can be sent again.
        """
        for s, freed_bytes in evicted(self._sessions.values(), self._config.outbox_bytes_max):
            self._tell("outbox.evicted", s, bytes=freed_bytes)

    # ------------------------------------------------------------ endings

    def _fail(self, s: HopSession, node: NodeId, code: FailureCode, detail: str) -> None:
        self._send(s.origin, HopFailed(s.session, s.epoch, node, code, detail))
        self._tell("hop.failed", s, node=short(node), code=code.name.lower())

    def _drop(self, s: HopSession) -> None:
        del self._sessions[s.key], self._by_worker_id[s.worker_id]
        self.changed = True
        s.room.leave()
        self._effects.append(ToWorker(End(s.worker_id)))

    def _tell(self, event: str, s: HopSession, **fields: str | int) -> None:
        told = note(event, Level.INFO, session=short(s.session), **fields)
        self._effects.append(Tell(told))
