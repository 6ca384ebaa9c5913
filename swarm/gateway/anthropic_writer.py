"""Answers in the shape of Anthropic's messages: a body, the events of a stream, errors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from swarm.gateway.answer import Piece
from swarm.gateway.fields import Json
from swarm.gateway.json_calls import CallDelta
from swarm.gateway.responses import ErrorAnswer, named_event, sse_comment
from swarm.gateway.writing import Reply, object_of, whole_calls
from swarm.snapshot import ModelView

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicWriter:
    """One message, in blocks: words, then calls of tools. One block is open at a time."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._answer = reply.answers[0]
        self._id = f"msg_{reply.sessions[0]}"
        self._block: str | None = None
        """What the open block is: `text`, `tool_use`, or none."""
        self._index = 0

    def body(self, pieces: Sequence[Sequence[Piece]]) -> Json:
        text = "".join(piece.text for piece in pieces[0])
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        for number, (name, arguments) in enumerate(whole_calls(pieces[0])):
            call_id = self._reply.call_id(0, number)
            content.append(
                {"type": "tool_use", "id": call_id, "name": name, "input": object_of(arguments)}
            )
        return self._message(content) | {"usage": self._usage(), "swarm": self._reply.swarm()}

    def opening(self) -> bytes:
        begun = self._message([]) | {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(self._answer.order.prompt_ids), "output_tokens": 0},
        }
        return self._event("message_start", message=begun)

    def piece(self, index: int, piece: Piece) -> bytes:
        data = b""
        if piece.text:
            if self._block != "text":
                data += self._end_block() + self._begin_block("text", text="")
            data += self._delta("text_delta", text=piece.text)
        for delta in piece.calls:
            data += self._call(delta)
        return data

    def ending(self) -> bytes:
        stopped = {"stop_reason": self._reason(), "stop_sequence": self._answer.stop_string}
        return (
            self._end_block()
            + self._event(
                "message_delta", delta=stopped, usage=self._usage(), swarm=self._reply.swarm()
            )
            + self._event("message_stop")
        )

    def comment(self, text: str) -> bytes:
        """For people who look on, and the event that Anthropic's clients expect."""
        return sse_comment(text) + self._event("ping")

    def failure(self, error: ErrorAnswer) -> bytes:
        return named_event("error", error_json(error))

    def _call(self, delta: CallDelta) -> bytes:
        data = b""
        if delta.name is not None:
            call_id = self._reply.call_id(0, delta.index)
            data += self._end_block()
            data += self._begin_block("tool_use", id=call_id, name=delta.name, input={})
        if delta.arguments:
            data += self._delta("input_json_delta", partial_json=delta.arguments)
        return data

    def _begin_block(self, kind: str, **fields: object) -> bytes:
        self._block = kind
        block = {"type": kind, **fields}
        return self._event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **fields: str) -> bytes:
        return self._event("content_block_delta", index=self._index, delta={"type": kind, **fields})

    def _end_block(self) -> bytes:
        if self._block is None:
            return b""
        self._block = None
        self._index += 1
        return self._event("content_block_stop", index=self._index - 1)

    def _event(self, kind: str, **fields: object) -> bytes:
        return named_event(kind, {"type": kind, **fields})

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._reply.call.model,
            "content": content,
            "stop_reason": self._reason(),
            "stop_sequence": self._answer.stop_string,
        }

    def _reason(self) -> str | None:
        reason = self._answer.finish_reason
        if reason == "stop" and self._answer.stop_string is not None:
            return "stop_sequence"
        return _REASONS.get(reason, reason) if reason else None

    def _usage(self) -> Json:
        """Tokens that the hops had already are counted beside the others, not among them."""
        usage = self._reply.usage()
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.completion_tokens,
        }


def error_json(error: ErrorAnswer) -> Json:
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    told = {"type": _ERROR_TYPES.get(error.status, kind), "message": error.message}
    return {"type": "error", "error": told}


def model_json(view: ModelView, listed_as: str, created: int) -> Json:
    """An entry of `GET /v1/models` as Anthropic has it."""
    return {
        "type": "model",
        "id": listed_as,
        "display_name": view.spec.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
    }


def models_json(listed: Sequence[tuple[str, ModelView]], created: int) -> Json:
    """`GET /v1/models`: all on one page."""
    data = [model_json(view, label, created) for label, view in listed]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}
