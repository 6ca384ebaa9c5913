"""Answers in the shape of OpenAI's `/v1/responses`: a body, or numbered events. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.gateway.answer import Piece
from swarm.gateway.fields import Json
from swarm.gateway.json_calls import CallDelta
from swarm.gateway.openai_writer import chat_logprobs
from swarm.gateway.responses import ErrorAnswer, SseVoice, error_answer, named_event
from swarm.gateway.writing import Reply

_INCOMPLETE = {"length": "max_output_tokens"}
_STATIC: Json = {
    "background": False,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


class ResponsesWriter(SseVoice):
    """One response: items of words and of calls, in the order in which they came.

    The last item is open while it grows. A whole body is put together in the same way as the
    events of a stream, so that both say the same.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._answer = reply.answers[0]
        self._id = f"resp_{reply.sessions[0]}"
        self._number = 0
        self._items: list[Json] = []
        self._calls = 0
        self._is_open = False

    def body(self, pieces: Sequence[Sequence[Piece]]) -> Json:
        for piece in pieces[0]:
            self.piece(0, piece)
        self._end_item()
        return self._response(self._status())

    def opening(self) -> bytes:
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, index: int, piece: Piece) -> bytes:
        data = b""
        logprobs = self._logprobs(piece)
        if piece.text or logprobs:
            data += self._open_message()
            place = self._place(len(self._items) - 1)
            part = self._items[-1]["content"][0]
            part["text"] += piece.text
            part["logprobs"] += logprobs
            data += self._event(
                "response.output_text.delta",
                **place, content_index=0, delta=piece.text, logprobs=logprobs,
            )  # fmt: skip
        for delta in piece.calls:
            data += self._call(delta)
        return data

    def ending(self) -> bytes:
        data = self._end_item()
        status = self._status()
        return data + self._event(f"response.{status}", response=self._response(status))

    def failure(self, error: ErrorAnswer) -> bytes:
        told = {"code": error.code or error.kind, "message": error.message}
        response = self._response("failed") | {"error": told}
        return self._event("response.failed", response=response)

    # ------------------------------------------------------------ items

    def _open_message(self) -> bytes:
        if self._is_open and self._items[-1]["type"] == "message":
            return b""
        data = self._end_item()
        part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item: Json = {"type": "message", "role": "assistant", "content": []}
        data += self._begin_item("msg", item)
        data += self._event(
            "response.content_part.added",
            **self._place(len(self._items) - 1), content_index=0, part=_copied(part),
        )  # fmt: skip
        self._items[-1]["content"] = [part]
        return data

    def _call(self, delta: CallDelta) -> bytes:
        data = b""
        if delta.name is not None:
            data += self._end_item()
            call_id = self._reply.call_id(0, delta.index)
            item = {"type": "function_call", "call_id": call_id, "name": delta.name}
            data += self._begin_item("fc", item | {"arguments": ""})
        if not delta.arguments:
            return data
        self._items[-1]["arguments"] += delta.arguments
        place = self._place(len(self._items) - 1)
        return data + self._event(
            "response.function_call_arguments.delta", **place, delta=delta.arguments
        )

    def _begin_item(self, prefix: str, item: Json) -> bytes:
        name = f"{prefix}_{self._reply.sessions[0]}_{len(self._items)}"
        self._items.append({"id": name, "status": "in_progress", **item})
        self._is_open = True
        return self._event(
            "response.output_item.added",
            output_index=len(self._items) - 1,
            item=dict(self._items[-1]),
        )

    def _end_item(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        item, place = self._items[-1], self._place(len(self._items) - 1)
        item["status"] = "incomplete" if self._status() == "incomplete" else "completed"
        if item["type"] == "message":
            (part,) = item["content"]
            data = self._event(
                "response.output_text.done",
                **place, content_index=0, text=part["text"], logprobs=part["logprobs"],
            )  # fmt: skip
            data += self._event("response.content_part.done", **place, content_index=0, part=part)
        else:
            data = self._event(
                "response.function_call_arguments.done",
                **place, name=item["name"], arguments=item["arguments"],
            )  # fmt: skip
        return data + self._event(
            "response.output_item.done", output_index=place["output_index"], item=item
        )

    def _place(self, index: int) -> Json:
        return {"item_id": self._items[index]["id"], "output_index": index}

    def _logprobs(self, piece: Piece) -> list[Json]:
        if self._reply.call.sampling.logprobs is None:
            return []
        return chat_logprobs(self._answer.text_side, piece.tokens)

    # ------------------------------------------------------------ the response

    def _event(self, kind: str, **fields: object) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return named_event(kind, event)

    def _status(self) -> str:
        if self._answer.error is not None:
            return "failed"
        return "incomplete" if self._answer.finish_reason in _INCOMPLETE else "completed"

    def _response(self, status: str) -> Json:
        reason = _INCOMPLETE.get(self._answer.finish_reason or "")
        error = error_answer(self._answer.error) if self._answer.error is not None else None
        running = status == "in_progress"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._reply.created,
            "status": status,
            "error": {"code": error.code or error.kind, "message": error.message}
            if error
            else None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self._reply.call.model,
            "output": list(self._items),
            "usage": None if running else self._usage(),
            "swarm": None if running else self._reply.swarm(),
            **_STATIC,
            **self._reply.call.told,
        }

    def _usage(self) -> Json:
        usage = self._reply.usage()
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _copied(part: Json) -> Json:
    """As it is now: the original grows."""
    return {**part, "logprobs": list(part["logprobs"])}
