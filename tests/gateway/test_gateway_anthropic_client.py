"""Anthropic's own Python client against the gateway, and its requests one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import pytest
import tool_text
from fake_node import (
    TABLE,
    FakeNode,
    failed,
    finished,
    model,
    rerouted,
    saying,
    serving,
    spoken,
    started,
)

from swarm.config import GatewayConfig
from swarm.effects import Stalled
from swarm.errors import NoRoute, RequestError
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.dialects import parse
from swarm.terms import LayerRange

HELLO: Any = [{"role": "user", "content": "the dog"}]
TOOL: Any = {
    "name": "weather",
    "description": "The weather of a place",
    "input_schema": tool_text.WEATHER["parameters"],
}
GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "cover did not return")

Talk = Callable[[anthropic.AsyncAnthropic], Awaitable[None]]


def talk(node: FakeNode, conversation: Talk, config: GatewayConfig | None = None) -> None:
    async def main() -> None:
        async with (
            serving(node, config) as served,
            anthropic.AsyncAnthropic(
                base_url=served.url, api_key="unused", max_retries=0
            ) as client,
        ):
            await conversation(client)

    asyncio.run(main())


def tool_node(*answers: str) -> FakeNode:
    scripts = [saying(answer, "stop") for answer in answers]
    return FakeNode(views=(model(context=4096),), scripts=list(scripts), files=tool_text.files())


def test_messages_whole_and_streamed() -> None:
    script = rerouted(spoken("the do"), spoken("g & fox"))
    node = FakeNode(scripts=[script, script, saying("a STOP b", "stop")])

    async def conversation(client: anthropic.AsyncAnthropic) -> None:
        asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "system": "Be brief."}
        answer = await client.messages.create(**asked, temperature=0.5, top_k=3, top_p=0.9)
        assert [block.text for block in answer.content if block.type == "text"] == ["the dog & fox"]
        assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
        assert answer.usage.output_tokens == len(spoken("the do")) + len(spoken("g & fox"))
        assert answer.model_extra is not None and answer.model_extra["swarm"]["reroutes"] == 1
        sampling = node.orders[0].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.9)
        told = TABLE.showing_special().decode(node.orders[0].prompt_ids)
        assert told == "<|system|>Be brief.<|end|>\n<|user|>the dog<|end|>\n<|assistant|>"
        assert answer.usage.input_tokens == len(node.orders[0].prompt_ids)

        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert text == "the dog & fox" and final.stop_reason == "max_tokens"
        assert final.usage.output_tokens == answer.usage.output_tokens

        answer = await client.messages.create(**asked, stop_sequences=["STOP"])
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")

    talk(node, conversation)


def test_tools_and_their_results() -> None:
    node = tool_node(tool_text.ASKS, tool_text.ASKS, "It is warm.")

    async def conversation(client: anthropic.AsyncAnthropic) -> None:
        asked: Any = {"model": "tiny", "max_tokens": 99, "tools": [TOOL]}
        answer = await client.messages.create(messages=HELLO, **asked)
        text, call = answer.content
        assert (text.type, call.type, answer.stop_reason) == ("text", "tool_use", "tool_use")
        assert call.type == "tool_use" and (call.name, call.input) == ("weather", {"city": "Rom"})

        async with client.messages.stream(messages=HELLO, **asked) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in final.content] == ["text", "tool_use"]
        assert final.content[1].type == "tool_use" and final.content[1].input == {"city": "Rom"}

        result = {"type": "tool_result", "tool_use_id": call.id, "content": "30 degrees"}
        again = await client.messages.create(
            messages=[
                *HELLO,
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
            ],
            **asked,
        )
        assert [block.text for block in again.content if block.type == "text"] == ["It is warm."]
        told = TABLE.showing_special().decode(node.orders[2].prompt_ids)
        assert '{"name": "weather", "arguments": {"city": "Rom"}}</tool_call>' in told
        assert "<|tool|>30 degrees<|end|>\n<|user|>So?" in told

    talk(node, conversation)


def test_tokens_are_counted_without_an_answer_and_errors_have_anthropics_form() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the"), failed(GONE)]])

    async def conversation(client: anthropic.AsyncAnthropic) -> None:
        counted = await client.messages.count_tokens(model="tiny", messages=HELLO)
        assert counted.input_tokens > 3 and not node.orders
        assert [entry.id async for entry in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).display_name == "tiny"
        create: Any = client.messages.create
        with pytest.raises(anthropic.BadRequestError, match="max_tokens must be at least 1"):
            await create(model="tiny", messages=HELLO, max_tokens=0)
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await create(model="other", messages=HELLO, max_tokens=3)
        body: Any = unknown.value.body
        assert body["type"] == "error" and body["error"]["type"] == "not_found_error"
        assert unknown.value.request_id == f"req_{4242:016x}"
        said = ""
        with pytest.raises(anthropic.APIStatusError, match="cover did not return"):
            async with client.messages.stream(model="tiny", messages=HELLO, max_tokens=9) as stream:
                async for piece in stream.text_stream:
                    said += piece
        assert said == "the"

    talk(node, conversation)


def test_a_stall_is_a_ping() -> None:
    gate = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), Stalled("lost"), gate, *spoken("x"), finished()]])

    async def conversation(client: anthropic.AsyncAnthropic) -> None:
        stream = await client.messages.create(
            model="tiny", messages=HELLO, max_tokens=9, stream=True
        )
        kinds = []
        async for event in stream:
            kinds.append(event.type)
            gate.set()
        assert kinds == [
            "message_start", "content_block_start", "content_block_delta", "content_block_stop",
            "message_delta", "message_stop",
        ]  # fmt: skip

    talk(node, conversation)


def call_of(**fields: Any) -> Call:
    body = {"model": "m", "messages": HELLO, "max_tokens": 5} | fields
    return parse(Endpoint.MESSAGES, json.dumps(body).encode(), GatewayConfig())


def test_an_assistants_last_message_is_continued() -> None:
    rendering = call_of(messages=[*HELLO, {"role": "assistant", "content": "The"}]).rendering
    assert rendering.continue_final and not rendering.add_generation_prompt
    assert not call_of().rendering.continue_final


def test_blocks_become_messages() -> None:
    text = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    call = call_of(system=[text, text], messages=[{"role": "user", "content": [text, text]}])
    assert call.prompts[0] == (
        {"role": "system", "content": "a\na"},
        {"role": "user", "content": "a\na"},
    )


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        (said("user", {"type": "image"}), "messages.0.content.0.type"),
        (said("user", 3), "messages.0.content.0.type"),
        (said("user", {"type": "text"}), "messages.0.content.0.text"),
        (said("user", {"type": "tool_result"}), "messages.0.content.0.tool_use_id"),
        (said("assistant", {"type": "tool_use", "input": 3}), "messages.0.content.0.input"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"system": 3}, "system"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_format": {"type": "text"}}, "output_format.type"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"tools": [TOOL], "tool_choice": {"type": "odd"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": []}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        call_of(**fields)
    assert caught.value.param == param
