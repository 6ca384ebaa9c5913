"""Answers in the shapes of OpenAI's chat and text completions: bodies, chunks, logprobs. Pure.

Beyond OpenAI: `prompt_token_ids` and `token_ids` (as vLLM places them) when the client asked for
ids, and a `swarm` object beside each `usage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarm.gateway.answer import Piece, Usage
from swarm.gateway.calls import Endpoint
from swarm.gateway.json_calls import CallDelta
from swarm.gateway.responses import SSE_DONE, SseVoice, sse
from swarm.gateway.token_table import TokenTable
from swarm.gateway.writing import Reply, whole_calls
from swarm.terms import SampledToken, TokenLogprob

Json = dict[str, Any]

LOGPROB_MIN = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class OpenAiWriter(SseVoice):
    """One response. Keeps, for each answer, what later chunks of a completion count from."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._call = reply.call
        self._is_chat = reply.call.endpoint is Endpoint.CHAT
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._request_id = f"{prefix}-{reply.sessions[0]}"
        self._text_offsets = [0] * len(reply.answers)

    # ------------------------------------------------------------ whole

    def body(self, pieces: Sequence[Sequence[Piece]]) -> Json:
        choices = [self._whole(index, of_one) for index, of_one in enumerate(pieces)]
        result = self._frame(choices, chunk=False)
        if self._is_chat and self._call.return_token_ids:
            result["prompt_token_ids"] = self._prompt_ids(0)
        return result | self._totals()

    def _whole(self, index: int, pieces: Sequence[Piece]) -> Json:
        answer = self._reply.answers[index]
        text = "".join(piece.text for piece in pieces)
        tokens = [token for piece in pieces for token in piece.tokens]
        choice: Json = {"index": index, "finish_reason": answer.finish_reason}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            if calls := whole_calls(pieces):
                choice["message"] |= {
                    "content": text or None,
                    "tool_calls": [
                        {"id": self._reply.call_id(index, number)} | _function(name, arguments)
                        for number, (name, arguments) in enumerate(calls)
                    ],
                }
        else:
            choice["text"] = self._echoed(index) + text
        choice["logprobs"] = self._logprobs(index, tokens)
        if self._call.return_token_ids:
            choice["token_ids"] = [token.token_id for token in tokens]
            if not self._is_chat:
                choice["prompt_token_ids"] = self._prompt_ids(index)
        return choice

    # ------------------------------------------------------------ streamed

    def opening(self) -> bytes:
        """A first chunk for each answer: role, prompt's ids, echo; none when all is left out."""
        chunks = [self._first(index) for index in range(len(self._reply.answers))]
        return b"".join(sse(chunk) for chunk in chunks if chunk)

    def _first(self, index: int) -> Json | None:
        echoed = self._echoed(index)
        if not (self._is_chat or self._call.return_token_ids or echoed):
            return None
        choice = self._choice(index, Piece(echoed))
        if self._is_chat:
            choice["delta"] = {"role": "assistant", "content": ""}
        result = self._chunk(choice)
        if self._call.return_token_ids:
            place = result if self._is_chat else choice
            place["prompt_token_ids"] = self._prompt_ids(index)
        return result

    def piece(self, index: int, piece: Piece) -> bytes:
        call = self._call
        told = piece.tokens and (call.return_token_ids or call.sampling.logprobs is not None)
        if not piece.text and not piece.calls and not told and piece.finish_reason is None:
            return b""
        choice = self._choice(index, piece)
        if piece.tokens:
            table = self._reply.answers[index].text_side
            lengths = [len(_token_text(table, token.token_id)) for token in piece.tokens]
            self._text_offsets[index] += sum(lengths) if table else 0
        return sse(self._chunk(choice))

    def ending(self) -> bytes:
        """Usage, for who asked with `stream_options.include_usage`, and the terminator."""
        if not self._call.include_usage:
            return SSE_DONE
        return sse(self._frame([], chunk=True) | self._totals()) + SSE_DONE

    def _choice(self, index: int, piece: Piece) -> Json:
        choice: Json = {"index": index, "finish_reason": piece.finish_reason}
        if self._is_chat:
            said = piece.text or not piece.finish_reason
            choice["delta"] = {"content": piece.text} if said else {}
            if piece.calls:
                choice["delta"] = {
                    **({"content": piece.text} if piece.text else {}),
                    "tool_calls": [self._call_delta(index, delta) for delta in piece.calls],
                }
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._logprobs(index, piece.tokens) if piece.tokens else None
        if self._call.return_token_ids:
            choice["token_ids"] = [token.token_id for token in piece.tokens]
        return choice

    def _call_delta(self, index: int, delta: CallDelta) -> Json:
        if delta.name is None:
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        call_id = self._reply.call_id(index, delta.index)
        return {"index": delta.index, "id": call_id} | _function(delta.name, delta.arguments)

    def _chunk(self, choice: Json) -> Json:
        result = self._frame([choice], chunk=True)
        return result | {"usage": None} if self._call.include_usage else result

    # ------------------------------------------------------------ parts of both

    def _frame(self, choices: list[Json], *, chunk: bool) -> Json:
        return {
            "id": self._request_id,
            "object": self._call.endpoint.value + (".chunk" if chunk and self._is_chat else ""),
            "created": self._reply.created,
            "model": self._call.model,
            "choices": choices,
        }

    def _totals(self) -> Json:
        return {"usage": usage_json(self._reply.usage()), "swarm": self._reply.swarm()}

    def _prompt_ids(self, index: int) -> list[int]:
        return list(self._reply.answers[index].order.prompt_ids)

    def _echoed(self, index: int) -> str:
        return self._reply.prompt_text(index) if self._call.echo else ""

    def _logprobs(self, index: int, tokens: Sequence[SampledToken]) -> Json | None:
        if self._call.sampling.logprobs is None:
            return None
        table = self._reply.answers[index].text_side
        if self._is_chat:
            return {"content": chat_logprobs(table, tokens), "refusal": None}
        names = [_token_text(table, token.token_id) for token in tokens]
        offsets = [self._text_offsets[index]]
        for name in names:
            offsets.append(offsets[-1] + len(name))
        return {
            "tokens": names,
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {_token_text(table, top.token_id): _finite(top.logprob) for top in token.top}
                for token in tokens
            ],
            "text_offset": offsets[:-1],
        }


def _function(name: str, arguments: str) -> Json:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def usage_json(usage: Usage) -> Json:
    counts = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if not usage.cached_tokens:
        return counts
    return counts | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def chat_logprobs(table: TokenTable | None, tokens: Sequence[SampledToken]) -> list[Json]:
    """Each token with its alternatives, as chats have them."""
    return [
        _named_logprob(table, TokenLogprob(token.token_id, _finite(token.logprob)))
        | {"top_logprobs": [_named_logprob(table, top) for top in token.top]}
        for token in tokens
    ]


def _named_logprob(table: TokenTable | None, entry: TokenLogprob) -> Json:
    return {
        "token": _token_text(table, entry.token_id),
        "logprob": _finite(entry.logprob),
        "bytes": list(table.token_bytes(entry.token_id)) if table else None,
    }


def _token_text(table: TokenTable | None, token_id: int) -> str:
    if table is None:
        return f"token_id:{token_id}"
    return table.token_bytes(token_id).decode("utf-8", "replace")


def _finite(logprob: float | None) -> float:
    return LOGPROB_MIN if logprob is None else max(LOGPROB_MIN, logprob)
