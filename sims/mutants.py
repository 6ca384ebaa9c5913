"""More safeguards to switch off: one for each invariant that no other ablation is sure to break.

As in `ablations`, each replaces one piece of production code while a simulation runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sims import world
from sims.ablations import ABLATIONS, Ablation, Patch, _entry
from swarm import mover
from swarm.discovery.addresses import AddressBook, Interest
from swarm.effects import Generated, Reply
from swarm.errors import NoRoute
from swarm.gossip.judge import Judge
from swarm.kernels.history import Past, TokenHistory
from swarm.link.live_io import Contests
from swarm.link.tcp_io import TcpLinks
from swarm.mover import Mover
from swarm.node_io import GenerationIo
from swarm.routing import hop_session, outbox, recovery, relay, session, session_watch
from swarm.routing.moves import Move
from swarm.routing.relay import Relay
from swarm.routing.seeking import RouteSeeker
from swarm.routing.session import OriginSession
from swarm.routing.vigil import Vigil
from swarm.terms import LayerRange

HASTY_S = 0.02


def _same_work() -> tuple[Patch, ...]:
    """A hop that is to run other layers than before goes on with what it has."""
    return ((relay, "is_same_work", lambda before, order: True),)


def _due_token() -> tuple[Patch, ...]:
    """Heads send all tokens again, and the client is given them again."""
    real_starts = recovery.starts

    def from_the_first(holdings: Any, needed_from: int) -> Any:
        hops, feed_from = real_starts(holdings, needed_from)
        last = holdings[-1].outbox_start
        return (*hops[:-1], replace(hops[-1], send_from=last)), feed_from

    token = OriginSession.token

    def take_any(self: Any, peer: Any, message: Any, now: float) -> Any:
        if not token(self, peer, message, now):
            self._effects.append(Reply(self.session, Generated(message.token)))

    return (OriginSession, "token", take_any), (session, "starts", from_the_first)


def _class_noticed() -> tuple[Patch, ...]:
    """That layers are computed in another numeric class than at first is not noticed."""
    running_on = RouteSeeker.running_on

    def forget(self: Any, route: Any) -> None:
        running_on(self, route)
        self.exact = True

    return ((RouteSeeker, "running_on", forget),)


def _another_route() -> tuple[Patch, ...]:
    """An answer whose route breaks ends with an error."""

    def fail(self: Any, cause: str, now: float) -> None:
        self._fail(NoRoute(self.model.model_id, (), cause))

    return ((OriginSession, "_reroute", fail),)


def _place_of_results() -> tuple[Patch, ...]:
    """Rows count as computed as soon as the worker has them."""
    accept = Relay._accept

    def count_early(self: Any, s: Any, step: Any) -> None:
        accept(self, s, step)
        s.produced = s.accepted

    return ((Relay, "_accept", count_early),)


def _silence_verdict() -> tuple[Patch, ...]:
    """Nobody's silence is noticed in mid-answer, nor that a hop does not move, nor at all."""

    def nothing(self: Any, *given: Any, **named: Any) -> list[Any]:
        return []

    return (
        (Vigil, "new_alarms", nothing),
        (Judge, "_silent", nothing),
        (OriginSession, "slow_hop", lambda self, busy_at, now: None),
    )


def _patience() -> tuple[Patch, ...]:
    """A hop is given up as soon as it is silent for a little longer than between two frames."""
    usual = world.quick_config

    def hasty() -> Any:
        base = usual()
        routing = replace(
            base.routing,
            silence_soft_s=HASTY_S / 2, silence_soft_gappy_s=HASTY_S / 2,
            silence_hard_s=HASTY_S, silence_hard_gappy_s=HASTY_S,
        )  # fmt: skip
        return replace(base, routing=routing)

    return ((world, "quick_config", hasty),)


def _sign_of_life() -> tuple[Patch, ...]:
    """Who comes with the key of a linked node counts as its copy, though that one is gone."""

    def answered(self: Any, standing: Any, newcomer: int, now: float) -> None:
        self._ports.answered(newcomer)

    return ((Contests, "begin", answered),)


def _word_of_copies() -> tuple[Patch, ...]:
    """Whoever meets a copy of itself, or of two others, keeps it to itself."""

    def close(self: Any, connection: Any, found: Any) -> None:
        connection.close("a copy")

    return (TcpLinks, "_copy_met", close), (TcpLinks, "_copy_seen", lambda self, seen: None)


def _end_of_reading() -> tuple[Patch, ...]:
    """Who reads an answer that was cancelled is not told that it has ended."""

    def cancel(self: Any) -> None:
        if not self._ended:
            self._cancel(self._session)

    return ((GenerationIo, "cancel", cancel),)


def _counted_steps() -> tuple[Patch, ...]:
    """No step needs credit, and a hop takes as many as come."""

    def never(rows: Any) -> bool:
        return False

    return (
        (outbox, "needs_credit", never),
        (hop_session, "needs_credit", never),
        (relay, "needs_credit", never),
        (relay, "unanswered_max", lambda credit_steps: 1 << 30),
    )


def _dial_pauses() -> tuple[Patch, ...]:
    """A machine that does not answer is dialled again at once."""
    return ((AddressBook, "_pause_s", lambda self, candidate, now: 0.05),)


def _pauses_for_the_absent() -> tuple[Patch, ...]:
    """A machine that is held for dead, or has left, is dialled again at once."""
    pause_s = AddressBook._pause_s

    def none(self: Any, candidate: Any, now: float) -> float:
        if candidate.interest in (Interest.ABSENT, Interest.DEPARTED):
            return 0.01
        return pause_s(self, candidate, now)

    return ((AddressBook, "_pause_s", none),)


def _late_words() -> tuple[Patch, ...]:
    """A word about a session that is over is taken for one about a session that runs."""

    def credit(self: Any, peer: Any, message: Any) -> None:
        known = [s for s in self._sessions.values() if s.session == message.session]
        known[0].feed.acknowledged(message.kv_length)
        self._pump(known[0])

    return ((Relay, "credit", credit),)


def _history() -> tuple[Patch, ...]:
    """A new head is told nothing of the tokens before, and takes what it knows for all of them."""

    def of_what_is_known(self: Any, position: int) -> Past:
        return Past((), list(self._ids))

    def keep(self: Any, token: Any) -> None:
        self._ids.append(token.token_id)

    return (
        (session_watch, "histories", lambda *given: []),
        (TokenHistory, "before", of_what_is_known),
        (TokenHistory, "chosen", keep),
    )


def _history_guard() -> tuple[Patch, ...]:
    """A head that is told nothing of the tokens before refuses; nobody tells it."""
    return ((session_watch, "histories", lambda *given: []),)


def _layers_to_spare() -> tuple[Patch, ...]:
    """Whoever would like other layers takes them at once, also who holds its own alone."""
    usual = world.quick_config

    def restless() -> Any:
        base = usual()
        return replace(base, moves=replace(base.moves, look_s=0.1, window_s=0.0))

    def anybody(count: int, holders: Any, copies: int, gain: float) -> Move | None:
        wanted = [Move(h.node, LayerRange(0, h.room_layers)) for h in holders if h.may_move]
        held = {h.node: h.layers for h in holders}
        return next((move for move in wanted if held[move.node] != move.layers), None)

    return (
        (world, "quick_config", restless),
        (mover, "improvement", anybody),
        (mover, "repairs", lambda count, holders, *, may_plan_anew: ()),
        (Mover, "_is_spared", lambda self, h, plan, rivals: True),
    )


_MORE = (
    _entry("same work", "moved boundary", 1, "ids equal the oracle", _same_work),
    _entry("due token", "double death", 1, "each position once", _due_token),
    _entry("class noticed", "another class", 1, "no false end", _class_noticed),
    _entry("another route", "peer death", 1, "every request is answered", _another_route),
    _entry("place of results", "peer death", 1, "kv length agrees", _place_of_results),
    _entry("silence verdict", "silent death", 1, "stall within bounds", _silence_verdict),
    _entry("patience", "three hops", 2, "nobody is punished without evidence", _patience),
    _entry("sign of life", "mixed", 7, "nobody is called a copy", _sign_of_life),
    _entry("word of copies", "cloned identity", 1, "copies are told", _word_of_copies),
    _entry("end of reading", "lost release", 1, "no task is left", _end_of_reading),
    _entry("counted steps", "small outboxes", 5, "queues are short", _counted_steps),
    _entry("dial pauses", "cafe closing time", 1, "dials are paced", _dial_pauses),
    _entry("pauses for the absent", "gateway lost", 1, "bounded", _pauses_for_the_absent),
    _entry("history", "penalties", 1, "ids equal the oracle", _history),
    _entry("history told", "penalties", 1, "reroutes have causes", _history_guard),
    _entry("layers to spare", "just enough memory", 1, "moves keep cover", _layers_to_spare),
    _entry("late words", "mixed", 31, "no fault of our own", _late_words),
)

MUTANTS: dict[str, Ablation] = {**ABLATIONS, **{entry.name: entry for entry in _MORE}}
"""All that can be switched off."""
