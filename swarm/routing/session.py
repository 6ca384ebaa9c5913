"""The origin's side of a session: it owns the ids, the epoch and the truth.

    WAITING ──plan──► OPENING ──all opened──► RUNNING ──► DONE
       ▲                 │  refused, timeout     │ hop failed, gap
       └── no route ─────┴───────────────────────┘

First start and recovery are the same path: open every hop, learn what each holds, let
`recovery.starts` say who resends what, feed ids from where the first hop ends.
"""

from __future__ import annotations

from swarm.config import RoutingConfig
from swarm.effects import (
    Failed,
    Finished,
    Generated,
    SessionStats,
    Stalled,
    Started,
)
from swarm.errors import (
    CapacityError,
    KvExhausted,
    LocalProtocolError,
    NoRoute,
    RequestError,
    RerouteLimitReached,
    SwarmError,
)
from swarm.messages import (
    PAYLOAD_LIMIT,
    Credit,
    FailureCode,
    Gap,
    HopFailed,
    Opened,
    RefusalCode,
    Refused,
    Release,
    Resume,
    Token,
)
from swarm.notes import Level
from swarm.routing.avoidance import Avoidance, refusal_error
from swarm.routing.followed import FollowedSession
from swarm.routing.opening import open_orders
from swarm.routing.outbox import (
    decode_row,
    prompt_in_chunks,
    step_of,
)
from swarm.routing.patience import Patience
from swarm.routing.phases import Phase
from swarm.routing.planner import Planner
from swarm.routing.prefix import PrefixMemory, salted, salts_of
from swarm.routing.recovery import Holding, starts
from swarm.routing.seeking import cause_of, is_possible, may_accuse, unfit_head
from swarm.routing.watch import SlowHop
from swarm.terms import Epoch, ModelSpec, NodeId, Order, Route, SessionId, short


class OriginSession(FollowedSession):
    """One sequence being generated, seen from the node whose gateway took the request."""

    def __init__(
        self,
        session: SessionId,
        order: Order,
        model: ModelSpec,
        me: NodeId,
        config: RoutingConfig,
        planner: Planner,
    ) -> None:
        super().__init__(session, order, model, me, config, planner)
        self._opened: dict[NodeId, Opened] = {}
        self._gaps: set[NodeId] = set()
        self._refusal: SwarmError | None = None
        """Why the last route could not be opened, where that is what a client should hear."""
        self._patience = Patience(config)
        self._cached_tokens: int | None = None
        """Of the first start."""
        if not order.prompt_ids or order.max_tokens < 1:
            raise LocalProtocolError("an order needs a prompt and at least one token to generate")

    # ------------------------------------------------------------ views

    @property
    def reroutes(self) -> int:
        """Hops lost so far."""
        return self._patience.reroutes

    @property
    def position(self) -> int:
        """Length of the sequence so far: prompt and generated tokens."""
        return len(self._ids)

    @property
    def chain(self) -> bytes:
        """Names what the hops of the present route may keep of the sequence."""
        if self.route is None or not self._seeker.keeps_rows(self.route):
            return b""
        return self._prefix.whole()

    def monitored(self) -> tuple[NodeId, ...]:
        """Nodes whose silence must be noticed now: all but those that were only just asked."""
        if self.route is None or self.phase not in (Phase.OPENING, Phase.RUNNING):
            return ()
        known = (n for n in self.route.nodes if n in self._opened or n in self._seeker.held)
        return tuple(n for n in known if n != self._me)

    def nodes(self) -> tuple[NodeId, ...]:
        """All that hold, or are asked to hold, room for this session."""
        routed = (*(self.route.nodes if self.route else ()), *self._standbys.nodes)
        return (*routed, *self._reserve.nodes) if self._reserve else routed

    def uses(self, node: NodeId) -> bool:
        return node in self.nodes()

    @property
    def avoidance(self) -> Avoidance:
        """Whom it leaves out of its plans."""
        return self._seeker.avoidance

    def stats(self) -> SessionStats:
        return SessionStats(
            route=self.route,
            reroutes=self.reroutes,
            stall_s=tuple(self._stalls.stalls_s),
            exact=self._seeker.exact,
            cached_tokens=self._cached_tokens or 0,
        )

    # ------------------------------------------------------------ facts in

    def start(self, now: float, known: PrefixMemory | None = None) -> None:
        """Find the first route. Raises the SwarmError that says why there is none."""
        self._progress.moved(now)
        if known is not None:
            self._seeker.cached = known.depths(self._prefix.whole())
        route = self._seeker.find(0, now)
        if route is None:
            raise self._seeker.why_not(0, now)
        self._open(route, now)

    def view_changed(self, now: float) -> None:
        """Nodes came or went: a waiting session looks for a route again."""
        self._suspected.clear()
        if self.phase is Phase.WAITING:
            self._plan(now)

    def opened(self, peer: NodeId, message: Opened, now: float) -> None:
        if not self._is_current(peer, message.epoch) or self.phase is not Phase.OPENING:
            return
        assert self.route is not None
        if not is_possible(message, len(self._ids)):
            self.node_failed(peer, FailureCode.STEP_FAILED, "it claims what cannot be", now)
            return
        if (unfit := unfit_head(message, peer, self.route, self.order)) is not None:
            self.refused(peer, unfit, now)
            return
        self._opened[peer] = message
        if all(node in self._opened for node in self.route.nodes):
            self._resume(now)

    def refused(self, peer: NodeId, message: Refused, now: float) -> None:
        if not self._is_current(peer, message.epoch) or self.phase is not Phase.OPENING:
            return
        code = message.code.name.lower()
        self._tell("session.refused", Level.INFO, node=short(peer), code=code,
                   detail=message.detail)  # fmt: skip
        if message.code is RefusalCode.NO_LINK and message.peer is not None:
            self._seeker.avoidance.no_link(peer, message.peer, message.waited, now)
        else:
            self._seeker.failed(peer, now)
        self._try_elsewhere(refusal_error(message), message.detail, now)

    def out_of_reach(self, node: NodeId, now: float) -> None:
        """No link to a hop came about: it was never asked."""
        is_asked = self.route is not None and self.route.index_of(node) is not None
        if self.phase is not Phase.OPENING or not is_asked or node in self._opened:
            return
        self._tell("session.out_of_reach", Level.INFO, node=short(node))
        self._seeker.failed(node, now)
        detail = f"node {short(node)} cannot be reached from here"
        self._try_elsewhere(NoRoute(self.model.model_id, (), detail), detail, now)

    def token(self, peer: NodeId, message: Token, now: float) -> bool:
        """Take a token of the head; False when it is not the one that is due."""
        if self.phase is not Phase.RUNNING or not self._is_current(peer, message.epoch):
            return False
        assert self.route is not None
        token = message.token
        if peer != self.route.hops[-1].node or token.position != len(self._ids):
            return False
        if not 0 <= token.token_id < self.model.vocab_size:
            self.node_failed(peer, FailureCode.STEP_FAILED, "it sent no token of the model", now)
            return False
        self._token_came(now)
        self._ids.append(token.token_id)
        self._reply(Generated(token))
        if token.token_id in self.order.stop_ids:
            self._finish("stop")
        elif self.generated_count >= self.order.max_tokens:
            self._finish("length")
        else:
            self._outbox.append(decode_row(token.position, token.token_id))
            self._pump()
        return True

    def credit(self, peer: NodeId, message: Credit, now: float) -> None:
        if self.phase is not Phase.RUNNING or not self._is_current(peer, message.epoch):
            return
        self._hop_at(peer, message.kv_length, now)
        assert self.route is not None
        if peer == self.route.hops[0].node:
            self._feed.acknowledged(message.kv_length)
            self._pump()

    def gap(self, peer: NodeId, message: Gap, now: float) -> None:
        """A hop holds less than was thought: open again and learn what is true."""
        if self.phase is not Phase.RUNNING or not self._is_current(peer, message.epoch):
            return
        self._tell("session.gap", Level.WARNING, node=short(peer), position=message.position,
                   kv_length=message.kv_length)  # fmt: skip
        if peer in self._gaps:
            self.node_failed(peer, FailureCode.STEP_FAILED, "it lost its place again", now)
            return
        self._gaps.add(peer)
        self._reroute(f"node {short(peer)} lost its place", now)

    def hop_failed(self, peer: NodeId, message: HopFailed, now: float) -> None:
        """A hop reports that it, or its neighbour, cannot go on. Nobody else may be accused."""
        if not self._is_current(peer, message.epoch) or self.route is None:
            return
        if not may_accuse(self.route, peer, message.node):
            return
        if message.code is FailureCode.GUIDE_FAILED:
            self._fail(RequestError(message.detail, code="guide_failed"))
            return
        if message.code is FailureCode.PREEMPTED:
            self._preempted(peer, message.detail, now)
            return
        if peer != message.node:
            self._seeker.avoidance.wire(peer, message.node, message.code, now)
        self.node_failed(message.node, message.code, message.detail, now)

    def node_failed(self, node: NodeId, code: FailureCode, detail: str, now: float) -> None:
        """A verdict on a node of the route, whoever reached it. Others are ignored."""
        self.standby_gone(node, now)
        if self.phase not in (Phase.OPENING, Phase.RUNNING):
            return
        if self.route is None or self.route.index_of(node) is None:
            return
        if code is FailureCode.LEAVING and self._route_without(node, now) is None:
            self._tell("session.stays", Level.INFO, node=short(node), detail="no other route")
            return
        if code is FailureCode.LEAVING and self._hands_over(node, now):
            self._set_deadline()
            return
        self._lose_hop(node, code, detail, now)

    def _let_go(self, node: NodeId, now: float) -> None:
        self._leaver = None
        self._lose_hop(node, FailureCode.LEAVING, "the node is leaving", now)

    def _lose_hop(self, node: NodeId, code: FailureCode, detail: str, now: float) -> None:
        self._seeker.failed(node, now, is_unlinked=code is FailureCode.LINK_DOWN)
        self._tell("session.hop_failed", Level.INFO, node=short(node), code=code.name.lower(),
                   detail=detail, position=len(self._ids))  # fmt: skip
        self._reroute(f"{cause_of(code)}: node {short(node)}", now)

    def _preempted(self, node: NodeId, detail: str, now: float) -> None:
        """A hop had no room left to grow, and this session came there last: nobody is to blame."""
        self._seeker.failed(node, now)
        if self.phase is Phase.WAITING:
            return
        self._tell("session.preempted", Level.INFO, node=short(node), position=len(self._ids))
        self._begin_stall(f"node {short(node)} has no room left", now)
        self._refusal = KvExhausted(f"node {short(node)} has no room left: {detail}")
        if self._patience.preempted(now):
            self._plan(now)
        else:
            self._fail(KvExhausted(f"moved too often for want of room: {detail}"))

    def wire_failed(self, slow: SlowHop, now: float) -> None:
        """A hop waits for rows that were sent to it, or its token is lost: no node is to blame."""
        if self.phase is Phase.RUNNING:
            for a, b in ((slow.feeder, slow.node), (slow.node, self._me)):
                self._seeker.avoidance.wire(a, b, FailureCode.LINK_DOWN, now)
            self._reroute(f"nothing comes through at node {short(slow.node)}", now)

    def cancel(self) -> None:
        """The client is gone: free every hop."""
        if not self.is_done:
            self._release_all(is_kept=True)
            self._enter(Phase.DONE)

    def tick(self, now: float) -> None:
        if self.deadline is None or now < self.deadline:
            return
        if self.phase is Phase.OPENING:
            self._open_timed_out(now)
        elif self.phase is Phase.WAITING:
            self._plan(now)
        elif self.phase is Phase.RUNNING:
            self._tend_reserve(now)
            self._tend_standbys(now)
            if self.phase is Phase.RUNNING:
                self._set_deadline()

    def _set_deadline(self) -> None:
        """Of a session that runs."""
        moments = [self._look_at, self._leaver[1] if self._leaver else None]
        moments.append(self._reserve.until if self._reserve else None)
        self.deadline = min((at for at in moments if at is not None), default=None)

    # ------------------------------------------------------------ routes

    def _try_elsewhere(self, refusal: SwarmError | None, detail: str, now: float) -> None:
        """A route could not be opened."""
        self._refusal = refusal
        is_full = refusal is not None and self._is_admitted
        if self._patience.refused(now, is_full=is_full):
            self._plan(now)
        elif refusal is not None:
            self._fail(refusal)
        else:
            self._wait_for_cover(NoRoute(self.model.model_id, (), detail), now)

    @property
    def _is_admitted(self) -> bool:
        """Whether the answer began, or was to begin: from then on it waits for room."""
        return self.generated_count > 0 or self._patience.preemptions > 0

    def _plan(self, now: float) -> None:
        route = self._seeker.find(self.generated_count, now)
        if route is not None:
            self._patience.cover_found()
            self._open(route, now)
        elif self._is_refused_for_good(now):
            assert self._refusal is not None
            self._fail(self._refusal)
        else:
            error = self._seeker.why_not(self.generated_count, now)
            is_missing = isinstance(error, NoRoute) and error.missing
            self._wait_for_cover(error if is_missing else self._refusal or error, now)

    def _is_refused_for_good(self, now: float) -> bool:
        """Whether the last hop that was asked said why, and nobody else is to be waited for. A
        session that waits already has asked nobody since."""
        if self._refusal is None or self._is_admitted or self.phase is Phase.WAITING:
            return False
        left_out = self.avoidance.nodes_at(now)
        return not isinstance(self._refusal, NoRoute) or len(left_out) <= 1

    def _wait_for_cover(self, error: SwarmError, now: float) -> None:
        """Or for room; who waits for that keeps none, or two could wait for each other."""
        if self._patience.cover_lost(now):
            self._tell("session.waiting", Level.WARNING, detail=str(error))
            self._reply(Stalled(f"waiting: {error}"))
        give_up_at = self._patience.give_up_at()
        if now >= give_up_at:
            self._fail(error)
            return
        holds = self.phase is not Phase.WAITING or bool(self._seeker.held)
        if isinstance(error, CapacityError) and holds:
            self._release_all(is_kept=True)
            self._seeker.held.clear()
        self._enter(Phase.WAITING)
        self.deadline = min(give_up_at, self._seeker.avoidance.next_expiry(now) or give_up_at)

    def _open(self, route: Route, now: float) -> None:
        """Reserve the session on every hop under the next epoch."""
        kept = set(route.nodes)
        for hop in self.route.hops if self.route else ():
            if hop.node not in kept:
                self._send(hop.node, Release(self.session, self.epoch))
                self._seeker.held.pop(hop.node, None)
        self.epoch = Epoch(self.epoch + 1)
        self.route = route
        self._opened = {}
        self._suspected.clear()
        if not self._outbox.stop:
            for rows in prompt_in_chunks(self.order.prompt_ids, len(route.hops), self._chunk_max):
                self._outbox.append(rows)
        self._enter(Phase.OPENING)
        dial_wait_s = self._config.dial_wait_s if route.dials else 0.0
        self.deadline = now + dial_wait_s + self._config.open_timeout_s
        self._drop_reserve(kept)
        self._take_over(route)
        so_far = self._so_far(route)
        orders = open_orders(self.session, self.epoch, self.order, route, self._me, so_far)
        for node, message in orders:
            self._send(node, message)

    def _resume(self, now: float) -> None:
        """All hops are open: tell each where to start, then feed."""
        assert self.route is not None
        holdings = [
            Holding(o.kv_length, o.outbox_start, o.cached_length, o.cache_unit)
            for o in (self._opened[node] for node in self.route.nodes)
        ]
        hop_starts, feed_from = starts(holdings, len(self._ids) - 1)
        self._tell_head(self.route.hops[-1].node)
        for node, start in zip(self.route.nodes, hop_starts, strict=True):
            self._send(node, Resume(self.session, self.epoch, start.kv_length, start.send_from))
        self._enter(Phase.RUNNING)
        self._seeker.running_on(self.route)
        self._follow_on(now)
        self._set_deadline()
        self._refusal = None
        self._patience.resumed()
        if self._cached_tokens is None:
            self._cached_tokens = feed_from
        self._resumed(self.route, [start.kv_length for start in hop_starts], now)
        self._reply(Started(self.route, self.epoch, self._cached_tokens))
        self._tell_route(self.route, [holding.kv_length for holding in holdings])
        self._feed.restart(feed_from)
        self._pump()

    def _open_timed_out(self, now: float) -> None:
        assert self.route is not None
        late = [node for node in self.route.nodes if node not in self._opened]
        for node in late:
            self._seeker.avoidance.node(node, now)
        self._reroute(f"no answer to open from {', '.join(map(short, late))}", now)

    def _reroute(self, cause: str, now: float) -> None:
        """The present route is broken: seek another under the next epoch."""
        self._begin_stall(cause, now)
        is_patient = self._patience.rerouted()
        self._tell(
            "session.reroute", Level.WARNING, cause=cause, reroutes=self.reroutes,
            silence_ms=round((now - self._progress.moved_at) * 1000, 3), position=len(self._ids),
        )  # fmt: skip
        if is_patient:
            self._plan(now)
        else:
            text = f"gave up after losing {self.reroutes} hops of one answer"
            self._fail(RerouteLimitReached(text))

    # ------------------------------------------------------------ rows

    @property
    def _chunk_max(self) -> int:
        """Rows of one step of the prompt that a message has room for."""
        widest = PAYLOAD_LIMIT // (self.model.hidden_size * 4)
        return max(1, min(self._config.prefill_chunk_tokens, widest))

    def _pump(self) -> None:
        assert self.route is not None
        first = self.route.hops[0].node
        while rows := self._feed.take(self._outbox, self._config.link_inflight_bytes_max):
            self._send(first, step_of(self.session, self.epoch, rows))
        self._pump_mirror()

    # ------------------------------------------------------------ endings

    def _finish(self, reason: str) -> None:
        self._release_all(is_kept=True)
        self._enter(Phase.DONE)
        self._reply(Finished(reason, self.stats()))
        self._tell("session.finished", Level.INFO, reason=reason, tokens=self.generated_count,
                   reroutes=self.reroutes, exact=self._seeker.exact)  # fmt: skip

    def _fail(self, error: SwarmError) -> None:
        self._release_all()
        self._enter(Phase.DONE)
        self._reply(Failed(error, self.stats()))
        self._tell("session.failed", Level.WARNING, detail=str(error), tokens=self.generated_count)

    def _release_all(self, *, is_kept: bool = False) -> None:
        """`is_kept`: hops may keep what they computed, for a next turn."""
        self._drop_reserve(set())
        self._dismiss_standbys()
        if self.route is None:
            return
        chain = self.chain if is_kept else b""
        for node, salt in zip(self.route.nodes, salts_of(self.route), strict=True):
            self._send(node, Release(self.session, self.epoch, salted(chain, salt)))
