"""Answers in OpenAI's shapes: bodies, stream chunks, logprobs and errors. Pure.

Beyond OpenAI: `prompt_token_ids` and `token_ids` (as vLLM places them) when the client asked for
ids, and a `swarm` object beside each `usage`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from swarm.gateway.answer import Answer, Piece
from swarm.gateway.openai import Call, Endpoint
from swarm.gateway.token_table import TokenTable
from swarm.snapshot import ModelView
from swarm.terms import SampledToken, TokenLogprob

Json = dict[str, Any]

LOGPROB_MIN = -9999.0
"""Stands for minus infinity, which JSON does not have."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of one response repeats."""

    call: Call
    request_id: str
    created: int
    model: str

    @property
    def is_chat(self) -> bool:
        return self.call.endpoint is Endpoint.CHAT


def body(envelope: Envelope, answer: Answer, pieces: Sequence[Piece]) -> Json:
    """The whole answer as one JSON object."""
    text = "".join(piece.text for piece in pieces)
    tokens = [token for piece in pieces for token in piece.tokens]
    choice: Json = {"index": 0, "finish_reason": answer.finish_reason}
    if envelope.is_chat:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    choice["logprobs"] = _logprobs(envelope, answer.text_side, tokens, 0)
    result = _frame(envelope, choice, chunk=False)
    if envelope.call.return_token_ids:
        choice["token_ids"] = [token.token_id for token in tokens]
        _give_prompt_ids(envelope, result, choice, answer)
    return result | {"usage": answer.usage(), "swarm": answer.swarm()}


class ChunkWriter:
    """The chunks of a stream, in order. Keeps what later chunks of a completion count from."""

    def __init__(self, envelope: Envelope, answer: Answer) -> None:
        self._envelope = envelope
        self._answer = answer
        self._text_offset = 0

    def opening(self) -> Json | None:
        """The first chunk: the role, and the prompt's ids for who asked; None when neither."""
        envelope = self._envelope
        if not envelope.is_chat and not envelope.call.return_token_ids:
            return None
        choice = self._choice("", [], None)
        if envelope.is_chat:
            choice["delta"] = {"role": "assistant", "content": ""}
        result = self._framed(choice)
        if envelope.call.return_token_ids:
            _give_prompt_ids(envelope, result, choice, self._answer)
        return result

    def chunk(self, piece: Piece) -> Json | None:
        """The chunk for a piece; None when it would say nothing."""
        call = self._envelope.call
        told = piece.tokens and (call.return_token_ids or call.sampling.logprobs is not None)
        if not piece.text and not told and piece.finish_reason is None:
            return None
        choice = self._choice(piece.text, piece.tokens, piece.finish_reason)
        if piece.tokens and self._answer.text_side:
            self._text_offset += sum(
                len(_token_text(self._answer.text_side, token.token_id)) for token in piece.tokens
            )
        return self._framed(choice)

    def usage(self) -> Json | None:
        """The last chunk, for who asked with `stream_options.include_usage`."""
        if not self._envelope.call.include_usage:
            return None
        result = _frame(self._envelope, None, chunk=True)
        return result | {"usage": self._answer.usage(), "swarm": self._answer.swarm()}

    def _choice(self, text: str, tokens: Sequence[SampledToken], reason: str | None) -> Json:
        envelope = self._envelope
        choice: Json = {"index": 0, "finish_reason": reason}
        if envelope.is_chat:
            choice["delta"] = {"content": text} if text or not reason else {}
        else:
            choice["text"] = text
        choice["logprobs"] = (
            _logprobs(envelope, self._answer.text_side, tokens, self._text_offset)
            if tokens
            else None
        )
        if envelope.call.return_token_ids:
            choice["token_ids"] = [token.token_id for token in tokens]
        return choice

    def _framed(self, choice: Json) -> Json:
        result = _frame(self._envelope, choice, chunk=True)
        return result | {"usage": None} if self._envelope.call.include_usage else result


def sse(data: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def sse_comment(text: str) -> bytes:
    """A comment line, which clients skip; it only shows that the connection lives."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


def _frame(envelope: Envelope, choice: Json | None, *, chunk: bool) -> Json:
    return {
        "id": envelope.request_id,
        "object": envelope.call.endpoint.value + (".chunk" if chunk and envelope.is_chat else ""),
        "created": envelope.created,
        "model": envelope.model,
        "choices": [] if choice is None else [choice],
    }


def _give_prompt_ids(envelope: Envelope, result: Json, choice: Json, answer: Answer) -> None:
    place = result if envelope.is_chat else choice
    place["prompt_token_ids"] = list(answer.order.prompt_ids)


def _logprobs(
    envelope: Envelope, text: TokenTable | None, tokens: Sequence[SampledToken], offset: int
) -> Json | None:
    if envelope.call.sampling.logprobs is None:
        return None
    if envelope.is_chat:
        return {"content": [_chat_logprob(text, token) for token in tokens], "refusal": None}
    names = [_token_text(text, token.token_id) for token in tokens]
    offsets = [offset]
    for name in names:
        offsets.append(offsets[-1] + len(name))
    return {
        "tokens": names,
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {_token_text(text, top.token_id): _finite(top.logprob) for top in token.top}
            for token in tokens
        ],
        "text_offset": offsets[:-1],
    }


def _chat_logprob(text: TokenTable | None, token: SampledToken) -> Json:
    own = _named_logprob(text, TokenLogprob(token.token_id, _finite(token.logprob)))
    return own | {"top_logprobs": [_named_logprob(text, top) for top in token.top]}


def _named_logprob(text: TokenTable | None, entry: TokenLogprob) -> Json:
    return {
        "token": _token_text(text, entry.token_id),
        "logprob": _finite(entry.logprob),
        "bytes": list(text.token_bytes(entry.token_id)) if text else None,
    }


def _token_text(text: TokenTable | None, token_id: int) -> str:
    if text is None:
        return f"token_id:{token_id}"
    return text.token_bytes(token_id).decode("utf-8", "replace")


def _finite(logprob: float | None) -> float:
    return LOGPROB_MIN if logprob is None else max(LOGPROB_MIN, logprob)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """How an error looks to a client. `retry`: it may go away by itself."""

    status: int
    message: str
    kind: str
    code: str | None
    param: str | None = None
    retry: bool = False

    def json(self) -> Json:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def error_answer(error: SwarmError) -> ErrorAnswer:
    """Status and body for an error of ours."""
    text = str(error)
    match error:
        case RequestError():
            kind = "rate_limit_error" if error.status == 429 else "invalid_request_error"
            return ErrorAnswer(
                error.status, text, kind, error.code, error.param, retry=error.status == 429
            )
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
