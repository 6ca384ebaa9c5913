"""OpenAI's `/v1/responses` with its own Python client, and its requests one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
import tool_text
from fake_node import TABLE, FakeNode, failed, model, rerouted, saying, serving, spoken, started

from swarm.config import GatewayConfig
from swarm.errors import NoRoute, RequestError
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.dialects import parse
from swarm.terms import LayerRange

TOOL: Any = {"type": "function", **tool_text.WEATHER, "strict": False}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "cover did not return")

Talk = Callable[[openai.AsyncOpenAI], Awaitable[None]]


def talk(node: FakeNode, conversation: Talk) -> None:
    async def main() -> None:
        async with (
            serving(node) as served,
            openai.AsyncOpenAI(
                base_url=f"{served.url}/v1", api_key="unused", max_retries=0
            ) as client,
        ):
            await conversation(client)

    asyncio.run(main())


def test_text_whole_and_streamed() -> None:
    script = rerouted(spoken("the do"), spoken("g & fox"))
    node = FakeNode(scripts=[script, script, saying("done", "stop")])
    words = len(spoken("the do")) + len(spoken("g & fox"))

    async def conversation(client: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "tiny", "input": "the dog", "instructions": "Be brief."}
        whole = await client.responses.create(**asked, max_output_tokens=20, temperature=0.5)
        assert whole.output_text == "the dog & fox"
        assert whole.status == "incomplete" and whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.usage is not None and whole.usage.output_tokens == words
        assert (whole.temperature, whole.instructions, whole.max_output_tokens) == (
            0.5, "Be brief.", 20,
        )  # fmt: skip
        told = TABLE.showing_special().decode(node.orders[0].prompt_ids)
        assert told == "<|system|>Be brief.<|end|>\n<|user|>the dog<|end|>\n<|assistant|>"

        text, numbers, kinds = "", [], []
        async for event in await client.responses.create(**asked, stream=True):
            numbers.append(event.sequence_number)
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.incomplete":
                assert event.response.output_text == text == "the dog & fox"
                assert event.response.usage == whole.usage
        assert numbers == list(range(len(numbers)))
        assert list(dict.fromkeys(kinds)) == [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added", "response.output_text.delta",
            "response.output_text.done", "response.content_part.done",
            "response.output_item.done", "response.incomplete",
        ]  # fmt: skip
        done = await client.responses.create(
            model="tiny", input="x", top_logprobs=2, include=["message.output_text.logprobs"]
        )
        assert done.status == "completed"
        (item,) = done.output
        assert item.type == "message" and item.content[0].type == "output_text"
        logprobs = item.content[0].logprobs or []
        assert "".join(entry.token for entry in logprobs) == "done"

    talk(node, conversation)


def test_tools_and_their_results() -> None:
    scripts = [saying(answer, "stop") for answer in (tool_text.ASKS, tool_text.ASKS, "Warm.")]
    node = FakeNode(views=(model(context=4096),), scripts=list(scripts), files=tool_text.files())

    async def conversation(client: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "tiny", "tools": [TOOL]}
        whole = await client.responses.create(**asked, input="the dog")
        words, call = whole.output
        assert (words.type, call.type, whole.status) == ("message", "function_call", "completed")
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Rom"}
        async with client.responses.stream(**asked, input="the dog") as stream:
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert final.output[1].type == "function_call"
        assert json.loads(final.output[1].arguments) == {"city": "Rom"}
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "30 degrees"}
        history: Any = [{"role": "user", "content": "the dog"}, *whole.output, result]
        again = await client.responses.create(**asked, input=history)
        assert again.output_text == "Warm."
        told = TABLE.showing_special().decode(node.orders[2].prompt_ids)
        assert 'Let me see.<tool_call>{"name": "weather"' in told and "<|tool|>30 degrees" in told

    talk(node, conversation)


def test_a_cut_stream_fails_and_is_never_completed() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the"), failed(GONE)]])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        events = [
            e async for e in await client.responses.create(model="tiny", input="x", stream=True)
        ]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert "cover did not return" in events[-1].response.error.message
        assert not any(event.type == "response.completed" for event in events)
        with pytest.raises(openai.BadRequestError, match="send the whole conversation"):
            await client.responses.create(model="tiny", input="x", previous_response_id="resp_1")

    talk(node, conversation)


def call_of(**fields: Any) -> Call:
    body = {"model": "m", "input": "hi"} | fields
    return parse(Endpoint.RESPONSES, json.dumps(body).encode(), GatewayConfig())


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": []},
        CALLED,
        CALLED | {"call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    first, second, third = call_of(input=items).prompts[0]
    assert first == {"role": "developer", "content": "a"}
    assert isinstance(second, dict) and [c["id"] for c in second["tool_calls"]] == ["c", "d"]
    assert third == {"role": "tool", "tool_call_id": "c", "content": "1"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input.0"),
        ({"input": [{"type": "image"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "image"}]}]}, "input.0.content.0.type"),
        ({"input": [{"content": "x"}]}, "input.0.role"),
        ({"input": [CALLED | {"arguments": "x"}]}, "messages.0.tool_calls.0.function.arguments"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function.name"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        call_of(**fields)
    assert caught.value.param == param
