"""How families of models write tool calls, and by what its template gives one away. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic_core import from_json

Whole = list[tuple[str, str]]
"""Calls: the function's name, and its arguments as the JSON text of an object."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way of writing calls."""

    opening: str
    closing: str = ""
    """Empty: the calls go on to the answer's end."""
    read_whole: Callable[[str], Whole] | None = None
    """For calls that are no JSON objects: what stands between the marks. No calls: it was none."""
    is_guess: bool = False
    """Nothing marks a call but that the answer begins so: only functions on offer count."""


def template_family(template: str) -> str | None:
    """The family of a model whose chat template this is; None where its way is not known here."""
    if not knows_tools(template):
        return None
    for words, family in _SIGNS:
        if all(word in template for word in words):
            return family
    return None


def knows_tools(template: str) -> bool:
    return re.search(r"\btools\b", template) is not None


def family_named(family: str) -> tuple[Form, ...]:
    return FAMILIES[family]


def shows_special(family: str) -> bool:
    """Whether a family's marks are special tokens, which answers leave out otherwise."""
    return family in _SPECIAL


def _xml(text: str) -> Whole:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`, as Qwen3-Coder has it."""
    function = re.search(r"<function=([^>\n]{1,256})>(.*?)(?:</function>|$)", text, re.DOTALL)
    if function is None:
        return []
    values = re.findall(
        r"<parameter=([^>\n]{1,256})>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)",
        function[2],
        re.DOTALL,
    )
    return [(function[1].strip(), _object({key: _value(text) for key, text in values}))]


def _keys(text: str) -> Whole:
    """`NAME <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, as GLM-4.5 has it."""
    name = text.partition("<arg_key>")[0].strip()
    if not name or any(letter.isspace() for letter in name):
        return []
    return [(name, _object(dict(_keyed(text))))]


def _keyed(text: str) -> Iterator[tuple[str, object]]:
    """Each key with its value, in one pass: a search with two open ends goes over a long text of
    lone marks again and again."""
    at = 0
    while (key := _between(text, at, "<arg_key>", "</arg_key>")) is not None:
        begin, end, at = key
        opening = _VALUE.match(text, at)
        if opening is None:
            continue
        closing = text.find("</arg_value>", opening.end())
        if closing < 0:
            return
        yield text[begin:end].strip(), _value(text[opening.end() : closing])
        at = closing + len("</arg_value>")


def _between(text: str, at: int, opening: str, closing: str) -> tuple[int, int, int] | None:
    """Where what stands between the next two marks begins and ends, and where the second ends."""
    begin = text.find(opening, at)
    end = text.find(closing, begin + len(opening)) if begin >= 0 else -1
    return None if end < 0 else (begin + len(opening), end, end + len(closing))


def _tagged(text: str) -> Whole:
    """An array of objects, or `NAME[ARGS]{...}` for each call, as Mistral's tokenizers have it."""
    try:
        entries = from_json(text, allow_inf_nan=False)
        return [(str(entry["name"]), _object(entry["arguments"])) for entry in entries]
    except (ValueError, LookupError, TypeError):
        pass
    calls: Whole = []
    for part in text.split("[TOOL_CALLS]"):
        found = _TAGGED.match(part)
        calls += _checked(found[1], found[2]) if found is not None else []
    return calls


def _deepseek(text: str) -> Whole:
    """`function<sep>NAME` and a fenced object (V3), or `NAME<sep>{...}` (V3.1), for each call."""
    calls: Whole = []
    for part in _DEEPSEEK_CALL.findall(text):
        first, _, second = part.partition("<｜tool▁sep｜>")
        fenced = re.fullmatch(r"\s*([^\n]{1,256})\n```json\n(.*?)\n?```\s*", second, re.DOTALL)
        if fenced is not None:
            calls += _checked(fenced[1].strip(), fenced[2])
        else:
            calls += _checked(first.strip(), second)
    return calls


def _pythonic(text: str) -> Whole:
    """`[name(key="value"), ...]`, as LFM2 has it."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_python_call(call) for call in calls]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("no call by keyword")
    values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    return ast.unparse(call.func), _object(values)


def _checked(name: str, arguments: str) -> Whole:
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(arguments.strip())
        return [(name, _object(value))] if name and isinstance(value, dict) else []
    except (ValueError, RecursionError):
        return []


def _object(values: object) -> str:
    """Raises ValueError for what clients could not read: no number, half a character, too deep."""
    text = json.dumps(values, ensure_ascii=False)
    from_json(text.encode(), allow_inf_nan=False)
    return text


def _value(text: str) -> object:
    """A value as JSON where it is, else as the text that it is."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


_HERMES = Form("<tool_call>", "</tool_call>")
_DEEPSEEK = Form("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek)
_DEEPSEEK_CALL = re.compile("<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|$)", re.DOTALL)
_VALUE = re.compile(r"\s*<arg_value>")
_TAGGED = re.compile(r"\s*([\w.-]{1,256})(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)
FAMILIES: dict[str, tuple[Form, ...]] = {
    "hermes": (_HERMES,),
    "qwen3_coder": (Form("<tool_call>", "</tool_call>", _xml),),
    "glm": (Form("<tool_call>", "</tool_call>", _keys),),
    "mistral": (Form("[TOOL_CALLS]", "", _tagged),),
    "mistral_args": (Form("[TOOL_CALLS]", "", _tagged),),
    "llama3": (Form("<|python_tag|>"), Form("{", is_guess=True)),
    "granite": (Form("<|tool_call|>"), Form("<tool_call>")),
    "phi4": (Form("<|tool_call|>", "<|/tool_call|>"), Form("functools")),
    "deepseek": (_DEEPSEEK,),
    "deepseek_fenced": (_DEEPSEEK,),
    "lfm2": (Form("<|tool_call_start|>", "<|tool_call_end|>", _pythonic),),
}
_SPECIAL = {
    "mistral", "mistral_args", "llama3", "granite", "phi4", "deepseek", "deepseek_fenced", "lfm2",
}  # fmt: skip
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>", "<arg_key>"), "glm"),
    (("<tool_call>", "</tool_call>"), "hermes"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_args"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_fenced"),
    (("<｜tool▁calls▁begin｜>",), "deepseek"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|tool|>", "<|/tool|>"), "phi4"),
    (("<|tool_call|>",), "granite"),
    (("python_tag",), "llama3"),
    (('"parameters"', "ipython"), "llama3"),
)
"""In this order: the first whose words are all in the template."""
