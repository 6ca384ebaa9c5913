"""Calls that must come, or must follow their schemas: what the sampler is held to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tiny_text
import tool_text
from fake_node import END, spec

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.dialects import parse
from swarm.gateway.text import ModelText
from swarm.gateway.token_table import unpack
from swarm.gateway.tool_calls import ToolReader
from swarm.gateway.tool_guides import guided
from swarm.guides import Matcher, Vocabulary

MARKS = (
    "<|tool_call|>", "<|/tool_call|>", "[TOOL_CALLS]", "[ARGS]", "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip


def _marked() -> ModelText:
    """The tokenizer that these tests share, with the marks of all families as special tokens."""
    tokenizer = tiny_text.byte_level()
    tokenizer.add_special_tokens(list(MARKS))
    return ModelText(tiny_text.files(tokenizer, tiny_text.TEMPLATE))


MARKED = _marked()
MARKED_TABLE = unpack(*MARKED.packed_table())
VOCABULARY = Vocabulary(MARKED_TABLE, spec().vocab_size, (END,))
CLOCK = {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}}
WEATHER = {**tool_text.WEATHER, "parameters": {**tool_text.WEATHER["parameters"], "$defs": {}}}
ROM = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def call_of(family: str = "hermes", *, strict: bool = False, **fields: Any) -> Call:
    tools = [
        {"type": "function", "function": {**function, "strict": strict}}
        for function in (WEATHER, CLOCK)
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools} | fields
    call = parse(Endpoint.CHAT, json.dumps(body).encode(), GatewayConfig())
    return guided(call, family, MARKED_TABLE.special_ids())


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def follows(call: Call, text: str) -> bool:
    """Whether the model may write exactly this and then end."""
    assert call.guide is not None and call.sampling.guide is call.guide.guide.kind
    matcher = Matcher(VOCABULARY, call.guide.guide)
    ids = [*MARKED.encode(text, special=False), END]
    for count, token_id in enumerate(ids):
        mask = matcher.allowed(ids[:count])
        if not mask[token_id // 8] >> token_id % 8 & 1:
            return False
    return True


@pytest.mark.parametrize(
    ("choice", "text", "good"),
    [
        ("required", ROM, True),
        ("required", TIME, True),
        ("required", f"{ROM}\n{TIME}", True),
        ("required", "words", False),
        ("required", "", False),
        ("required", ROM.replace("city", "town"), False),
        ("required", ROM.replace('"Rom"', "3"), False),
        ("required", ROM.replace("weather", "other"), False),
        (named("clock"), TIME, True),
        (named("clock"), ROM, False),
        (named("clock"), f"{TIME}\n{TIME}", False),
    ],
)
def test_a_call_that_must_come_follows_its_schema(choice: Any, text: str, good: bool) -> None:
    assert follows(call_of(tool_choice=choice), text) is good


def test_one_call_at_most_where_only_one_may_come() -> None:
    call = call_of(tool_choice="required", parallel_tool_calls=False)
    assert follows(call, ROM) and not follows(call, f"{ROM}\n{TIME}")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("only words, 1 < 2", True),
        (f"Let me see. {ROM}", True),
        (f"{ROM}\n{TIME}\nDone.", True),
        (ROM.replace('"Rom"', "3"), False),
        (f"Let me see. {ROM.replace('weather', 'other')}", False),
    ],
)
def test_a_strict_call_may_come_among_words_and_follows_its_schema(text: str, good: bool) -> None:
    assert follows(call_of(strict=True), text) is good


def test_a_family_without_marks_is_forced_too() -> None:
    call = call_of("llama3", tool_choice="required")
    assert follows(call, '{"name": "weather", "parameters": {"city": "Rom"}}')
    assert not follows(call, '{"name": "weather", "parameters": {}}')


@pytest.mark.parametrize("family", ["hermes", "llama3"])
def test_what_is_forced_is_read_as_calls(family: str) -> None:
    arguments = {"hermes": "arguments", "llama3": "parameters"}[family]
    first = f'{{"name": "weather", "{arguments}": {{"city": "Rom"}}}}'
    marked = f"<tool_call>\n{first}\n</tool_call>\n{TIME}"
    text = marked if family == "hermes" else f"{first}; {first}"
    assert follows(call_of(family, tool_choice="required"), text)
    reader = ToolReader(family, ("weather", "clock"))
    reader.push(text)
    assert reader.flush().text == "" and reader.count == 2


LIST = '[{"name": "weather", "arguments": {"city": "Rom"}}, {"name": "clock", "arguments": {}}]'
DEEP = "<｜tool▁call▁begin｜>"
FAMILY_TEXTS = {
    "granite": f"<|tool_call|>{LIST}",
    "phi4": f"<|tool_call|>{LIST}<|/tool_call|>",
    "mistral": f"[TOOL_CALLS]{LIST}",
    "mistral_args": '[TOOL_CALLS]weather[ARGS]{"city": "Rom"}[TOOL_CALLS]clock[ARGS]{}',
    "deepseek": f'<｜tool▁calls▁begin｜>{DEEP}weather<｜tool▁sep｜>{{"city": "Rom"}}'
    f"<｜tool▁call▁end｜>{DEEP}clock<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_fenced": f"<｜tool▁calls▁begin｜>{DEEP}function<｜tool▁sep｜>weather\n```json\n"
    f'{{"city": "Rom"}}\n```<｜tool▁call▁end｜>\n{DEEP}function<｜tool▁sep｜>clock\n```json\n'
    "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nRom\n</parameter>\n"
    "</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>\n</tool_call>\n"
    "<tool_call>clock\n</tool_call>",
}
"""Two calls, as each family's template shows them."""


@pytest.mark.parametrize(("family", "text"), FAMILY_TEXTS.items())
def test_each_family_is_held_to_calls_in_its_own_way(family: str, text: str) -> None:
    call = call_of(family, tool_choice="required")
    assert follows(call, text)
    assert not follows(call, "words") and not follows(call, f"words {text}")
    assert not follows(call, text.replace("clock", "other"))
    assert not follows(call, text.replace("city", "town"))
    assert not follows(call_of(family, tool_choice="required", parallel_tool_calls=False), text)
    reader = ToolReader(family, ("weather", "clock"))
    reads = [reader.push(text), reader.flush()]
    told: dict[int, list[str]] = {0: ["", ""], 1: ["", ""]}
    for delta in (delta for read in reads for delta in read.calls):
        told[delta.index][0] += delta.name or ""
        told[delta.index][1] += delta.arguments
    assert [(name, json.loads(text)) for name, text in told.values()] == [
        ("weather", {"city": "Rom"}), ("clock", {}),
    ]  # fmt: skip


@pytest.mark.parametrize(("family", "text"), FAMILY_TEXTS.items())
def test_each_family_may_write_words_around_strict_calls(family: str, text: str) -> None:
    call = call_of(family, strict=True)
    assert follows(call, "only words, 1 < 2") and follows(call, f"Let me see. {text}")
    assert not follows(call, f"Let me see. {text.replace('clock', 'other')}")


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
def test_arguments_that_are_text_follow_their_schemas(family: str) -> None:
    properties = {
        "note": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["c", "f"]},
    }
    schema = {"type": "object", "properties": properties, "required": ["days"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    call = call_of(family, tools=tools, tool_choice="required")

    def written(**arguments: str) -> str:
        if family == "glm":
            parts = (
                f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
                for key, value in arguments.items()
            )
            return f"<tool_call>weather\n{''.join(parts)}</tool_call>"
        parts = (f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
        return f"<tool_call>\n<function=weather>\n{''.join(parts)}</function>\n</tool_call>"

    assert follows(call, written(note='a "b"\n</c> / d', days="3"))
    assert follows(call, written(days="3", unit='"f"'))
    for wrong in (
        {"days": "x"},
        {"note": "a"},
        {"days": "3", "unit": '"k"'},
        {"days": "3", "x": "1"},
    ):
        assert not follows(call, written(**wrong)), wrong


def test_where_nothing_is_asked_nothing_is_forced() -> None:
    assert call_of().guide is None
    assert call_of(tool_choice="none", strict=True).guide is None


@pytest.mark.parametrize(
    ("family", "fields", "param"),
    [
        ("lfm2", {"tool_choice": "required"}, "tool_choice"),
        ("llama3", {"strict": True}, "tools"),
        ("hermes", {"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_cannot_be_forced_is_said(family: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        call_of(family, **fields)
    assert caught.value.param == param
