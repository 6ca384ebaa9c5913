"""A streamed chat answer as its client reads it: lines in, events out. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from swarm.errors import LinkError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment of the gateway: it waits, or the answer is stalled and why."""

    text: str

    @property
    def is_stall(self) -> bool:
        return self.text.startswith("stalled:")


@dataclass(frozen=True, slots=True)
class Summary:
    """What came at the end: tokens, and how the answer came about."""

    usage: Json
    swarm: Json


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is complete."""


ChatEvent = Text | Remark | Summary | Done


def chat_event(line: bytes) -> ChatEvent | None:
    """The event in one line of the stream; None for a line that says nothing.

    Raises LinkError for the error that ends a cut answer, or a line that makes no sense.
    """
    line = line.strip()
    if line.startswith(b":"):
        return Remark(line[1:].strip().decode("utf-8", "replace"))
    if not line.startswith(b"data:"):
        return None
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        return Done()
    try:
        return _event(json.loads(data))
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise LinkError("the gateway sent something that is no chat answer") from error


def _event(fields: Json) -> ChatEvent | None:
    if fields.get("error"):
        raise LinkError(str(fields["error"]["message"]))
    if fields.get("usage"):
        return Summary(fields["usage"], fields.get("swarm") or {})
    choices = fields.get("choices") or [{}]
    text = choices[0].get("delta", {}).get("content")
    return Text(str(text)) if text else None
