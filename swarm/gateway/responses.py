"""What all answers share: events, errors with their statuses, the entries of models. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from swarm.errors import (
    CapacityError,
    LinkError,
    NoRoute,
    RequestError,
    RerouteLimitReached,
    RouteError,
    SwarmError,
)
from swarm.snapshot import ModelView

Json = dict[str, Any]


def sse(data: Json, event: str = "") -> bytes:
    """One server-sent event, named where a client should tell it from others."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def named_event(name: str, data: Json) -> bytes:
    """One server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + sse(data)


def sse_comment(text: str) -> bytes:
    """A comment line, which clients skip; it only shows that the connection lives."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """How an error looks to a client. `retry`: it may go away by itself."""

    status: int
    message: str
    kind: str
    code: str | None
    param: str | None = None
    retry: bool = False
    retry_after_s: int | None = None
    """When, where that is known better than by the config."""

    def json(self) -> Json:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


class SseVoice:
    """How a stream of server-sent events talks beside its events."""

    content_type = "text/event-stream; charset=utf-8"

    def comment(self, text: str) -> bytes:
        return sse_comment(text)

    def failure(self, error: ErrorAnswer) -> bytes:
        return sse(error.json())


def error_answer(error: SwarmError) -> ErrorAnswer:
    """Status and body for an error of ours."""
    text = str(error)
    match error:
        case RequestError():
            kind = "rate_limit_error" if error.status == 429 else "invalid_request_error"
            return ErrorAnswer(
                error.status, text, kind, error.code, error.param, retry=error.status == 429,
                retry_after_s=error.retry_after_s,
            )  # fmt: skip
        case NoRoute():
            return ErrorAnswer(503, _with_missing(error), "server_error", "no_route", retry=True)
        case RerouteLimitReached():
            return ErrorAnswer(503, text, "server_error", "reroute_limit", retry=True)
        case RouteError():
            return ErrorAnswer(503, text, "server_error", "no_route", retry=True)
        case CapacityError():
            return ErrorAnswer(503, text, "server_error", "capacity", retry=True)
        case LinkError():
            return ErrorAnswer(503, text, "server_error", "link", retry=True)
        case _:
            return ErrorAnswer(500, text, "server_error", "generation_failed")


def not_covered(view: ModelView) -> NoRoute:
    """The error for a model that is known but not whole at present."""
    what = "some layers are" if view.missing else "its embedding or head is"
    return NoRoute(
        view.spec.model_id,
        view.missing,
        f"{view.spec.name} cannot answer now: {what} served by nobody reachable",
    )


def _with_missing(error: NoRoute) -> str:
    named = [str(layers) for layers in error.missing if str(layers) not in str(error)]
    return f"{error} (missing layers {', '.join(named)})" if named else str(error)


def model_json(view: ModelView, listed_as: str, created: int) -> Json:
    """An entry of `GET /v1/models`."""
    return {
        "id": listed_as,
        "object": "model",
        "created": created,
        "owned_by": "swarm",
        "context_length": view.spec.context_length,
    }
