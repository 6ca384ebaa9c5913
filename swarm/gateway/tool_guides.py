"""Tool calls that must come, or must follow their schemas: as a guide for the sampler. Pure.

Where the choice is left to the model and a tool is strict, words may come before, between and
after calls, and a call, once its mark is written, follows the schema of its function. In families
that write arguments as text between tags, a string is any text.
Source: the syntax of https://github.com/guidance-ai/llguidance; the families' chat templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import RequestError
from swarm.gateway.calls import AUTO, REQUIRED, Call, Json, ToolUse, following
from swarm.gateway.sampling_fields import AskedGuide
from swarm.messages import GUIDE_BYTES_MAX
from swarm.terms import Guide, GuideKind


@dataclass(frozen=True, slots=True)
class _Tags:
    """Around the name and the text of each argument, where arguments are no JSON object."""

    before: str
    middle: str
    after: str


@dataclass(frozen=True, slots=True)
class _Written:
    """How a family writes calls, letter by letter: the name comes between `before` and `middle`,
    the arguments come after `middle`."""

    before: str
    middle: str
    after: str
    between: str = ""
    """Two calls."""
    first: str = ""
    last: str = ""
    """Around all calls; where these are empty each call stands for itself."""
    tags: _Tags | None = None


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_WRITTEN = {
    "hermes": _Written(
        '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n"
    ),
    "llama3": _Written('{"name": "', '", "parameters": ', "}", "; "),
    "granite": _Written('{"name": "', '", "arguments": ', "}", ", ", "<|tool_call|>[", "]"),
    "phi4": _Written(
        '{"name": "', '", "arguments": ', "}", ", ", "<|tool_call|>[", "]<|/tool_call|>"
    ),
    "mistral": _Written('{"name": "', '", "arguments": ', "}", ", ", "[TOOL_CALLS][", "]"),
    "mistral_args": _Written("[TOOL_CALLS]", "[ARGS]", ""),
    "deepseek": _Written(
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "", *_DEEPSEEK
    ),
    "deepseek_fenced": _Written(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>",
        "\n", *_DEEPSEEK,
    ),
    "qwen3_coder": _Written(
        "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n",
        tags=_Tags("<parameter=", ">\n", "\n</parameter>\n"),
    ),
    "glm": _Written(
        "<tool_call>", "\n", "</tool_call>", "\n",
        tags=_Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    ),
}  # fmt: skip
_MARKS = re.compile(r"(<tool_call>|<\|/?tool_call\|>|\[TOOL_CALLS\]|\[ARGS\]|<｜tool▁[a-z▁]+｜>)")
"""Tokens of their own in the families that write them."""
_ANYTHING: Json = {"type": "object"}
_WORDS = r"/(.|\n)*/"


def guided(call: Call, family: str | None, special: Mapping[str, int]) -> Call:
    """The call, with the guide that its tools ask for, if any. Raises RequestError.

    `special`: the ids of the model's special tokens, which no text can stand for.
    """
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
    if written is None or (offered.choice == AUTO and not _mark(written)):
        what = "held to their schemas: leave strict out" if offered.choice == AUTO else "forced"
        raise RequestError(
            f"the tool calls of this model cannot be {what}", param=param, code="unsupported_field"
        )
    source = _Writer(written, special).grammar(offered)
    if len(source.encode()) > GUIDE_BYTES_MAX:
        raise RequestError(
            f"tools must have schemas of at most {GUIDE_BYTES_MAX} bytes together to be forced",
            param="tools",
        )
    return following(call, AskedGuide(param, Guide(GuideKind.LARK, source)))


def _mark(written: _Written) -> str:
    """What begins a call, or all of them; empty where nothing does."""
    found = _MARKS.match(written.first or written.before)
    return found[0] if found is not None else ""


class _Writer:
    """Writes the grammar of one request."""

    def __init__(self, written: _Written, special: Mapping[str, int]) -> None:
        self._written = written
        self._special = special
        self._mark = _mark(written)

    def grammar(self, offered: ToolUse) -> str:
        named = offered.choice not in (AUTO, REQUIRED)
        tools = [
            tool["function"]
            for tool in offered.tools
            if not named or tool["function"]["name"] == offered.choice
        ]
        again = offered.parallel and not named
        rules = self._start_auto(again) if offered.choice == AUTO else self._start(again)
        choice = " | ".join(f"rest_{number}" for number in range(len(tools)))
        rules += [f"call: {choice}"]
        for number, function in enumerate(tools):
            rules += self._rest(f"rest_{number}", function)
        return "\n".join(rules)

    def _start(self, again: bool) -> list[str]:
        """Calls, and nothing beside them."""
        mark = self._text(self._mark)
        if self._written.first:
            return [f"start: {mark} calls", self._calls(again)]
        more = f"({self._text(self._written.between)} {mark} call)*" if again else ""
        return [f"start: {mark} call {more}"]

    def _start_auto(self, again: bool) -> list[str]:
        """Words, and calls among them."""
        is_list = bool(self._written.first)
        part = "calls" if is_list else "call"
        times = "*" if again and not is_list else "?"
        rules = [self._calls(again)] if is_list else []
        if self._mark in self._special:
            return [f"start: TEXT ({self._text(self._mark)} {part} TEXT){times}", *rules,
                    f"TEXT: {_WORDS}"]  # fmt: skip
        return [f"start: (head {part}){times} tail", f"head[lazy]: TEXT {self._text(self._mark)}",
                "tail: TEXT", *rules, f"TEXT: {_WORDS}"]  # fmt: skip

    def _calls(self, again: bool) -> str:
        """All of them, after their mark."""
        written = self._written
        more = f"({self._text(written.between)} call)*" if again else ""
        return f"calls: {self._after_mark(written.first)} call {more} {self._text(written.last)}"

    def _rest(self, rule: str, function: Json) -> list[str]:
        """A call after its mark. A tool that is not strict may have any arguments."""
        written = self._written
        schema = function["parameters"] or _ANYTHING
        before = written.before if written.first else self._after(written.before)
        is_quoted = written.before.endswith('"')
        name = json.dumps(function["name"], ensure_ascii=False)[1:-1]
        if not is_quoted:
            name = function["name"]
        opening = f"{self._text(before + name + written.middle)}"
        if written.tags is None:
            return [f"{rule}: {opening} %json {json.dumps(schema)} {self._text(written.after)}"]
        arguments, rules = self._tagged(rule, schema, written.tags)
        return [f"{rule}: {opening} {arguments} {self._text(written.after)}", *rules]

    def _tagged(self, rule: str, schema: Json, tags: _Tags) -> tuple[str, list[str]]:
        """Arguments as text between tags, in the order of the schema."""
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        required = schema.get("required", ())
        names, rules = [], []
        for number, (key, value) in enumerate(schema.get("properties", {}).items()):
            name = f"{rule}_{number}"
            names.append(name if key in required else f"{name}?")
            opening, closing = self._text(tags.before + key + tags.middle), self._text(tags.after)
            if _is_text(value):
                pattern = re.escape(tags.after).replace("/", r"\/").replace("\\\n", r"\n")
                rules += [f"{name}: {opening} {name}_text",
                          f"{name}_text[lazy]: /(.|\\n)*{pattern}/"]  # fmt: skip
            else:
                part = json.dumps(shared | (value if isinstance(value, dict) else {}))
                rules.append(f"{name}: {opening} %json {part} {closing}")
        return " ".join(names), rules

    # ------------------------------------------------------------ texts

    def _after(self, text: str) -> str:
        return text[len(self._mark) :]

    def _after_mark(self, text: str) -> str:
        return self._text(self._after(text))

    def _text(self, text: str) -> str:
        """A text, with special tokens where those stand in it."""
        parts = (part for part in _MARKS.split(text) if part)
        return " ".join(
            f"<[{self._special[part]}]>"
            if part in self._special
            else json.dumps(part, ensure_ascii=False)
            for part in parts
        )


def _is_text(schema: object) -> bool:
    """A string that may be any text: it is written without quotes."""
    return isinstance(schema, dict) and schema.get("type") == "string" and "enum" not in schema
