"""Tool calls that must come, or must follow their schemas: as a guide for the sampler. Pure.

Where the choice is left to the model and a tool is strict, words may come before, between and
after calls, and a call, once its mark is written, follows the schema of its function.
Source: the syntax of https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from swarm.errors import RequestError
from swarm.gateway.calls import AUTO, REQUIRED, Call, Json, ToolUse, following
from swarm.gateway.sampling_fields import AskedGuide
from swarm.messages import GUIDE_BYTES_MAX
from swarm.terms import Guide, GuideKind


@dataclass(frozen=True, slots=True)
class _Written:
    """How a family writes a call, letter by letter."""

    mark: str
    """Begins a call; empty where nothing does."""
    before: str
    closing: str
    between: str
    arguments: str
    """The name of the arguments."""


_WRITTEN = {
    "hermes": _Written("<tool_call>", "\n", "\n</tool_call>", "\n", "arguments"),
    "llama3": _Written("", "", "", "; ", "parameters"),
}
"""Families whose calls are JSON between marks that are plain text."""
_ANYTHING: Json = {"type": "object"}


def guided(call: Call, family: str | None) -> Call:
    """The call, with the guide that its tools ask for, if any. Raises RequestError."""
    offered = call.rendering.tools
    if offered is None or (offered.choice == AUTO and not offered.strict):
        return call
    param = "tools" if offered.choice == AUTO else "tool_choice"
    if call.guide is not None:
        raise RequestError(
            f"{param} and {call.guide.param} both say what the answer must be; use one",
            param=param,
        )
    written = _WRITTEN.get(family or "")
    if written is None or (offered.choice == AUTO and not written.mark):
        what = "held to their schemas: leave strict out" if offered.choice == AUTO else "forced"
        raise RequestError(
            f"the tool calls of this model cannot be {what}", param=param, code="unsupported_field"
        )
    source = _grammar(offered, written)
    if len(source.encode()) > GUIDE_BYTES_MAX:
        raise RequestError(
            f"tools must have schemas of at most {GUIDE_BYTES_MAX} bytes together to be forced",
            param="tools",
        )
    return following(call, AskedGuide(param, Guide(GuideKind.LARK, source)))


def _grammar(offered: ToolUse, written: _Written) -> str:
    named = offered.choice not in (AUTO, REQUIRED)
    tools = [
        tool for tool in offered.tools if not named or tool["function"]["name"] == offered.choice
    ]
    rest = [f"rest_{number}: {_rest(tool, written)}" for number, tool in enumerate(tools)]
    choice = " | ".join(f"rest_{number}" for number in range(len(tools)))
    if offered.choice == AUTO:
        begin = [
            f"start: (head ({choice})){'*' if offered.parallel else '?'} tail",
            f"head[lazy]: TEXT {json.dumps(written.mark)}",
            "tail: TEXT",
            r"TEXT: /(.|\n)*/",
        ]
    else:
        again = f" ({json.dumps(written.between)} call)*" if offered.parallel and not named else ""
        mark = f"{json.dumps(written.mark)} " if written.mark else ""
        begin = [f"start: call{again}", f"call: {mark}({choice})"]
    return "\n".join(begin + rest)


def _rest(tool: Json, written: _Written) -> str:
    """A call after its mark. A tool that is not strict may have any arguments."""
    function = tool["function"]
    name = json.dumps(function["name"], ensure_ascii=False)
    opening = f'{written.before}{{"name": {name}, "{written.arguments}": '
    closing = "}" + written.closing
    schema = json.dumps(function["parameters"] or _ANYTHING)
    return f"{json.dumps(opening)} %json {schema} {json.dumps(closing)}"
