"""Tools through the whole gateway: what the model is told, and its calls in the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
import tool_text
from fake_node import TABLE, FakeNode, model, saying, serving, spoken, started

HELLO: Any = [{"role": "user", "content": "the dog"}]
TOOLS: Any = tool_text.TOOLS

Talk = Callable[[openai.AsyncOpenAI], Awaitable[None]]


def told_in(prompt_ids: tuple[int, ...]) -> str:
    return TABLE.showing_special().decode(prompt_ids)


def node_of(*answers: str, reason: str = "stop") -> FakeNode:
    scripts = [saying(answer, reason) for answer in answers]
    return FakeNode(views=(model(context=4096),), scripts=list(scripts), files=tool_text.files())


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


def test_a_call_is_told_and_its_result_goes_back() -> None:
    node = node_of(tool_text.ASKS, "It is warm.")

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
        (choice,) = answer.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        (call,) = choice.message.tool_calls or []
        assert call.type == "function" and call.id.isalnum() and len(call.id) == 9
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "weather",
            {"city": "Rom"},
        )
        told = told_in(node.orders[0].prompt_ids)
        assert "The weather of a place" in told and told.endswith("<|assistant|>")
        result = {"role": "tool", "tool_call_id": call.id, "content": "30 degrees"}
        again = await client.chat.completions.create(
            model="tiny",
            messages=[*HELLO, choice.message, result],
            tools=TOOLS,  # type: ignore[list-item]
        )
        assert again.choices[0].message.content == "It is warm."
        assert (again.choices[0].finish_reason, again.choices[0].message.tool_calls) == (
            "stop",
            None,
        )
        told = told_in(node.orders[1].prompt_ids)
        assert '{"name": "weather", "arguments": {"city": "Rom"}}</tool_call>' in told
        assert "<|tool|>30 degrees" in told

    talk(node, conversation)


def test_a_streamed_call_joins_to_the_whole_one() -> None:
    node = node_of(tool_text.ASKS)

    async def conversation(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, tools=TOOLS, stream=True
        )
        text, names, arguments, pieces, reason = "", [], "", 0, None
        async for chunk in stream:
            (choice,) = chunk.choices
            text += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                assert delta.index == 0 and delta.function is not None
                names += [delta.function.name] if delta.function.name else []
                arguments += delta.function.arguments or ""
                pieces += 1
            reason = choice.finish_reason or reason
        assert (text, names, reason) == ("Let me see.", ["weather"], "tool_calls")
        assert json.loads(arguments) == {"city": "Rom"} and pieces > 2

    talk(node, conversation)


def test_an_answer_ends_with_its_one_call_where_no_more_may_come() -> None:
    never = asyncio.Event()
    node = node_of()
    node.scripts.append([started("a", "b"), *spoken(tool_text.ASKS + tool_text.ASKS), never])

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, tools=TOOLS, parallel_tool_calls=False
        )
        assert len(answer.choices[0].message.tool_calls or []) == 1
        assert answer.choices[0].finish_reason == "tool_calls"
        await node.generations[0].cancelled.wait()

    talk(node, conversation)


def test_without_tools_on_offer_text_is_text() -> None:
    node = node_of(tool_text.ASKS, tool_text.ASKS)

    async def conversation(client: openai.AsyncOpenAI) -> None:
        for extra in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            answer = await client.chat.completions.create(
                model="tiny",
                messages=HELLO,
                **extra,  # type: ignore[arg-type]
            )
            assert answer.choices[0].message.content == tool_text.ASKS
            assert answer.choices[0].finish_reason == "stop"

    talk(node, conversation)


@pytest.mark.parametrize("cut", ["length", "stop"])
def test_a_call_that_is_cut_off_has_the_reason_of_the_cut(cut: str) -> None:
    node = node_of('<tool_call>{"name": "weather", "arguments": {"ci', reason=cut)

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.function.arguments == '{"ci'
        expected = "length" if cut == "length" else "tool_calls"
        assert answer.choices[0].finish_reason == expected

    talk(node, conversation)


def test_models_that_know_no_tools_say_so() -> None:
    past = {"role": "tool", "tool_call_id": "x", "content": "3"}

    async def conversation(client: openai.AsyncOpenAI) -> None:
        create: Any = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="knows no tools") as caught:
            await create(model="tiny", messages=HELLO, tools=TOOLS)
        assert caught.value.param == "tools"
        with pytest.raises(openai.BadRequestError, match="no messages about them"):
            await create(model="tiny", messages=[*HELLO, past])

    talk(FakeNode(views=(model(context=4096),)), conversation)


def test_an_unknown_way_of_calling_is_refused() -> None:
    node = node_of()
    node.files["chat_template.jinja"] = b"{{ tools }} {{ messages }}"

    async def conversation(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="is not known here"):
            await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)

    talk(node, conversation)


def test_a_call_that_must_come_reaches_the_node_as_a_guide() -> None:
    node = node_of('<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>')

    async def conversation(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, tools=TOOLS, tool_choice="required"
        )
        assert len(answer.choices[0].message.tool_calls or []) == 1
        (order,) = node.orders
        assert order.guide is not None and order.sampling.guide is order.guide.kind
        assert "weather" in order.guide.source

    talk(node, conversation)
