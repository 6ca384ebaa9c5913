"""What a hop knows of one session: how far it is, what it can deliver again, what is under way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from swarm.messages import (
    SAMPLING_LEVEL,
    Begin,
    History,
    HopTimes,
    Open,
    Opened,
    Ran,
    Recall,
    Run,
    SessionProgress,
    Step,
)
from swarm.routing.history import Told
from swarm.routing.mirror import Mirror
from swarm.routing.outbox import Feed, Outbox, Rows, needs_credit
from swarm.routing.rooms import Room
from swarm.routing.step_clock import StepClock
from swarm.terms import Epoch, NodeId, SampledToken, SessionId, ShardInfo

SessionKey = tuple[NodeId, SessionId]
"""Origin and id: two origins may draw, or copy, the same id."""


class HopPhase(Enum):
    OPENED = "opened"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A step of the present epoch whose rows, up to `stop`, are not in the KV yet."""

    stop: int
    needs_credit: bool


@dataclass(slots=True)
class HopSession:
    """One session on this hop. `accepted` rows were given to the worker, `produced` came back."""

    order: Open
    origin: NodeId
    shard: ShardInfo
    worker_id: SessionId
    """The session as the worker and the KV pool know it: unique on this node, rising."""
    feed: Feed
    room: Room
    opened_at: float
    phase: HopPhase = HopPhase.OPENED
    generation: int = 1
    accepted: int = 0
    produced: int = 0
    send_from: int = 0
    outbox: Outbox = field(default_factory=Outbox)
    told: Told = field(default_factory=Told)
    tokens: dict[int, SampledToken] = field(default_factory=dict)
    held_steps: list[Step] = field(default_factory=list)
    """Came before `Resume`: the feeder may have been told earlier."""
    unanswered: list[Unanswered] = field(default_factory=list)
    mirror: Mirror | None = None
    """Who else gets the rows of the present epoch."""
    used_at: float = 0.0
    unlinked: list[NodeId] = field(default_factory=list)
    """Neighbours whose link is waited for before `Opened` is sent."""
    link_by: float = 0.0
    """When that is given up."""
    dial_back_at: float | None = None
    """When the feeder, if it is still missing, is dialled from here."""
    clock: StepClock = field(default_factory=StepClock)

    @property
    def session(self) -> SessionId:
        return self.order.session

    @property
    def epoch(self) -> Epoch:
        return self.order.epoch

    @property
    def key(self) -> SessionKey:
        return self.origin, self.session

    @property
    def stands_by(self) -> bool:
        """Nobody reads from it now: rows come, and stay."""
        return self.order.standby

    @property
    def neighbours(self) -> tuple[NodeId, ...]:
        """Without whom the session cannot go on here. A standby needs nobody."""
        return () if self.stands_by else (self.order.previous, self.order.next)

    @property
    def needs(self) -> tuple[NodeId, ...]:
        """To whom there must be a link before it is ready. No node twice."""
        sides = (self.order.previous,) if self.stands_by else (self.order.next, self.order.previous)
        return tuple(dict.fromkeys(sides))

    @property
    def mirrored_to(self) -> tuple[NodeId, ...]:
        return (self.mirror.to,) if self.mirror else ()

    def is_mirrored_to(self, peer: NodeId) -> bool:
        return peer in self.mirrored_to

    @property
    def outbox_start(self) -> int:
        """First row whose result can be delivered again."""
        if not self.order.head:
            return self.outbox.start
        return min(self.tokens, default=self.produced + 1) - 1

    @property
    def under_way(self) -> int:
        """Steps that the feeder sent under this epoch and that are not done."""
        return len(self.held_steps) + len(self.unanswered)

    # ------------------------------------------------------------ what to say

    def begin(self, blocks: bytes = b"", kv_length: int = 0) -> Begin:
        order = self.order
        return Begin(
            session=self.worker_id,
            generation=self.generation,
            model_id=order.model_id,
            layers=order.layers,
            embed=order.embed,
            head=order.head,
            prompt_count=order.prompt_count,
            position_limit=order.position_limit,
            sampling=order.sampling,
            blocks=blocks,
            kv_length=kv_length,
            hop_count=order.hop_count,
        )

    def recalls(self) -> list[Recall]:
        """What the origin told of the sequence, if it did: for the worker, which keeps it."""
        message = self.told.recall(self.worker_id, self.generation, self.order)
        self.told.clear()
        return [] if message is None else [message]

    def run(self, rows: Rows, blocks: bytes) -> Run:
        """`blocks`: that these rows need beside those that the session has."""
        return Run(
            session=self.worker_id,
            generation=self.generation,
            position=rows.position,
            count=rows.count,
            kind=rows.kind,
            row_type=rows.row_type,
            sample_from=max(self.send_from, self.order.prompt_count - 1),
            blocks=blocks,
            is_background=self.stands_by,
            payload=rows.payload,
        )

    def opened(self) -> Opened:
        offered = self.room.offered
        return Opened(
            session=self.session,
            epoch=self.epoch,
            kv_length=self.accepted,
            outbox_start=self.outbox_start,
            cached_length=offered,
            cache_unit=self.room.unit if offered else 0,
            sampling_level=SAMPLING_LEVEL if self.order.head else 0,
        )

    def progress(self, peer: NodeId) -> SessionProgress:
        pending = self.accepted - self.produced
        return SessionProgress(self.session, self.produced, pending, is_yours=self.origin == peer)

    def times(self) -> HopTimes:
        return HopTimes(self.session, self.epoch, self.clock.prompt, self.clock.tokens)

    # ------------------------------------------------------------ what happens

    def timed(self, result: Ran, now: float) -> bool:
        """Rows came back; whether the origin should hear what they took."""
        self.clock.done(result.kind, result.count, result.compute_s, now)
        if self.produced >= self.accepted:
            self.clock.rest()
        return self.phase is HopPhase.RUNNING and self.clock.is_worth_telling(now)

    def reopen(self, order: Open, shard: ShardInfo, now: float) -> None:
        """Another route, same rows; nothing of the old epoch is answered any more."""
        self.order, self.shard, self.opened_at = order, shard, now
        self.room.follow(order)
        self.told.clear()
        self.phase = HopPhase.OPENED
        self.mirror = None
        self.unlinked.clear()
        self.held_steps.clear()
        self.unanswered.clear()
        self.clock = StepClock()

    def wait_for(self, unlinked: list[NodeId], link_by: float, dial_back_at: float) -> None:
        """Say `Opened` when these are linked. Next dials the feeder, if it does not come first."""
        self.unlinked, self.link_by = unlinked, link_by
        self.dial_back_at = dial_back_at if self.order.previous in unlinked else None

    def next_deadline(self, opened_max_s: float) -> float | None:
        """When this session needs a look without anybody saying anything."""
        if self.phase is not HopPhase.OPENED:
            return None
        if not self.unlinked:
            return self.opened_at + opened_max_s
        return self.link_by if self.dial_back_at is None else min(self.dial_back_at, self.link_by)

    def forget(self) -> Begin:
        """The order is another one, for which room was made already: begin it from nothing."""
        return self._begin_at(0, b"")

    def begin_again(self, kv_length: int = 0) -> Begin:
        """Drop the KV and all rows, on purpose; go on from a prefix that others left here.

        Raises KvExhausted where the pool cannot keep its promise without that.
        """
        return self._begin_at(kv_length, self.room.begin(kv_length))

    def _begin_at(self, kv_length: int, blocks: bytes) -> Begin:
        self.generation += 1
        self.accepted = self.produced = kv_length
        self.outbox.restart(kv_length)
        self.tokens.clear()
        return self.begin(blocks, kv_length)

    def resume(self, send_from: int) -> list[Step]:
        """Start to run; returns the steps that waited for that."""
        self.phase = HopPhase.RUNNING
        self.unlinked.clear()
        self.send_from = send_from
        self.feed.restart(send_from)
        held, self.held_steps = self.held_steps, []
        return held

    def can_start(self, kv_length: int) -> bool:
        """Whether it holds, or may begin with, exactly so many positions."""
        if kv_length == 0 or self.accepted:
            return kv_length in (0, self.accepted)
        return self.room.can_begin(kv_length)

    def can_deliver(self, kv_length: int, send_from: int) -> bool:
        """Whether a start with `kv_length` positions can send every row from `send_from`."""
        if self.accepted == 0:
            return send_from >= kv_length
        return kv_length == 0 or send_from >= min(self.outbox_start, self.accepted)

    def await_answer(self, rows: Rows) -> None:
        self.unanswered.append(Unanswered(rows.stop, needs_credit(rows)))

    def hear(self, message: History) -> None:
        """What the origin tells before `Resume`. Raises RemoteProtocolError for what none tells."""
        if message.epoch == self.epoch and self.phase is HopPhase.OPENED:
            self.told.add(message, self.order)

    def answer(self) -> bool:
        """Forget the steps that are done now; whether one of them is worth a credit."""
        done = [step for step in self.unanswered if step.stop <= self.produced]
        self.unanswered = [step for step in self.unanswered if step.stop > self.produced]
        return any(step.needs_credit for step in done)


def peers_of(sessions: Sequence[HopSession], me: NodeId) -> dict[NodeId, list[SessionProgress]]:
    """Who must hear of life from here, and how far their common sessions are."""
    result: dict[NodeId, list[SessionProgress]] = {}
    for s in sessions:
        for peer in dict.fromkeys((s.origin, *s.neighbours)):
            if peer != me:
                result.setdefault(peer, []).append(s.progress(peer))
    return result


def evicted(sessions: Iterable[HopSession], bytes_max: int) -> list[tuple[HopSession, int]]:
    """Drop rows that were sent, of those that run and were idle longest, until the others' outboxes
    are within the budget. Returns whose, and how many bytes."""
    total = sum(s.outbox.byte_count for s in sessions)
    running = [s for s in sessions if s.phase is HopPhase.RUNNING] if total > bytes_max else []
    found: list[tuple[HopSession, int]] = []
    for s in sorted(running, key=lambda s: (s.used_at, s.key)):
        if total <= bytes_max:
            break
        before = s.outbox.byte_count
        s.outbox.drop_before(s.feed.next_position)
        freed = before - s.outbox.byte_count
        total -= freed
        if freed:
            found.append((s, freed))
    return found
