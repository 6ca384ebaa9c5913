"""Safeguards switched off one at a time, to prove that the invariants see what they guard against.

Each ablation replaces one piece of production code while a simulation runs; no production code
knows of it. `scripts/sim --ablations` looks for the first seed that catches each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from sims import node as sim_node
from sims.worker import SimWorker
from swarm.effects import ToWorker
from swarm.gossip.hearsay import Hearsay
from swarm.gossip.membership import Membership
from swarm.gossip.own import Own
from swarm.hosting import Hosting
from swarm.link.admission import ReplayCache
from swarm.messages import PREFIX_HASH_BYTES, Run
from swarm.mover import Mover
from swarm.node import NodeCore
from swarm.routing import opening, recovery, session
from swarm.routing.hop_session import HopSession
from swarm.routing.origins import Origins
from swarm.routing.outbox import Feed
from swarm.routing.relay import Relay
from swarm.routing.relay_rules import rows_of
from swarm.shard.kv_blocks import KvBlocks
from swarm.terms import MemberState, Route

Patch = tuple[Any, str, Any]
"""Class or module, name of the attribute, what takes its place."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """`seed` of `scenario` is known to catch it, and `catcher` is the invariant that then breaks;
    some show in the story itself, which finds the world other than it must be."""

    name: str
    says: str
    scenario: str
    seed: int
    patches: Callable[[], tuple[Patch, ...]]
    catcher: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While this lasts the safeguard is off, in this process only."""
        with ExitStack() as stack:
            for owner, attribute, replacement in self.patches():
                stack.enter_context(mock.patch.object(owner, attribute, replacement))
            yield


def _blind_worker() -> Patch:
    """A stage that computes whatever it is given: the seam's own check is another safeguard."""
    compute = SimWorker._compute

    def run(self: SimWorker, job: Any, order: Run) -> Any:
        job.chain.length = order.position
        return compute(self, job, order)

    return SimWorker, "_compute", run


def _epoch_check() -> tuple[Patch, ...]:
    """Messages of an older route count as if they were of the present one."""
    step, opened = Relay.step, session.OriginSession.opened

    def any_step(self: Any, peer: Any, message: Any, now: float) -> None:
        s = self._sessions.get((message.origin or peer, message.session))
        if s is not None and message.epoch < s.epoch:
            message = replace(message, epoch=s.epoch)
        step(self, peer, message, now)

    def any_opened(self: Any, peer: Any, message: Any, now: float) -> None:
        opened(self, peer, replace(message, epoch=self.epoch), now)

    return (Relay, "step", any_step), (session.OriginSession, "opened", any_opened)


def _position_trim() -> tuple[Patch, ...]:
    """Hops send from position 0 after a reroute, and rows that a hop has already are run again."""
    real_starts = recovery.starts

    def from_zero(holdings: Any, needed_from: int) -> Any:
        hops, feed_from = real_starts(holdings, needed_from)
        return tuple(replace(hop, send_from=0) for hop in hops), feed_from

    def accept(self: Any, s: HopSession, step: Any) -> None:
        rows = rows_of(step)
        if rows.position > s.accepted:
            self._send(s.origin, self._gap_of(s, rows.position))
            return
        s.await_answer(rows)
        s.accepted = rows.stop
        self._effects.append(ToWorker(s.run(rows, self._grow(s, rows.stop) or b"")))

    return (session, "starts", from_zero), (Relay, "_accept", accept), _blind_worker()


def _gap_refusal() -> tuple[Patch, ...]:
    """Rows that begin beyond what a hop holds are taken all the same."""

    def accept(self: Any, s: HopSession, step: Any) -> None:
        rows = rows_of(step)
        if rows.stop > s.accepted:
            rows = rows.from_position(max(rows.position, s.accepted))
            s.await_answer(rows)
            s.accepted = rows.stop
            self._effects.append(ToWorker(s.run(rows, self._grow(s, rows.stop) or b"")))

    def resume(self: Any, peer: Any, message: Any) -> None:
        s = self._sessions.get((peer, message.session))
        if s is not None and message.kv_length not in (0, s.accepted):
            message = replace(message, kv_length=s.accepted)
        real_resume(self, peer, message)

    real_resume = Relay.resume
    return (Relay, "_accept", accept), (Relay, "resume", resume), _blind_worker()


def _incarnation_persistence() -> tuple[Patch, ...]:
    """The restart counter begins at 1 after every start."""
    run_once = sim_node.SimNode._run_once

    async def forgetful(self: sim_node.SimNode) -> bool:
        self.disk.incarnation = 0
        return await run_once(self)

    return ((sim_node.SimNode, "_run_once", forgetful),)


def _confirmation_rule() -> tuple[Patch, ...]:
    """What others say of a node's death is believed without looking."""
    claimed: Any = Hearsay._claimed

    def believe(self: Any, claim: Any, now: float) -> None:
        claimed(self, claim, now)
        entry = self._members.get(claim.subject)
        if entry is None or entry.node == self._members.me or entry.is_buried:
            return
        if claim.incarnation == entry.incarnation:
            if entry.state is MemberState.ALIVE:
                self._judge._suspect(entry, now)
            self._judge._die(entry.node, now)

    return ((Hearsay, "_claimed", believe),)


def _loop_lag_correction() -> tuple[Patch, ...]:
    """The time in which a node itself stood still counts as the silence of others."""
    return ((NodeCore, "loop_lag", lambda self, lag_s, now: None),)


def _outbox_budget() -> tuple[Patch, ...]:
    """Rows are kept for resending without end."""
    return ((Relay, "_keep_outboxes_small", lambda self: None),)


def _replay_window() -> tuple[Patch, ...]:
    """First messages of handshakes may be used again."""
    return ((ReplayCache, "is_fresh", lambda self, ephemeral, now: True),)


def _abandoned_session_refusal() -> tuple[Patch, ...]:
    """An origin that hears of a session it does not know lets the hop keep it."""
    progress = Origins.progress

    def keep(self: Any, peer: Any, message: Any, now: float) -> None:
        entries = tuple(replace(entry, is_yours=False) for entry in message.sessions)
        progress(self, peer, replace(message, sessions=entries), now)

    return ((Origins, "progress", keep),)


def _credits() -> tuple[Patch, ...]:
    """A feeder sends all it has at once."""
    take = Feed.take

    def flood(self: Any, outbox: Any, byte_budget: int) -> Any:
        self._window = 1 << 30
        return take(self, outbox, 1 << 60)

    return ((Feed, "take", flood),)


def _tombstones() -> tuple[Patch, ...]:
    """The dead are forgotten at once."""

    def forget(self: Any, now: float) -> list[Any]:
        buried = [e for e in self.entries() if e.is_buried and not e.linked and e.node != self.me]
        return [self._forget(entry) for entry in buried]

    return ((Membership, "forget_expired", forget),)


def _refutation() -> tuple[Patch, ...]:
    """A node that hears of its own death says nothing."""
    return ((Own, "refute", lambda self, said, now: False),)


def _intention_before_load() -> tuple[Patch, ...]:
    """A node loads the layers it likes best without a word to those that choose beside it, and no
    move mends that later."""
    intend = Hosting._intend

    def load(self: Any, h: Any, inspected: Any, others: Any, now: float) -> None:
        intend(self, h, inspected, others, now)
        if h.layers is not None and h.deadline is not None:
            self._load(h, inspected, h.layers)

    return (Hosting, "_intend", load), (Mover, "news", lambda self, now: None)


def _prefix_salt() -> tuple[Patch, ...]:
    """Blocks are found by ids alone, whichever kernels made the rows that came in."""

    def unsalted(route: Route) -> tuple[bytes, ...]:
        return tuple(bytes(PREFIX_HASH_BYTES) for _ in route.hops)

    return (opening, "salts_of", unsalted), (session, "salts_of", unsalted)


def _shared_blocks() -> tuple[Patch, ...]:
    """Who leaves a session frees its blocks, whoever else has them in a table."""
    drop = KvBlocks._drop

    def free(self: Any, blocks: Any) -> None:
        for block in blocks:
            self._uses[block] = 1
        drop(self, blocks)

    return ((KvBlocks, "_drop", free),)


def _entry(
    name: str, scenario: str, seed: int, catcher: str, patches: Callable[[], tuple[Patch, ...]]
) -> Ablation:
    return Ablation(name, patches.__doc__ or "", scenario, seed, patches, catcher)


STORY = "assertionerror"
_ALL = (
    _entry("epoch check", "moved boundary", 66, "credits are kept", _epoch_check),
    _entry("position trim", "peer death", 1, "reroutes have causes", _position_trim),
    _entry("gap refusal", "lost step", 1, "reroutes have causes", _gap_refusal),
    _entry("incarnation persistence", "rolling restart", 1, "lives are told apart",
           _incarnation_persistence),
    _entry("confirmation rule", "half-deaf accuser", 1, "no living node is buried",
           _confirmation_rule),
    _entry("loop-lag correction", "stalled loops", 16, "nobody is punished without evidence",
           _loop_lag_correction),
    _entry("outbox budget", "small outboxes", 1, "outboxes within budget", _outbox_budget),
    _entry("replay window", "replayed hello", 1, STORY, _replay_window),
    _entry("abandoned-session refusal", "lost release", 1, "nothing is left",
           _abandoned_session_refusal),
    _entry("credits", "small outboxes", 1, "credits are kept", _credits),
    _entry("tombstones", "mixed", 1, "the dead stay dead", _tombstones),
    _entry("refutation", "mixed", 1, "views converge", _refutation),
    _entry("intention before load", "just enough memory", 1, STORY, _intention_before_load),
    _entry("prefix salt", "chat", 2, "ids equal the oracle", _prefix_salt),
    _entry("shared blocks", "full house", 1, "nobody is punished without evidence", _shared_blocks),
)  # fmt: skip

ABLATIONS: dict[str, Ablation] = {ablation.name: ablation for ablation in _ALL}
