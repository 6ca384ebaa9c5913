"""Calls that must come, or must follow their schemas: what the sampler is held to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tool_text
from fake_node import END, TABLE, TEXT, spec

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.dialects import parse
from swarm.gateway.tool_calls import ToolReader
from swarm.gateway.tool_guides import guided
from swarm.guides import Matcher, Vocabulary

VOCABULARY = Vocabulary(TABLE, spec().vocab_size, (END,))
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
    return guided(parse(Endpoint.CHAT, json.dumps(body).encode(), GatewayConfig()), family)


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


def follows(call: Call, text: str) -> bool:
    """Whether the model may write exactly this and then end."""
    assert call.guide is not None and call.sampling.guide is call.guide.guide.kind
    matcher = Matcher(VOCABULARY, call.guide.guide)
    ids = [*TEXT.encode(text, special=False), END]
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


def test_where_nothing_is_asked_nothing_is_forced() -> None:
    assert call_of().guide is None
    assert call_of(tool_choice="none", strict=True).guide is None


@pytest.mark.parametrize(
    ("family", "fields", "param"),
    [
        ("mistral", {"tool_choice": "required"}, "tool_choice"),
        ("llama3", {"strict": True}, "tools"),
        ("hermes", {"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_cannot_be_forced_is_said(family: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        call_of(family, **fields)
    assert caught.value.param == param
