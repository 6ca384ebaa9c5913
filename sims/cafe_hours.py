"""Twelve hours of the cafe (`cafe`), played over the production planner and memory of stays alone.

No messages: departures and arrivals come one after the other, an answer takes what the planner
predicts for its route and the others that run there, and one whose hop leaves loses the time to
notice and to rebuild, and goes on over the route that is then planned.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from random import Random

from sims.stage import stub_model
from swarm.config import RoutingConfig
from swarm.messages import KV_BLOCK_TOKENS
from swarm.routing.cost import Candidate, PlanRequest, SwarmView, Wire, rebuild_cost_s
from swarm.routing.planner import plan
from swarm.routing.stays import StayBook
from swarm.terms import (
    LayerRange,
    NodeId,
    NumericClass,
    Route,
    ShardInfo,
    ShardSpeed,
    ShardState,
)

THIRDS = ((0, 4), (4, 8), (8, 12))
LAYERS = 12
WEEK_S = 7 * 24 * 3600.0
DAY_S = 12 * 3600.0
TALKERS = 3
THINK_S = 10.0
ANSWERS = (100, 250, 600)
PROMPT = 200
LAYER_S = 0.004
LINK = Wire(0.0005, 1.25e8)
NOTICE_S = 0.06
"""From a killed process to the next route: the median of the failover figure."""
ROOM_BYTES = 1 << 40
ME = NodeId("counter")
MODEL = stub_model(LAYERS)


@dataclass(frozen=True, slots=True)
class Kind:
    """Mean seconds."""

    stay_s: float
    away_s: float


KINDS = (Kind(10800, 300), Kind(3600, 600), Kind(720, 240), Kind(150, 90))


@dataclass(slots=True)
class Tally:
    tokens: int = 0
    stalls: int = 0
    departures: int = 0
    busy_s: float = 0.0
    """Of all answers together, from asking to the last token."""


@dataclass(slots=True)
class _Seat:
    candidate: Candidate
    kind: Kind
    is_here: bool = True


@dataclass(slots=True)
class _Answer:
    wanted: int
    route: Route
    began_s: float
    done: float = 0.0
    """Tokens; a token under way counts in part."""
    held_until: float = 0.0
    """It rebuilds."""


def watched(seats: list[tuple[NodeId, Kind]], draw: Random, now_s: float) -> bytes:
    """What somebody knows who saw these seats for the week before."""
    events = []
    for node, kind in seats:
        at_s, is_here = now_s - WEEK_S, True
        while at_s < now_s:
            events.append((at_s, node, is_here))
            at_s += draw.expovariate(1 / (kind.stay_s if is_here else kind.away_s))
            is_here = not is_here
    book = StayBook()
    for at_s, node, is_here in sorted(events):
        (book.here if is_here else book.gone)(node, at_s)
    return book.dump(now_s)


class CafeHours:
    """One day. `knows`: histories of stays count in routes."""

    def __init__(self, seed: int, *, knows: bool) -> None:
        self._draw = Random(seed)  # noqa: S311
        self._config = RoutingConfig()
        self._knows = knows
        self._seats = self._open()
        self.now = WEEK_S
        known = [(seat.candidate.node, seat.kind) for seat in self._seats.values()]
        self._book = StayBook.read(watched(known, self._draw, self.now))
        self._answers: list[_Answer] = []
        self._events: list[tuple[float, int, NodeId | None]] = []
        self._count = 0
        self.tally = Tally()

    def run(self) -> Tally:
        end_s = self.now + DAY_S
        for node, seat in self._seats.items():
            self._book.here(node, self.now)
            self._at(self._draw.expovariate(1 / seat.kind.stay_s), node)
        for _ in range(TALKERS):
            self._at(self._draw.expovariate(1 / THINK_S), None)
        while self.now < end_s:
            at_s, _, who = self._events[0]
            ends = [self._end_s(answer) for answer in self._answers]
            if ends and min(ends) < at_s:
                self._advance(min(ends))
                self._finish(self._answers[ends.index(min(ends))])
                continue
            heapq.heappop(self._events)
            self._advance(at_s)
            if who is None:
                self._ask()
            else:
                self._turn(who)
        return self.tally

    # ------------------------------------------------------------ happenings

    def _ask(self) -> None:
        wanted = self._draw.choice(ANSWERS)
        route = self._plan(PlanRequest(MODEL, ME, PROMPT, 0, wanted))
        first_s = sum(self._rebuild_s(route, (), 0))
        self._answers.append(_Answer(wanted, route, self.now, held_until=self.now + first_s))

    def _finish(self, answer: _Answer) -> None:
        self._answers.remove(answer)
        self.tally.tokens += answer.wanted
        self.tally.busy_s += self.now - answer.began_s
        self._at(self._draw.expovariate(1 / THINK_S), None)

    def _turn(self, node: NodeId) -> None:
        """Somebody logs in or out."""
        seat = self._seats[node]
        if seat.is_here and not self._is_spared(seat):
            self._at(60.0, node)
            return
        seat.is_here = not seat.is_here
        mean_s = seat.kind.stay_s if seat.is_here else seat.kind.away_s
        self._at(self._draw.expovariate(1 / mean_s), node)
        if seat.is_here:
            self._book.here(node, self.now)
            return
        self._book.gone(node, self.now)
        self.tally.departures += 1
        for answer in self._answers:
            if node in answer.route.nodes:
                self._reroute(answer, node)

    def _reroute(self, answer: _Answer, lost: NodeId) -> None:
        self.tally.stalls += 1
        held = tuple((hop.node, hop.layers) for hop in answer.route.hops if hop.node != lost)
        done = int(answer.done)
        request = PlanRequest(MODEL, ME, PROMPT, done, answer.wanted - done, held=held)
        answer.route = self._plan(request)
        rebuild_s = sum(self._rebuild_s(answer.route, held, done))
        answer.held_until = max(answer.held_until, self.now) + NOTICE_S + rebuild_s

    # ------------------------------------------------------------ time

    def _advance(self, at_s: float) -> None:
        for answer in self._answers:
            runs_s = at_s - max(self.now, min(answer.held_until, at_s))
            answer.done += runs_s / self._token_s(answer)
        self.now = at_s

    def _end_s(self, answer: _Answer) -> float:
        left_s = max(0.0, answer.wanted - answer.done) * self._token_s(answer)
        return max(self.now, answer.held_until) + left_s

    def _token_s(self, answer: _Answer) -> float:
        """Each hop takes turns with the other answers that run there."""
        compute_s = sum(
            len(hop.layers)
            * self._seats[hop.node].candidate.speed.decode_s_per_layer
            * sum(hop.node in other.route.nodes for other in self._answers)
            for hop in answer.route.hops
        )
        return compute_s + (len(answer.route.hops) + 1) * LINK.rtt_s / 2

    # ------------------------------------------------------------ small parts

    def _open(self) -> dict[NodeId, _Seat]:
        seats = {}
        for third in THIRDS:
            for kind in self._draw.sample(KINDS, len(KINDS)):
                node = NodeId(f"seat{self._draw.getrandbits(32):08x}")
                speed_s = LAYER_S * self._draw.uniform(0.8, 1.25)
                seats[node] = _Seat(_candidate(node, LayerRange(*third), speed_s), kind)
        return dict(sorted(seats.items()))

    def _plan(self, request: PlanRequest) -> Route:
        here = [seat.candidate for seat in self._seats.values() if seat.is_here]
        nodes = [ME, *(candidate.node for candidate in here)]
        loads = {node: sum(node in a.route.nodes for a in self._answers) for node in nodes}
        rates = {node: self._book.rate(node, self.now) for node in nodes[1:]}
        wires = {(a, b): LINK for a in nodes for b in nodes if a < b}
        view = SwarmView(tuple(here), wires, loads=loads, rates=rates if self._knows else {})
        route = plan(view, request, self._config)
        assert route is not None, "all layers are held"
        return route

    def _rebuild_s(
        self, route: Route, held: tuple[tuple[NodeId, LayerRange], ...], done: int
    ) -> list[float]:
        request = PlanRequest(MODEL, ME, PROMPT, done, 1, held=held)
        return [
            rebuild_cost_s(self._seats[hop.node].candidate, hop.layers, request)
            for hop in route.hops
        ]

    def _is_spared(self, seat: _Seat) -> bool:
        layers = seat.candidate.shard.layers
        return any(
            other.is_here and other is not seat and other.candidate.shard.layers == layers
            for other in self._seats.values()
        )

    def _at(self, after_s: float, node: NodeId | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + after_s, self._count, node))


def _candidate(node: NodeId, layers: LayerRange, speed_s: float) -> Candidate:
    speed = ShardSpeed(MODEL.model_id, speed_s, 8 * speed_s, speed_s / 10, 0.0, 0.0, ROOM_BYTES)
    shard = ShardInfo(
        MODEL.model_id, layers, layers.start == 0, layers.stop == LAYERS, NumericClass("stub"),
        ShardState.SERVING, KV_BLOCK_TOKENS, ROOM_BYTES, 8,
    )  # fmt: skip
    return Candidate(node, shard, speed)
