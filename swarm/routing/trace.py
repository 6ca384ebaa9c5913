"""Where the time of a session goes: its routes one by one, hop by hop. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.messages import HopTimes
from swarm.notes import FieldValue
from swarm.snapshot import HopTrace, LegView
from swarm.terms import Epoch, NodeId, Route, StepTimes, short

LEGS_KEPT = 8
"""Of one session; the oldest are forgotten first."""


@dataclass(slots=True)
class _Leg:
    route: Route
    epoch: Epoch
    position: int
    began_at: float
    token_at: float | None = None
    first_token_s: float | None = None
    token_count: int = 0
    tokens_s: float = 0.0
    hops: dict[NodeId, HopTrace] = field(default_factory=dict)

    def view(self) -> LegView:
        hops = tuple(self.hops[node] for node in self.route.nodes if node in self.hops)
        return LegView(
            self.route, self.epoch, self.position, self.first_token_s, self.token_count,
            self.tokens_s, hops,
        )  # fmt: skip


class SessionTrace:
    """One session's, kept by its origin."""

    def __init__(self) -> None:
        self._legs: list[_Leg] = []

    def resumed(self, route: Route, epoch: Epoch, position: int, now: float) -> None:
        """All hops of a route are open, and rows are fed."""
        self._legs.append(_Leg(route, epoch, position, now))
        del self._legs[:-LEGS_KEPT]

    def token(self, now: float) -> None:
        leg = self._legs[-1]
        if leg.token_at is None:
            leg.first_token_s = now - leg.began_at
        else:
            leg.token_count += 1
            leg.tokens_s += now - leg.token_at
        leg.token_at = now

    def hop_said(self, node: NodeId, said: HopTimes) -> None:
        """Taken if it is about the present route and makes sense."""
        leg = self._legs[-1] if self._legs else None
        if leg is None or leg.epoch != said.epoch or leg.route.index_of(node) is None:
            return
        known = leg.hops.get(node, HopTrace(node, StepTimes(), StepTimes()))
        if _is_later(said.prompt, known.prompt) and _is_later(said.tokens, known.tokens):
            leg.hops[node] = HopTrace(node, said.prompt, said.tokens)

    def figures(self) -> list[dict[str, FieldValue]]:
        """Of the present route, a note's fields for each hop: totals in milliseconds. The head's
        also say what no hop accounts for."""
        if not self._legs:
            return []
        leg = self._legs[-1].view()
        rows = [_figures(hop) for hop in leg.hops]
        if leg.wire_s is not None:
            rows[-1]["wire_ms"] = _ms(leg.wire_s * leg.hops[-1].tokens.rows)
        return rows

    def views(self) -> tuple[LegView, ...]:
        return tuple(leg.view() for leg in self._legs)


def _is_later(said: StepTimes, known: StepTimes) -> bool:
    return (
        said.rows >= known.rows
        and said.held_s >= known.held_s
        and said.compute_s >= known.compute_s
    )


def _figures(hop: HopTrace) -> dict[str, FieldValue]:
    prompt, tokens = hop.prompt, hop.tokens
    return {
        "node": short(hop.node),
        "tokens": tokens.rows,
        "wait_ms": _ms(tokens.wait_s),
        "compute_ms": _ms(tokens.compute_s),
        "prompt_rows": prompt.rows,
        "prompt_wait_ms": _ms(prompt.wait_s),
        "prompt_compute_ms": _ms(prompt.compute_s),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
