"""What every dialect's writer is: answers as bytes for a client, whole or as they come. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from swarm.gateway.answer import Answer, Piece, Usage
from swarm.gateway.calls import Call
from swarm.gateway.responses import ErrorAnswer
from swarm.terms import SessionId

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One request's answers, and what every part of the response repeats."""

    call: Call
    answers: tuple[Answer, ...]
    """By index: the choices of the first prompt, those of the second, ..."""
    sessions: tuple[SessionId, ...]
    created: int
    """Seconds since 1970."""

    def usage(self) -> Usage:
        """Tokens in all: a prompt counts once, however many choices it has."""
        firsts = self.answers[:: self.call.choices]
        counts = [answer.usage() for answer in self.answers]
        return Usage(
            prompt_tokens=sum(answer.usage().prompt_tokens for answer in firsts),
            completion_tokens=sum(count.completion_tokens for count in counts),
            cached_tokens=sum(answer.usage().cached_tokens for answer in firsts),
        )

    def swarm(self) -> Json:
        """How the answers came about; of several, the losses of all and the route of the first."""
        ways = [answer.swarm() for answer in self.answers]
        firsts = [way["ttft_ms"] for way in ways if way["ttft_ms"] is not None]
        return {
            "route": ways[0]["route"],
            "reroutes": sum(way["reroutes"] for way in ways),
            "stall_ms": [stall for way in ways for stall in way["stall_ms"]],
            "ttft_ms": min(firsts, default=None),
            "exact": all(way["exact"] for way in ways),
        }

    def call_id(self, index: int, call: int) -> str:
        """The name of a tool call: nine letters and digits, which is what some templates demand."""
        digest = hashlib.blake2b(f"{self.sessions[index]}/{call}".encode(), digest_size=6)
        return base64.b32encode(digest.digest()).decode()[:9].lower()

    def prompt_text(self, index: int) -> str:
        """The prompt of an answer, as the client wrote it or as its ids read."""
        prompt = self.call.prompts[index // self.call.choices]
        if isinstance(prompt, str):
            return prompt
        answer = self.answers[index]
        return answer.text_side.decode(answer.order.prompt_ids) if answer.text_side else ""


class Voice(Protocol):
    """How a stream talks beside its answers."""

    content_type: str

    def comment(self, text: str) -> bytes:
        """What shows that the connection lives; empty where the form has nothing for it."""

    def failure(self, error: ErrorAnswer) -> bytes:
        """The last event of a stream that cannot be finished."""


class Writer(Voice, Protocol):
    """One response. Streamed: `opening`, then `piece` as they come, then `ending` or `failure`."""

    def opening(self) -> bytes:
        """Sent along with the headers."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """More of answer `index`; empty when it says nothing."""

    def ending(self) -> bytes:
        """After the last piece of all answers."""

    def body(self, pieces: Sequence[Sequence[Piece]]) -> Json:
        """The whole response, given all pieces of each answer."""


def object_of(arguments: str) -> Json:
    """What the model wrote as arguments; nothing where it is no object, or was cut off."""
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def whole_calls(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """The tool calls of an answer: each function's name, and its arguments as JSON text."""
    calls: list[tuple[str, str]] = []
    for delta in (delta for piece in pieces for delta in piece.calls):
        if delta.name is not None:
            calls.append((delta.name, delta.arguments))
        else:
            name, arguments = calls[delta.index]
            calls[delta.index] = (name, arguments + delta.arguments)
    return calls
