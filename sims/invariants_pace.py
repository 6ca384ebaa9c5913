"""Invariants about time lost: pauses and reroutes are no more than what befell an answer's own way.

Only faults to machines that the answer had to do with count, and those between two of them.
"""

from __future__ import annotations

from collections import Counter

from sims.invariants import Invariant
from sims.request import Request
from sims.truth import Fault
from sims.world import World
from swarm.effects import Failed, Finished, Generated, SessionEvent, Started

DETECTION_S = 0.45
"""Silence that cuts over, on a link that showed gaps."""
STUCK_S = 4.5
"""A hop that answers and does not move."""
STUCK_KINDS = ("wedged", "slow", "lost")
"""Faults that show only by that."""
SETTLING_S = 0.5
"""Planning, opening, the first token of the new route, on any profile but WAN."""
GAPS_S = 1.0
"""On Wi-Fi and where packets are lost: two verdicts over retransmissions, one after the other. What
they cut over to must be rebuilt as after a loss."""


def cost_s(fault: Fault) -> float:
    """How long one fault may hold up an answer until its next route is sought."""
    return STUCK_S if fault.kind in STUCK_KINDS else DETECTION_S + SETTLING_S


def reroutes_explained(world: World, request: Request, now_s: float) -> int:
    """How many hops an answer may have lost by now. A gap on a path of the origin itself, and there
    may be one at any time, takes all hops of a route at once."""
    parties = world.trails.of(request)
    harm = world.truth.harm(parties, request.asked_s - STUCK_S, now_s)
    lasted_s = now_s - request.asked_s
    gap_count = 1 + int(lasted_s / GAPS_S) if world.has_gaps(*parties) else 0
    return CausedReroutes.FREE + CausedReroutes.PER_FAULT * len(harm) + gap_count


class CausedReroutes(Invariant):
    name = "reroutes have causes"
    says = "an answer is not re-routed more often than faults to its own machines and links explain"
    FREE = 2
    PER_FAULT = 3

    def on_event(self, request: Request, event: SessionEvent) -> None:
        if not isinstance(event, Finished | Failed):
            return
        allowed = reroutes_explained(self.world, request, self.world.now_s)
        if event.stats.reroutes > allowed:
            self.violated(f"{request}: {event.stats.reroutes} reroutes, {allowed} are explained")


class BoundedStall(Invariant):
    """The pause between two tokens, by what befell the machines that it had to do with."""

    name = "stall within bounds"
    says = "a pause is no longer than detection, rebuilding and the loss of cover explain"

    def on_end(self) -> None:
        for request in self.world.requests:
            before_s = request.asked_s
            for heard in request.heard:
                if isinstance(heard.event, Generated):
                    self._check(request, before_s, heard.at_s)
                    before_s = heard.at_s
                elif isinstance(heard.event, Started) and heard.event.epoch == 1:
                    before_s = heard.at_s

    def _check(self, request: Request, start_s: float, stop_s: float) -> None:
        """Faults shortly before count: what they set off may still be going on."""
        if stop_s - start_s <= SETTLING_S or self.world.is_tight:
            return  # a tight one may wait for others to end, which `EveryAnswer` bounds
        world = self.world
        parties = world.trails.of(request)
        harm = world.truth.harm(parties, start_s - STUCK_S, stop_s)
        costs_s = sum(cost_s(fault) + self._rebuild_s(request) for fault in harm)
        vain = world.trails.vain_openings(request, start_s, stop_s)
        costs_s += vain * (world.config.routing.open_timeout_s + SETTLING_S)
        lost_s = world.cover.lost_s(request.origin, start_s, stop_s)
        gaps_s = GAPS_S + self._rebuild_s(request) if world.has_gaps(*parties) else 0.0
        allowed_s = self._step_s(request, start_s, stop_s) + costs_s + lost_s + gaps_s
        if stop_s - start_s > allowed_s:
            kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(f.kind for f in harm).items())
            self.violated(
                f"{request}: {stop_s - start_s:.3f} s without a token at {start_s:.3f} s,"
                f" {allowed_s:.3f} s are explained (by {kinds or 'no fault'})"
            )

    def _step_s(self, request: Request, start_s: float, stop_s: float) -> float:
        """A token, or a first one after the whole prompt, beside all others that ran then."""
        beside = sum(
            other.asked_s <= stop_s and (other.ended_s is None or other.ended_s >= start_s)
            for other in self.world.requests
            if other is not request or start_s <= self._begun_s(request)
        )
        return SETTLING_S + self._rebuild_s(request) * beside

    def _begun_s(self, request: Request) -> float:
        """When its first route was open."""
        return next(
            (h.at_s for h in request.heard if isinstance(h.event, Started)), request.asked_s
        )

    def _rebuild_s(self, request: Request) -> float:
        """Every position through every layer at the pace of the slowest machine."""
        layers = self.world.model.layer_count
        rows = len(request.order.prompt_ids) + request.order.max_tokens
        slowest = max(
            node.worker.speed.decode_s * node.worker.slowness for node in self.world.nodes
        )
        return rows * layers * slowest
