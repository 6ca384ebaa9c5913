"""Messages as a model's chat template sees them, from those of OpenAI's form. Pure.

Other dialects turn their messages into OpenAI's first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from swarm.errors import RequestError
from swarm.gateway import tools
from swarm.gateway.calls import Json, Message

VARIABLES_MAX = 32
"""Variables that a client may hand to a template."""
RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception"}
)
_REFUSED = ("audio", "function_call")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def messages(given: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """What a template sees: content as text, nothing that is null. Raises RequestError."""
    return tuple(_message(index, message) for index, message in enumerate(given))


def _message(index: int, message: Mapping[str, Any]) -> Message:
    fields = {name: value for name, value in message.items() if value is not None}
    if fields.get("tool_calls"):
        where = f"messages.{index}.tool_calls"
        if fields.get("role") != "assistant":
            raise RequestError(f"{where}: only the assistant calls tools", param=where)
        fields["tool_calls"] = tools.past_calls(where, fields["tool_calls"])
    for name in _REFUSED:
        if fields.get(name):
            raise RequestError(
                f"messages.{index}.{name} is not supported here", param=f"messages.{index}.{name}"
            )
        fields.pop(name, None)
    fields = {name: value for name, value in fields.items() if name != "tool_calls" or value}
    content = fields.get("content")
    if isinstance(content, list):
        fields["content"] = "\n".join(_part(index, part) for part in content)
    if fields.get("tool_calls"):
        fields.setdefault("content", "")
    return fields


def _part(index: int, part: Any) -> str:
    fields = part if isinstance(part, dict) else {}
    text = fields.get("text")
    if fields.get("type") != "text" or not isinstance(text, str):
        raise RequestError(
            'content parts must be {"type": "text", "text": ...}', param=f"messages.{index}.content"
        )
    return text


def template_variables(given: Json) -> Json:
    """What a client hands to the template: plain values under names that nobody else uses."""
    if len(given) > VARIABLES_MAX:
        raise RequestError(
            f"chat_template_kwargs may have at most {VARIABLES_MAX} names",
            param="chat_template_kwargs",
        )
    for name, value in given.items():
        where = f"chat_template_kwargs.{name[:64]}"
        if not _NAME.fullmatch(name) or name in RESERVED_VARIABLES or name.endswith("_token"):
            raise RequestError(f"{where} is no name that a client may set", param=where)
        if value is not None and not isinstance(value, str | bool | int | float):
            raise RequestError(f"{where} must be a string, a number, true or false", param=where)
    return dict(given)
