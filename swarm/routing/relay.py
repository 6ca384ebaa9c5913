"""The hop's side of sessions: accept steps in order, run them, keep and pass on the rows.

    OPENED ──resume──► RUNNING          a higher epoch's `Open` leads back to OPENED;
       ▲                  │             release, a lost origin or a lost worker ends the session
       └──── open ────────┘

A hop knows the KV length it holds. Rows it has are trimmed, rows beyond it are refused with
`Gap`, older epochs are dropped, and only an explicit `Resume(kv_length=0)` starts again from
nothing. Epochs are about routing only: the rows of a position never change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from swarm.config import RoutingConfig
from swarm.effects import Effect, Send, Tell, ToWorker
from swarm.errors import KvExhausted, RemoteProtocolError
from swarm.messages import (
    Begin,
    Credit,
    End,
    FailureCode,
    Gap,
    HopFailed,
    Message,
    Open,
    Opened,
    Ran,
    RefusalCode,
    Refused,
    Release,
    Resume,
    Run,
    RunFailed,
    SessionProgress,
    Step,
    Token,
)
from swarm.notes import Level, note
from swarm.routing.outbox import Feed, Outbox, Rows, needs_credit, step_of
from swarm.snapshot import HopView
from swarm.terms import Epoch, ModelId, NodeId, SampledToken, SessionId, ShardInfo, short


class Admission(Protocol):
    """Accounts KV memory; `shard.kv_blocks.KvLedger` is the real one."""

    def reserve(self, session: SessionId, byte_count: int) -> None:
        """Raises KvExhausted. Reserving again replaces the session's reservation."""

    def release(self, session: SessionId) -> int: ...


class HopPhase(Enum):
    OPENED = "opened"
    RUNNING = "running"


@dataclass(slots=True)
class HopSession:
    """One session on this hop. `accepted` rows were given to the worker, `produced` came back."""

    order: Open
    origin: NodeId
    phase: HopPhase = HopPhase.OPENED
    generation: int = 1
    accepted: int = 0
    produced: int = 0
    send_from: int = 0
    outbox: Outbox = field(default_factory=Outbox)
    feed: Feed = field(default_factory=lambda: Feed(1))
    tokens: dict[int, SampledToken] = field(default_factory=dict)
    held_steps: list[Step] = field(default_factory=list)
    used_at: float = 0.0

    @property
    def session(self) -> SessionId:
        return self.order.session

    @property
    def epoch(self) -> Epoch:
        return self.order.epoch

    @property
    def outbox_start(self) -> int:
        """First row whose result can be delivered again."""
        if not self.order.head:
            return self.outbox.start
        return min(self.tokens, default=self.produced + 1) - 1


class Relay:
    """All sessions that run through this node's shards."""

    def __init__(self, me: NodeId, config: RoutingConfig, admission: Admission) -> None:
        self._me = me
        self._config = config
        self._admission = admission
        self._shards: dict[ModelId, ShardInfo] = {}
        self._sessions: dict[SessionId, HopSession] = {}
        self._effects: list[Effect] = []
        self.steps_done = 0
        """Results of the worker so far, for whatever session."""

    # ------------------------------------------------------------ views

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def session_count(self) -> int:
        return len(self._sessions)

    def views(self) -> tuple[HopView, ...]:
        return tuple(
            HopView(s.session, s.origin, s.order.layers, s.produced, s.outbox.byte_count)
            for s in self._sessions.values()
        )

    def neighbours(self) -> tuple[tuple[SessionId, NodeId], ...]:
        """(session, peer) whose silence this hop must notice: who feeds it and whom it feeds."""
        return tuple(
            (s.session, peer)
            for s in self._sessions.values()
            if s.phase is HopPhase.RUNNING
            for peer in dict.fromkeys((s.order.previous, s.order.next))
            if peer not in (self._me, s.origin)
        )

    def audience(self) -> dict[NodeId, list[SessionProgress]]:
        """Who must hear of life from here, and how far their common sessions are."""
        result: dict[NodeId, list[SessionProgress]] = {}
        for s in self._sessions.values():
            for peer in dict.fromkeys((s.origin, s.order.previous, s.order.next)):
                if peer != self._me:
                    result.setdefault(peer, []).append(_progress(s, peer))
        return result

    def own_progress(self) -> tuple[SessionProgress, ...]:
        """How far sessions are whose origin is this very node."""
        return tuple(
            _progress(s, self._me) for s in self._sessions.values() if s.origin == self._me
        )

    # ------------------------------------------------------------ shards

    def serve(self, shard: ShardInfo) -> None:
        self._shards[shard.model_id] = shard

    def withdraw(self, model_id: ModelId, code: FailureCode, detail: str) -> None:
        """The shard is gone (worker lost, leaving): every session on it must go elsewhere."""
        self._shards.pop(model_id, None)
        for s in list(self._sessions.values()):
            if s.order.model_id == model_id:
                self._fail(s, self._me, code, detail)
                self._drop(s)

    def farewells(self) -> list[tuple[NodeId, HopFailed]]:
        """What to tell the origins when this node is about to leave; KV stays until released."""
        detail = "the node is leaving"
        return [
            (s.origin, HopFailed(s.session, s.epoch, self._me, FailureCode.LEAVING, detail))
            for s in self._sessions.values()
        ]

    # ------------------------------------------------------------ from the origin

    def open(self, peer: NodeId, order: Open, linked: Callable[[NodeId], bool], now: float) -> None:
        known = self._sessions.get(order.session)
        if known is not None and known.origin != peer:
            raise RemoteProtocolError("open of a session that belongs to another origin")
        refusal = self._refusal(order, known, linked)
        if refusal is not None:
            self._send(peer, refusal)
            return
        if known is None:
            known = self._sessions[order.session] = HopSession(order, peer)
            known.feed = Feed(self._config.credit_steps)
            self._begin(known)
        else:
            same_place = (known.order.model_id, known.order.layers) == (
                order.model_id,
                order.layers,
            )
            known.order = order
            known.phase = HopPhase.OPENED
            known.held_steps.clear()
            if not same_place:
                self._begin_again(known)
        known.used_at = now
        self._send(peer, Opened(order.session, order.epoch, known.accepted, known.outbox_start))

    def resume(self, peer: NodeId, message: Resume) -> None:
        s = self._of_origin(peer, message.session, message.epoch)
        if s is None or s.phase is not HopPhase.OPENED:
            return
        if message.kv_length not in (0, s.accepted):
            self._send(peer, Gap(s.session, s.epoch, message.kv_length, s.accepted))
            return
        if message.kv_length == 0 and s.accepted > 0:
            self._begin_again(s)
        s.phase = HopPhase.RUNNING
        s.send_from = message.send_from
        s.feed.restart(message.send_from)
        held, s.held_steps = s.held_steps, []
        for position in sorted(s.tokens):
            self._send_token(s, s.tokens[position])
        self._pump(s)
        for step in held:
            self._accept(s, s.order.previous, step)

    def release(self, peer: NodeId, message: Release) -> None:
        s = self._sessions.get(message.session)
        if s is not None and s.origin == peer and message.epoch >= s.epoch:
            self._drop(s)

    # ------------------------------------------------------------ from neighbours

    def step(self, peer: NodeId, step: Step, now: float) -> None:
        s = self._sessions.get(step.session)
        if s is None:
            self._send(peer, Gap(step.session, step.epoch, step.position, 0))
            return
        if step.epoch < s.epoch:
            return
        if step.epoch > s.epoch or peer != s.order.previous:
            raise RemoteProtocolError("step from a peer that does not feed this session")
        s.used_at = now
        if s.phase is HopPhase.RUNNING:
            self._accept(s, peer, step)
        elif len(s.held_steps) <= self._config.credit_steps + 1:
            s.held_steps.append(step)
        else:
            raise RemoteProtocolError("more steps than credits before the session resumed")

    def credit(self, peer: NodeId, message: Credit) -> None:
        s = self._sessions.get(message.session)
        if s is not None and message.epoch == s.epoch and peer == s.order.next:
            s.feed.acknowledged(message.kv_length)
            self._pump_link(peer)

    def gap(self, peer: NodeId, message: Gap) -> None:
        """The next hop does not hold what we send to it: the origin must sort that out."""
        s = self._sessions.get(message.session)
        if s is not None and message.epoch == s.epoch and peer == s.order.next:
            self._fail(s, peer, FailureCode.UNREACHABLE, "the next hop lost the session")

    def neighbour_failed(self, peer: NodeId, code: FailureCode, detail: str) -> None:
        """The link to a peer broke, went silent, or membership buried it.

        Sessions keep their KV for the next epoch; those of a lost origin end at once, and silence
        alone does not make an origin lost.
        """
        for s in list(self._sessions.values()):
            if s.origin == peer:
                if code in (FailureCode.LINK_DOWN, FailureCode.UNREACHABLE):
                    self._drop(s)
            elif peer in (s.order.previous, s.order.next):
                self._fail(s, peer, code, detail)

    # ------------------------------------------------------------ from the worker

    def ran(self, result: Ran) -> None:
        self.steps_done += 1
        s = self._sessions.get(result.session)
        if s is None or result.generation != s.generation:
            return
        s.produced = result.position + result.count
        for token in result.tokens:
            s.tokens[token.position] = token
            if s.phase is HopPhase.RUNNING:
                self._send_token(s, token)
        if not s.order.head:
            rows = Rows(result.position, result.count, result.kind, result.row_type, result.payload)
            s.outbox.append(rows)
            self._keep_outboxes_small()
            self._pump(s)
        self._acknowledge(s, result)

    def run_failed(self, result: RunFailed) -> None:
        s = self._sessions.get(result.session)
        if s is not None and result.generation == s.generation:
            self._fail(s, self._me, result.code, result.detail)
            self._drop(s)

    # ------------------------------------------------------------ opening

    def _refusal(
        self, order: Open, known: HopSession | None, linked: Callable[[NodeId], bool]
    ) -> Refused | None:
        def refused(code: RefusalCode, detail: str, peer: NodeId | None = None) -> Refused:
            return Refused(order.session, order.epoch, code, detail, peer)

        reopens = known is not None and known.phase is HopPhase.OPENED
        if known is not None and order.epoch < known.epoch + (0 if reopens else 1):
            return refused(RefusalCode.OLD_EPOCH, f"epoch {known.epoch} is open here")
        shard = self._shards.get(order.model_id)
        if shard is None or not shard.layers.covers(order.layers):
            return refused(RefusalCode.NO_SHARD, f"layers {order.layers} are not served here")
        if (order.embed and not shard.embed) or (order.head and not shard.head):
            return refused(RefusalCode.NO_SHARD, "no embedding or no head is served here")
        for peer in (order.previous, order.next):
            if not linked(peer):
                return refused(RefusalCode.NO_LINK, f"no link to {short(peer)}", peer)
        if known is None and len(self._sessions) >= self._config.hop_sessions_max:
            return refused(RefusalCode.SESSION_LIMIT, "too many sessions on this node")
        needed = order.position_limit * len(order.layers) * shard.kv_bytes_per_token_layer
        try:
            self._admission.reserve(order.session, needed)
        except KvExhausted as error:
            return refused(RefusalCode.KV_EXHAUSTED, str(error))
        return None

    def _begin(self, s: HopSession) -> None:
        order = s.order
        self._effects.append(
            ToWorker(
                Begin(
                    session=order.session,
                    generation=s.generation,
                    model_id=order.model_id,
                    layers=order.layers,
                    embed=order.embed,
                    head=order.head,
                    prompt_count=order.prompt_count,
                    position_limit=order.position_limit,
                    sampling=order.sampling,
                )
            )
        )

    def _begin_again(self, s: HopSession) -> None:
        """Drop the KV and all rows, on purpose."""
        s.generation += 1
        s.accepted = s.produced = 0
        s.outbox.clear()
        s.tokens.clear()
        self._begin(s)

    def _of_origin(self, peer: NodeId, session: SessionId, epoch: Epoch) -> HopSession | None:
        s = self._sessions.get(session)
        return s if s is not None and s.origin == peer and s.epoch == epoch else None

    # ------------------------------------------------------------ rows in

    def _accept(self, s: HopSession, peer: NodeId, step: Step) -> None:
        if step.count < 1 or step.position < 0 or len(step.payload) % step.count:
            raise RemoteProtocolError("a step without whole rows")
        if step.position + step.count > s.order.position_limit:
            raise RemoteProtocolError("a step beyond the positions reserved")
        rows = Rows(step.position, step.count, step.kind, step.row_type, step.payload)
        if rows.position > s.accepted:
            self._send(s.origin, Gap(s.session, s.epoch, rows.position, s.accepted))
            return
        if rows.stop <= s.accepted:
            if needs_credit(rows):
                self._send(peer, Credit(s.session, s.epoch, s.produced))
            return
        rows = rows.from_position(s.accepted)
        s.accepted = rows.stop
        self._effects.append(
            ToWorker(
                Run(
                    session=s.session,
                    generation=s.generation,
                    position=rows.position,
                    count=rows.count,
                    kind=rows.kind,
                    row_type=rows.row_type,
                    sample_from=max(s.send_from, s.order.prompt_count - 1),
                    payload=rows.payload,
                )
            )
        )

    def _acknowledge(self, s: HopSession, result: Ran) -> None:
        rows = Rows(result.position, result.count, result.kind, result.row_type, b"")
        if s.phase is HopPhase.RUNNING and needs_credit(rows):
            self._send(s.order.previous, Credit(s.session, s.epoch, s.produced))

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
        while rows := s.feed.take(s.outbox, budget):
            budget -= len(rows.payload)
            self._send(s.order.next, step_of(s.session, s.epoch, rows))

    def _pump_link(self, peer: NodeId) -> None:
        """Room came free on a link: every session that uses it may send."""
        for s in self._sessions.values():
            if s.order.next == peer:
                self._pump(s)

    def _send_token(self, s: HopSession, token: SampledToken) -> None:
        if token.position - 1 >= s.send_from:
            self._send(s.origin, Token(s.session, s.epoch, token))

    def _keep_outboxes_small(self) -> None:
        """Over budget, the sessions that were idle longest lose the rows they have sent."""
        total = sum(s.outbox.byte_count for s in self._sessions.values())
        if total <= self._config.outbox_bytes_max:
            return
        for s in sorted(self._sessions.values(), key=lambda s: (s.used_at, s.session)):
            before = s.outbox.byte_count
            s.outbox.drop_before(s.feed.next_position)
            total -= before - s.outbox.byte_count
            if before != s.outbox.byte_count:
                self._tell("outbox.evicted", Level.INFO, s, bytes=before - s.outbox.byte_count)
            if total <= self._config.outbox_bytes_max:
                return

    # ------------------------------------------------------------ endings

    def _fail(self, s: HopSession, node: NodeId, code: FailureCode, detail: str) -> None:
        self._send(s.origin, HopFailed(s.session, s.epoch, node, code, detail))
        self._tell("hop.failed", Level.INFO, s, node=short(node), code=code.name.lower())

    def _drop(self, s: HopSession) -> None:
        del self._sessions[s.session]
        self._admission.release(s.session)
        self._effects.append(ToWorker(End(s.session)))

    def _send(self, peer: NodeId, message: Message) -> None:
        self._effects.append(Send(peer, message))

    def _tell(
        self, event: str, level: Level, s: HopSession, **fields: str | int | float | bool
    ) -> None:
        self._effects.append(Tell(note(event, level, session=short(s.session), **fields)))


def _progress(s: HopSession, peer: NodeId) -> SessionProgress:
    pending = s.accepted - s.produced
    return SessionProgress(s.session, s.produced, pending, is_yours=s.origin == peer)
