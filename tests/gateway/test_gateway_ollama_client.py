"""Ollama's own Python client against the gateway, and its requests one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import ollama
import pytest
import tool_text
from fake_node import (
    TABLE,
    TEXT,
    FakeNode,
    Served,
    failed,
    model,
    rerouted,
    saying,
    serving,
    spec,
    spoken,
    started,
)

from swarm.config import GatewayConfig
from swarm.errors import NoRoute, RequestError
from swarm.gateway.calls import Call, Endpoint, orders_of
from swarm.gateway.dialects import parse
from swarm.terms import LayerRange

HELLO: Any = [{"role": "user", "content": "the dog"}]
GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "cover did not return")

Talk = Callable[[Served, ollama.AsyncClient], Awaitable[None]]


def talk(node: FakeNode, conversation: Talk) -> None:
    async def main() -> None:
        async with serving(node) as served, ollama.AsyncClient(host=served.url) as client:
            await conversation(served, client)

    asyncio.run(main())


def test_chat_and_generate_whole_and_streamed() -> None:
    script = rerouted(spoken("the do"), spoken("g & fox"))
    node = FakeNode(scripts=[script] * 4)
    words = len(spoken("the do")) + len(spoken("g & fox"))

    async def conversation(_: Served, client: ollama.AsyncClient) -> None:
        options = {"num_predict": 20, "temperature": 0.5, "top_k": 3, "top_p": 0.7, "seed": 9}
        chat = await client.chat("tiny:latest", HELLO, options=options, keep_alive="5m")
        assert chat.message.content == "the dog & fox"
        assert (chat.done, chat.done_reason, chat.eval_count) == (True, "length", words)
        assert chat.prompt_eval_count == len(node.orders[0].prompt_ids)
        assert (chat.total_duration or 0) >= (chat.prompt_eval_duration or 0) > 0
        sampling = node.orders[0].sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (
            0.5, 3, 0.7, 9,
        )  # fmt: skip
        parts = [part async for part in await client.chat("tiny", HELLO, stream=True)]
        assert "".join(part.message.content or "" for part in parts) == "the dog & fox"
        assert [part.done for part in parts[-2:]] == [False, True] and parts[-1].eval_count == words

        told = await client.generate("tiny", "the dog", system="Be brief.")
        assert (told.response, told.done_reason) == ("the dog & fox", "length")
        prompt = TABLE.showing_special().decode(node.orders[2].prompt_ids)
        assert prompt == "<|system|>Be brief.<|end|>\n<|user|>the dog<|end|>\n<|assistant|>"
        pieces = [p async for p in await client.generate("tiny", "the dog", raw=True, stream=True)]
        assert "".join(piece.response or "" for piece in pieces) == "the dog & fox"
        assert node.orders[3].prompt_ids == TEXT.encode("the dog", special=True)

    talk(node, conversation)


def test_tools_and_their_results() -> None:
    scripts = [saying(answer, "stop") for answer in (tool_text.ASKS, tool_text.ASKS, "Warm.")]
    node = FakeNode(views=(model(context=4096),), scripts=list(scripts), files=tool_text.files())

    async def conversation(_: Served, client: ollama.AsyncClient) -> None:
        tools: Any = tool_text.TOOLS
        answer = await client.chat("tiny", HELLO, tools=tools)
        (call,) = answer.message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Rom"})
        parts = [part async for part in await client.chat("tiny", HELLO, tools=tools, stream=True)]
        called = [part.message.tool_calls for part in parts if part.message.tool_calls]
        assert [call.function.arguments for call in called[0]] == [{"city": "Rom"}]
        result = {"role": "tool", "content": "30 degrees", "tool_name": "weather"}
        again = await client.chat("tiny", [*HELLO, answer.message, result], tools=tools)
        assert again.message.content == "Warm."
        assert "<|tool|>30 degrees" in TABLE.showing_special().decode(node.orders[2].prompt_ids)

    talk(node, conversation)


def test_lists_descriptions_and_what_is_not_served() -> None:
    node = FakeNode()

    async def conversation(served: Served, client: ollama.AsyncClient) -> None:
        assert [entry.model for entry in (await client.list()).models] == ["tiny"]
        assert [entry.name for entry in (await client.ps()).models] == ["tiny"]
        shown = await client.show("tiny")
        assert shown.capabilities == ["completion"]
        assert (shown.modelinfo or {})["swarm.context_length"] == 64
        loaded = await client.generate("tiny", keep_alive=-1)
        assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
        with pytest.raises(ollama.ResponseError, match="swarm join --model") as caught:
            await client.pull("tiny")
        assert caught.value.status_code == 501
        with pytest.raises(ollama.ResponseError, match="no model 'other' here") as caught:
            await client.chat("other", HELLO)
        assert caught.value.status_code == 404
        async with aiohttp.ClientSession(served.url) as bare:
            async with bare.get("/api/version") as response:
                assert (await response.json()) == {"version": "0.1.0"}
            # As curl sends it: no content type of JSON.
            asked = {"data": b'{"model": "tiny"}', "headers": {"Content-Type": "text/plain"}}
            async with bare.post("/api/generate", **asked) as response:
                assert (await response.json())["done_reason"] == "load"
        assert not node.orders

    talk(node, conversation)


def test_a_cut_stream_ends_with_an_error_and_is_never_done() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the"), failed(GONE)]])

    async def conversation(_: Served, client: ollama.AsyncClient) -> None:
        parts = []
        with pytest.raises(ollama.ResponseError, match="cover did not return"):
            async for part in await client.chat("tiny", HELLO, stream=True):
                parts.append(part)
        assert "".join(part.message.content or "" for part in parts) == "the"
        assert not any(part.done for part in parts)

    talk(node, conversation)


def call_of(endpoint: Endpoint = Endpoint.OLLAMA_CHAT, **fields: Any) -> Call:
    content = {"messages": HELLO} if endpoint is Endpoint.OLLAMA_CHAT else {"prompt": "hi"}
    body = {"model": "m"} | content | fields
    return parse(endpoint, json.dumps(body).encode(), GatewayConfig())


def test_a_request_without_words_has_ollamas_defaults() -> None:
    call = call_of()
    sampling = call.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 40, 0.9)
    assert call.stream and not call.seed_given and call.max_tokens is None
    assert (
        call_of(messages=[]).prompts == () == call_of(Endpoint.OLLAMA_GENERATE, prompt="").prompts
    )


def test_limits_of_tokens_and_of_the_context() -> None:
    def limit(**options: Any) -> int:
        call = call_of(options=options)
        return orders_of(call, spec(context=4096), [(1,) * 96], [0], GatewayConfig())[0].max_tokens

    assert (limit(), limit(num_predict=7), limit(num_predict=-1)) == (1024, 7, 4000)
    assert limit(num_predict=-2, num_ctx=4096) == 4000
    with pytest.raises(RequestError, match="4096 tokens, not 4097") as caught:
        limit(num_ctx=4097)
    assert caught.value.param == "options.num_ctx"
    with pytest.raises(RequestError) as caught:
        limit(num_predict=4001)
    assert caught.value.param == "options.num_predict"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages.0.images"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"stop": [1]}}, "options.stop"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"options": 3}, "options"),
        ({"think": True}, "think"),
        ({"format": "xml"}, "format"),
        ({"options": {"presence_penalty": 3}}, "options.presence_penalty"),
        ({"suffix": "x"}, "suffix"),
        ({"template": "x"}, "template"),
        ({"tools": [3]}, "tools.0"),
    ],
)
def test_what_cannot_be_done_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        call_of(**fields)
    assert caught.value.param == param


def test_options_of_ollamas_own_engine_do_not_concern_an_answer() -> None:
    assert call_of(options={"num_gpu": 1, "num_thread": 8, "mirostat": 0}) == call_of(options={})
