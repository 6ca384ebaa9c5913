"""The question behind `GET /swarm/explain`, and its answer as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.errors import RequestError
from swarm.snapshot import HopCost, RouteCost
from swarm.terms import ModelSpec, NodeId

Json = dict[str, Any]
ROUTES_MAX = 8
TOKENS_MAX = 1 << 24
FIELDS = {"prompt_tokens": (512, TOKENS_MAX), "max_tokens": (256, TOKENS_MAX),
          "routes": (3, ROUTES_MAX)}  # fmt: skip
"""Each with its default and its largest value."""


@dataclass(frozen=True, slots=True)
class Question:
    model: str | None
    """None: the only one that is covered."""
    prompt_tokens: int
    max_tokens: int
    routes: int

    @staticmethod
    def read(query: Mapping[str, str]) -> Question:
        """Raises RequestError for what is not known or no such number."""
        for name in query:
            if name not in FIELDS and name != "model":
                known = ", ".join(["model", *FIELDS])
                raise RequestError(f"unknown field {name!r}; known: {known}", param=name)
        numbers = [
            _number(name, query.get(name), default, most)
            for name, (default, most) in FIELDS.items()
        ]
        return Question(query.get("model"), *numbers)


def _number(name: str, text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not (is_number and 1 <= int(text) <= most):
        raise RequestError(f"{name} must be a number from 1 to {most}", param=name)
    return int(text)


def explain_json(
    spec: ModelSpec, question: Question, found: Sequence[RouteCost], names: Mapping[NodeId, str]
) -> Json:
    """Times in milliseconds; those of hops without `once` in their name are of each token."""
    return {
        "model": spec.name,
        "prompt_tokens": question.prompt_tokens,
        "max_tokens": question.max_tokens,
        "routes": [_route(cost, names) for cost in found],
    }


def _route(cost: RouteCost, names: Mapping[NodeId, str]) -> Json:
    token_s = cost.route.predicted_token_s
    return {
        "total_ms": _ms(cost.total_s),
        "token_ms": _ms(token_s),
        "tokens_per_s": round(1 / token_s, 2) if token_s > 0 else None,
        "first_token_ms": _ms(cost.first_token_s),
        "expected_tokens": cost.expected_tokens,
        "back_ms": _ms(cost.back_s),
        "hops": [_hop(hop, names) for hop in cost.hops],
    }


def _hop(hop: HopCost, names: Mapping[NodeId, str]) -> Json:
    return {
        "node": hop.node,
        "name": names.get(hop.node, ""),
        "start": hop.layers.start,
        "stop": hop.layers.stop,
        "queue_ms": _ms(hop.queue_s),
        "compute_ms": _ms(hop.compute_s),
        "link_ms": _ms(hop.link_s),
        "once_prefill_ms": _ms(hop.prefill_s),
        "once_rows_ms": _ms(hop.bulk_s),
        "once_dial_ms": _ms(hop.dial_s),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
