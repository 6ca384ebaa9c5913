"""OpenAI's own Python client against the gateway: what it takes for success and for failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from fake_node import (
    TEXT,
    FakeNode,
    failed,
    model,
    rerouted,
    saying,
    serving,
    spoken,
    started,
)

from swarm.effects import Stalled
from swarm.errors import NoRoute
from swarm.terms import LayerRange

HELLO: Any = [{"role": "user", "content": "the dog"}]
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


def test_a_chat_answer() -> None:
    node = FakeNode(scripts=[rerouted(spoken("the do"), spoken("g & fox"))])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, temperature=0.8, top_p=0.9, seed=3, max_tokens=9
        )
        assert answer.choices[0].message.content == "the dog & fox"
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None and answer.usage.total_tokens > 0
        assert answer.model_extra is not None
        assert answer.model_extra["swarm"]["reroutes"] == 1
        (order,) = node.orders
        assert (order.sampling.temperature, order.sampling.seed) == (0.8, 3)

    talk(node, conversation)


def test_a_chat_stream_with_usage() -> None:
    node = FakeNode(scripts=[rerouted(spoken("the 😀"), spoken(" dog"))])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True, "ignore_eos": True, "top_k": 5},
        )
        text, ids, usage, way = "", [], None, None
        async for chunk in stream:
            extra = chunk.model_extra or {}
            usage, way = chunk.usage, extra.get("swarm")
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ids += (choice.model_extra or {}).get("token_ids") or []
        assert text == "the 😀 dog"
        assert tuple(ids) == (
            *TEXT.encode("the 😀", special=False),
            *TEXT.encode(" dog", special=False),
        )
        assert usage is not None and usage.completion_tokens == len(ids)
        assert way is not None and way["stall_ms"] == [125.0]
        (order,) = node.orders
        assert (order.sampling.top_k, order.stop_ids) == (5, frozenset())

    talk(node, conversation)


def test_a_completion_of_ids_and_its_stream() -> None:
    node = FakeNode(scripts=[saying("a dog"), saying("a dog")])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="tiny", prompt=[1, 2, 3], logprobs=2)
        assert answer.choices[0].text == "a dog"
        told = answer.choices[0].logprobs
        assert told is not None and told.tokens is not None and "".join(told.tokens) == "a dog"
        stream = await client.completions.create(model="tiny", prompt="x", stream=True, stop="og")
        assert "".join([c.choices[0].text async for c in stream]) == "a d"

    talk(node, conversation)


def test_chat_logprobs() -> None:
    node = FakeNode(scripts=[saying("ab")])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, logprobs=True, top_logprobs=2
        )
        told = answer.choices[0].logprobs
        assert told is not None and told.content is not None
        assert [entry.token for entry in told.content] == ["a", "b"]
        assert len(told.content[0].top_logprobs) == 2

    talk(node, conversation)


def test_models() -> None:
    async def conversation(client: openai.AsyncOpenAI) -> None:
        assert [entry.id async for entry in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("tiny")).owned_by == "swarm"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")

    talk(FakeNode(), conversation)


def test_errors_have_the_clients_own_types() -> None:
    node = FakeNode(scripts=[GONE])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        create: Any = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="at most 32 answers") as bad:
            await create(model="tiny", messages=HELLO, n=99)
        assert (bad.value.param, bad.value.type) == ("n", "invalid_request_error")
        with pytest.raises(openai.NotFoundError, match="no model") as unknown:
            await create(model="other", messages=HELLO)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="must be an object"):
            await create(model="tiny", messages=HELLO, tools=[{"type": "function"}])
        with pytest.raises(openai.InternalServerError, match="2:4") as gone:
            await create(model="tiny", messages=HELLO)
        assert gone.value.status_code == 503 and gone.value.response.headers["retry-after"] == "5"

    talk(node, conversation)


def test_a_cut_stream_raises_after_the_text_that_came() -> None:
    script = [started("a", "b"), *spoken("the dog"), Stalled("b vanished"), failed(GONE)]
    node = FakeNode(scripts=[script])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        text, reasons = "", []
        with pytest.raises(openai.APIError, match="2:4"):
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                reasons.append(chunk.choices[0].finish_reason)
        assert text == "the dog" and not any(reasons)

    talk(node, conversation)


def test_a_client_that_closes_its_stream_stops_the_work() -> None:
    never = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the dog"), never]])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await node.generations[0].cancelled.wait()

    talk(node, conversation)
