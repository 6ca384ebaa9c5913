"""Every field of every endpoint, one row a field: honoured, refused by name, or without meaning.

Honoured: a value of it reaches the call (what the call does with it is proven where calls are).
Refused: a value that would change the answer is a 400 that names the field.
Ignored: it concerns no answer; the call is the same with and without it.
A field that is read and has no row, or a row of a field that nobody reads, fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import tool_text

from swarm.config import GatewayConfig
from swarm.errors import RequestError
from swarm.gateway import anthropic, ollama, openai, openai_responses
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.dialects import parse

HELLO = [{"role": "user", "content": "hi"}]
FLAT_TOOL = {"type": "function", **tool_text.WEATHER}
ANTHROPIC_TOOL = {"name": "w", "input_schema": {"type": "object"}}


@dataclass(frozen=True, slots=True)
class Honoured:
    """`others`: fields without which it would mean nothing."""

    value: Any
    others: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    value: Any


@dataclass(frozen=True, slots=True)
class Ignored:
    value: Any


Row = Honoured | Refused | Ignored

OPENAI_BOTH: dict[str, Row] = {
    "model": Honoured("other"),
    "max_tokens": Honoured(7),
    "temperature": Honoured(0.5),
    "top_p": Honoured(0.5),
    "top_k": Honoured(5),
    "seed": Honoured(5),
    "n": Honoured(2),
    "stop": Honoured(["x"]),
    "stop_token_ids": Honoured([5]),
    "include_stop_str_in_output": Honoured(True),
    "skip_special_tokens": Honoured(False),
    "stream": Honoured(True),
    "stream_options": Honoured({"include_usage": True}, (("stream", True),)),
    "ignore_eos": Honoured(True),
    "return_token_ids": Honoured(True),
    "user": Ignored("somebody"),
    "metadata": Ignored({"a": "b"}),
    "service_tier": Ignored("flex"),
    "store": Ignored(True),
    "prompt_cache_key": Ignored("x"),
    "safety_identifier": Ignored("x"),
    "frequency_penalty": Honoured(0.5),
    "presence_penalty": Honoured(0.5),
    "repetition_penalty": Honoured(1.1),
    "min_p": Honoured(0.1),
    "min_tokens": Honoured(2),
    "logit_bias": Honoured({"5": 1}),
    "bad_words": Honoured(["x"]),
    "response_format": Honoured({"type": "json_object"}),
    "structured_outputs": Honoured({"regex": "a+"}),
    "guided_json": Honoured({"type": "object"}),
    "guided_regex": Honoured("a+"),
    "guided_choice": Honoured(["a", "b"]),
    "guided_grammar": Honoured('start: "a"'),
    "best_of": Refused(2),
    "functions": Refused([{}]),
    "function_call": Refused({"name": "x"}),
    "suffix": Refused("x"),
    "audio": Refused({}),
    "chat_template": Refused("x"),
    "documents": Refused([{}]),
    "length_penalty": Refused(2),
    "modalities": Refused(["audio"]),
    "prompt_embeds": Refused("x"),
    "prompt_logprobs": Refused(1),
    "reasoning_effort": Refused("high"),
    "truncate_prompt_tokens": Refused(5),
    "use_beam_search": Refused(True),
    "verbosity": Refused("low"),
    "web_search_options": Refused({}),
}
CHAT = OPENAI_BOTH | {
    "messages": Honoured([{"role": "user", "content": "other"}]),
    "max_completion_tokens": Honoured(6),
    "logprobs": Honoured(True),
    "top_logprobs": Honoured(2, (("logprobs", True),)),
    "add_generation_prompt": Honoured(False),
    "continue_final_message": Honoured(True),
    "chat_template_kwargs": Honoured({"enable_thinking": False}),
    "tools": Honoured(tool_text.TOOLS),
    "tool_choice": Honoured("none", (("tools", tool_text.TOOLS),)),
    "parallel_tool_calls": Honoured(False, (("tools", tool_text.TOOLS),)),
    "echo": Refused(True),
}
COMPLETION = OPENAI_BOTH | {
    "prompt": Honoured(["a", "b"]),
    "logprobs": Honoured(2),
    "echo": Honoured(True),
    "add_generation_prompt": Refused(False),
    "continue_final_message": Refused(True),
    "chat_template_kwargs": Refused({"a": 1}),
    "tools": Refused(tool_text.TOOLS),
    "tool_choice": Refused("required"),
}
RESPONSES: dict[str, Row] = {
    "model": Honoured("other"),
    "input": Honoured("other"),
    "instructions": Honoured("Be brief."),
    "max_output_tokens": Honoured(6),
    "temperature": Honoured(0.5),
    "top_p": Honoured(0.5),
    "top_k": Honoured(5),
    "seed": Honoured(5),
    "top_logprobs": Honoured(2),
    "include": Honoured([openai_responses.LOGPROBS]),
    "stream": Honoured(True),
    "tools": Honoured([FLAT_TOOL]),
    "tool_choice": Honoured("none", (("tools", [FLAT_TOOL]),)),
    "parallel_tool_calls": Honoured(False, (("tools", [FLAT_TOOL]),)),
    "metadata": Honoured({"told": "again"}),
    "user": Honoured("somebody"),
    "text": Honoured({"format": {"type": "json_object"}}),
    "store": Ignored(True),
    "service_tier": Ignored("auto"),
    "background": Refused(True),
    "conversation": Refused("conv_1"),
    "max_tool_calls": Refused(3),
    "previous_response_id": Refused("resp_1"),
    "prompt": Refused({"id": "x"}),
    "reasoning": Refused({"effort": "high"}),
    "truncation": Refused("auto"),
}
OLLAMA_BOTH: dict[str, Row] = {
    "model": Honoured("other"),
    "stream": Honoured(False),
    "keep_alive": Ignored("5m"),
    "options": Honoured({"num_predict": 5}),
    "format": Honoured("json"),
    "context": Refused([1]),
    "images": Refused(["aGk="]),
    "logprobs": Refused(True),
    "suffix": Refused("x"),
    "template": Refused("x"),
    "think": Refused(True),
    "top_logprobs": Refused(2),
}
OLLAMA_CHAT = OLLAMA_BOTH | {
    "messages": Honoured([{"role": "user", "content": "other"}]),
    "tools": Honoured(tool_text.TOOLS),
    "raw": Refused(True),
}
OLLAMA_GENERATE = OLLAMA_BOTH | {
    "prompt": Honoured("other"),
    "system": Honoured("Be brief."),
    "raw": Honoured(True),
}
MESSAGES: dict[str, Row] = {
    "model": Honoured("other"),
    "messages": Honoured([{"role": "user", "content": "other"}]),
    "system": Honoured("Be brief."),
    "max_tokens": Honoured(6),
    "stop_sequences": Honoured(["x"]),
    "stream": Honoured(True),
    "temperature": Honoured(0.5),
    "top_k": Honoured(5),
    "top_p": Honoured(0.5),
    "tools": Honoured([ANTHROPIC_TOOL]),
    "tool_choice": Honoured({"type": "none"}, (("tools", [ANTHROPIC_TOOL]),)),
    "metadata": Ignored({"user_id": "x"}),
    "service_tier": Ignored("auto"),
    "container": Refused("x"),
    "context_management": Refused({}),
    "mcp_servers": Refused([{}]),
    "output_config": Honoured({"format": {"type": "json_schema", "schema": {}}}),
    "output_format": Honoured({"type": "json_schema", "schema": {}}),
    "thinking": Refused({"type": "enabled"}),
}
OPTIONS: dict[str, Row] = {
    "num_predict": Honoured(5),
    "num_ctx": Honoured(64),
    "temperature": Honoured(0.5),
    "top_k": Honoured(5),
    "top_p": Honoured(0.5),
    "seed": Honoured(5),
    "stop": Honoured(["x"]),
    "min_p": Honoured(0.1),
    "presence_penalty": Honoured(0.5),
    "frequency_penalty": Honoured(0.5),
    "repeat_penalty": Honoured(1.1),
    "num_gpu": Ignored(1),
    "num_thread": Ignored(4),
    "num_batch": Ignored(8),
    "mirostat": Refused(1),
    "num_keep": Refused(4),
    "tfs_z": Refused(0.5),
    "typical_p": Refused(0.5),
}


@dataclass(frozen=True, slots=True)
class Table:
    endpoint: Endpoint
    least: dict[str, Any]
    """A body with no more than it must have."""
    rows: dict[str, Row]
    read: set[str]
    """Fields that the endpoint's code knows of."""
    inside: str | None = None
    """The rows are of this object within the body."""


def known(*sources: Any) -> set[str]:
    return {name for source in sources for name in getattr(source, "model_fields", source)}


_BOTH = openai._ASKS_NOTHING
TABLES = [
    Table(Endpoint.CHAT, {"model": "m", "messages": HELLO}, CHAT,
          known(openai.ChatBody, _BOTH, openai._COMPLETION_ONLY)),
    Table(Endpoint.COMPLETION, {"model": "m", "prompt": "hi"}, COMPLETION,
          known(openai.CompletionBody, _BOTH, openai._CHAT_ONLY)),
    Table(Endpoint.RESPONSES, {"model": "m", "input": "hi"}, RESPONSES,
          known(openai_responses.ResponsesBody, openai_responses._ASKS_NOTHING)),
    Table(Endpoint.OLLAMA_CHAT, {"model": "m", "messages": HELLO}, OLLAMA_CHAT,
          known(ollama.ChatBody, ollama._ASKS_NOTHING)),
    Table(Endpoint.OLLAMA_GENERATE, {"model": "m", "prompt": "hi"}, OLLAMA_GENERATE,
          known(ollama.GenerateBody, ollama._ASKS_NOTHING)),
    Table(Endpoint.OLLAMA_CHAT, {"model": "m", "messages": HELLO}, OPTIONS,
          known(ollama.Options, ollama._OPTIONS_ASK_NOTHING), inside="options"),
    Table(Endpoint.MESSAGES, {"model": "m", "messages": HELLO, "max_tokens": 5}, MESSAGES,
          known(anthropic.MessagesBody, anthropic._ASKS_NOTHING)),
]  # fmt: skip
ROWS = [(table, name, row) for table in TABLES for name, row in table.rows.items()]


def named(value: Any) -> str:
    if isinstance(value, Table):
        return value.endpoint.value + (f".{value.inside}" if value.inside else "")
    return value if isinstance(value, str) else type(value).__name__


def call_of(table: Table, fields: dict[str, Any]) -> Call:
    body = {**table.least, **({table.inside: fields} if table.inside else fields)}
    return parse(table.endpoint, json.dumps(body).encode(), GatewayConfig())


@pytest.mark.parametrize(("table", "name", "row"), ROWS, ids=named)
def test_a_field_does_what_its_row_says(table: Table, name: str, row: Row) -> None:
    match row:
        case Honoured(value, others):
            assert call_of(table, {**dict(others), name: value}) != call_of(table, dict(others))
        case Ignored(value):
            assert call_of(table, {name: value}) == call_of(table, {})
        case Refused(value):
            with pytest.raises(RequestError) as caught:
                call_of(table, {name: value})
            path = f"{table.inside}.{name}" if table.inside else name
            assert caught.value.param == path and caught.value.status == 400
            assert path in str(caught.value)


@pytest.mark.parametrize(("table", "name", "row"), ROWS, ids=named)
def test_null_is_the_default(table: Table, name: str, row: Row) -> None:
    if name not in table.least and name != "messages":
        assert call_of(table, {name: None}) == call_of(table, {})


@pytest.mark.parametrize("table", TABLES, ids=named)
def test_every_field_that_is_read_has_a_row(table: Table) -> None:
    assert table.read <= set(table.rows)
    ignored = {name for name, row in table.rows.items() if isinstance(row, Ignored)}
    assert set(table.rows) <= table.read | ignored
