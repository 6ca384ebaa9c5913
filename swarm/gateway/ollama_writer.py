"""Answers in the shapes of Ollama's API: one object, or one a line. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from swarm.gateway.answer import Piece
from swarm.gateway.calls import Endpoint
from swarm.gateway.fields import Json
from swarm.gateway.responses import ErrorAnswer
from swarm.gateway.writing import Reply, object_of, whole_calls

NANOSECONDS = 1_000_000_000


class OllamaWriter:
    """One answer. A tool call is told when it is whole, as Ollama does."""

    content_type = "application/x-ndjson"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._is_chat = reply.call.endpoint is Endpoint.OLLAMA_CHAT
        self._calls: list[Piece] = []

    def body(self, pieces: Sequence[Sequence[Piece]]) -> Json:
        if not pieces:
            return self._part("", []) | {"done": True, "done_reason": "load"}
        text = "".join(piece.text for piece in pieces[0])
        return self._part(text, pieces[0]) | self._end()

    def opening(self) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        if piece.calls:
            self._calls.append(piece)
        return _line(self._part(piece.text, []) | {"done": False}) if piece.text else b""

    def ending(self) -> bytes:
        calls = _line(self._part("", self._calls) | {"done": False}) if self._calls else b""
        return calls + _line(self._part("", []) | self._end())

    def comment(self, text: str) -> bytes:
        """Lines are answers: there is nothing that clients skip."""
        return b""

    def failure(self, error: ErrorAnswer) -> bytes:
        return _line(error_json(error))

    def _part(self, text: str, pieces: Sequence[Piece]) -> Json:
        told: Json = {
            "model": self._reply.call.model,
            "created_at": datetime.fromtimestamp(self._reply.created, UTC).isoformat()[:19] + "Z",
        }
        if not self._is_chat:
            return told | {"response": text}
        message: Json = {"role": "assistant", "content": text}
        if calls := whole_calls(pieces):
            message["tool_calls"] = [
                {"function": {"index": number, "name": name, "arguments": object_of(arguments)}}
                for number, (name, arguments) in enumerate(calls)
            ]
        return told | {"message": message}

    def _end(self) -> Json:
        (answer,) = self._reply.answers
        usage = self._reply.usage()
        first_s, all_s = answer.first_token_s, answer.duration_s
        return {
            "done": True,
            "done_reason": "length" if answer.finish_reason == "length" else "stop",
            "total_duration": int(all_s * NANOSECONDS),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": int(first_s * NANOSECONDS),
            "eval_count": usage.completion_tokens,
            "eval_duration": int((all_s - first_s) * NANOSECONDS),
            "swarm": self._reply.swarm(),
        }


def error_json(error: ErrorAnswer) -> Json:
    return {"error": error.message}


def _line(values: Json) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
