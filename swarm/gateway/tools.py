"""Tools that a request offers to the model, checked, in OpenAI's form. Pure.

Other dialects turn theirs into this form first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from swarm.errors import RequestError
from swarm.gateway.calls import AUTO, NONE, REQUIRED, Json, ToolUse

TOOLS_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def tool_use(tools: Sequence[Any] | None, choice: Any, parallel: bool | None) -> ToolUse | None:
    """What of `tools`, `tool_choice` and `parallel_tool_calls` is asked; None: no tools.

    Raises RequestError naming the field.
    """
    if not tools:
        if choice not in (None, NONE, AUTO):
            raise RequestError("tool_choice needs tools", param="tool_choice")
        return None
    if len(tools) > TOOLS_MAX:
        raise RequestError(f"tools may have at most {TOOLS_MAX} entries", param="tools")
    checked = tuple(_tool(index, tool) for index, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in checked]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"two tools are named {name}", param="tools")
    chosen = _choice(choice, names)
    if chosen == NONE:
        return None
    strict = any(tool["function"].get("strict") for tool in tools)
    return ToolUse(checked, chosen, parallel is not False, strict)


def _tool(index: int, tool: Any) -> Json:
    """A function as templates see it; what the client says beside is left out."""
    where = f"tools.{index}"
    if not isinstance(tool, dict):
        raise RequestError(f"{where} must be an object", param=where)
    if tool.get("type", "function") != "function":
        raise RequestError(f"{where}.type must be 'function'", param=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{where}.function must be an object", param=f"{where}.function")
    where = f"{where}.function"
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.name must have 1 to 64 letters, digits, dots, dashes or underscores",
            param=f"{where}.name",
        )
    for field, kind, what in (
        ("description", str, "a string"),
        ("parameters", dict, "an object"),
        ("strict", bool, "true or false"),
    ):
        if function.get(field) is not None and not isinstance(function[field], kind):
            raise RequestError(f"{where}.{field} must be {what}", param=f"{where}.{field}")
    kept = {"name": name, "description": function.get("description") or ""}
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**kept, "parameters": parameters}}


def _choice(choice: Any, names: Sequence[str]) -> str:
    """`auto`, `none`, `required`, or the one function's name."""
    if choice is None or choice in (AUTO, NONE):
        return choice or AUTO
    if choice == REQUIRED:
        return REQUIRED
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or choice.get("type") != "function":
        raise RequestError(
            "tool_choice must be 'none', 'auto', 'required' or"
            ' {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    name = function.get("name")
    if name not in names:
        raise RequestError("tool_choice names a function that is not in tools", param="tool_choice")
    if name in (AUTO, NONE, REQUIRED):
        raise RequestError(f"a function named {name} cannot be chosen", param="tool_choice")
    return str(name)


def past_calls(where: str, calls: Any) -> list[Json]:
    """`tool_calls` of an earlier turn as templates see them: arguments as an object."""
    if not isinstance(calls, list) or len(calls) > TOOLS_MAX:
        raise RequestError(f"{where} must be an array of at most {TOOLS_MAX} entries", param=where)
    return [_past_call(f"{where}.{index}", call) for index, call in enumerate(calls)]


def _past_call(where: str, call: Any) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function must have a name", param=f"{where}.function")
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = from_json(given or "{}", allow_inf_nan=False)
        except ValueError:
            given = None
    if not isinstance(given, dict):
        raise RequestError(
            f"{where}.function.arguments must be the JSON text of an object",
            param=f"{where}.function.arguments",
        )
    name = call.get("id")
    identity = {"id": name} if isinstance(name, str) else {}
    return {
        **identity,
        "type": "function",
        "function": {"name": function["name"], "arguments": given},
    }
