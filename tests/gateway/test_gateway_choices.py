"""Several answers to one request, and what else an answer may be asked to hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from fake_node import (
    END,
    TEXT,
    FakeNode,
    Served,
    failed,
    finished,
    generated,
    model,
    rerouted,
    saying,
    serving,
    spoken,
    started,
)
from sse_events import events

from swarm.errors import KvExhausted, NoRoute
from swarm.terms import LayerRange

HELLO = [{"role": "user", "content": "the dog"}]
GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "no route")

Talk = Callable[[Served, aiohttp.ClientSession], Awaitable[None]]


def talk(node: FakeNode, conversation: Talk) -> None:
    async def main() -> None:
        async with serving(node) as served, aiohttp.ClientSession(served.url) as client:
            await conversation(served, client)

    asyncio.run(main())


async def ask(client: aiohttp.ClientSession, **body: Any) -> tuple[int, Any]:
    async with client.post("/v1/completions", json={"model": "tiny", **body}) as response:
        return response.status, await response.json()


async def ask_stream(client: aiohttp.ClientSession, path: str, **body: Any) -> list[Any]:
    asked = {"model": "tiny", "stream": True, **body}
    async with client.post(path, json=asked) as response:
        assert response.status == 200, await response.text()
        return events(await response.text())


def test_each_choice_of_each_prompt_is_a_session_of_its_own() -> None:
    node = FakeNode(scripts=[saying(word) for word in ("the", "dog", "fox", "over")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await ask(client, prompt=["the", "dog"], n=2, seed=3)
        assert status == 200
        assert [(c["index"], c["text"]) for c in body["choices"]] == [
            (0, "the"), (1, "dog"), (2, "fox"), (3, "over"),
        ]  # fmt: skip
        words = sum(len(spoken(word)) for word in ("the", "dog", "fox", "over"))
        prompts = sum(len(TEXT.encode(p, special=True)) for p in ("the", "dog"))
        assert body["usage"] == {
            "prompt_tokens": prompts,
            "completion_tokens": words,
            "total_tokens": prompts + words,
        }
        seeds = [order.sampling.seed for order in node.orders]
        assert seeds[0] == seeds[2] == 3 and seeds[1] == seeds[3] != 3

    talk(node, conversation)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_choices_stream_side_by_side_under_their_index(path: str) -> None:
    gate = asyncio.Event()
    slow = [started("a", "b"), *spoken("the"), gate, *spoken(" dog"), finished("stop")]
    node = FakeNode(scripts=[slow, rerouted(spoken("fo"), spoken("x"))])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        gate.set()
        fields = {"prompt": "x"} if path == "/v1/completions" else {"messages": HELLO}
        chunks = await ask_stream(
            client, path, n=2, stream_options={"include_usage": True}, **fields
        )
        texts, reasons = {0: "", 1: ""}, {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                said = choice.get("text") or choice.get("delta", {}).get("content") or ""
                texts[choice["index"]] += said
                if choice["finish_reason"]:
                    assert choice["index"] not in reasons
                    reasons[choice["index"]] = choice["finish_reason"]
        assert (texts, reasons) == ({0: "the dog", 1: "fox"}, {0: "stop", 1: "length"})
        assert chunks[-1]["choices"] == [] and chunks[-1]["swarm"]["reroutes"] == 1

    talk(node, conversation)


def test_a_choice_that_ends_early_frees_its_hops_while_others_go_on() -> None:
    gate = asyncio.Event()
    short = [started("a", "b"), *spoken("the dog STOP"), asyncio.Event()]
    long = [started("a", "b"), *spoken("the"), gate, finished()]
    node = FakeNode(scripts=[short, long])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        asked = asyncio.create_task(ask(client, prompt="x", n=2, stop="STOP"))
        while len(node.generations) < 2:
            await asyncio.sleep(0)
        await node.generations[0].cancelled.wait()
        assert not node.generations[1].cancelled.is_set()
        gate.set()
        _, body = await asked
        assert [c["text"] for c in body["choices"]] == ["the dog ", "the"]

    talk(node, conversation)


def test_when_one_choice_fails_all_do_and_nothing_runs_on() -> None:
    never = asyncio.Event()
    node = FakeNode(
        scripts=[[started("a", "b"), *spoken("the"), never], [started("a", "b"), failed(GONE)]]
    )

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await ask(client, prompt="x", n=2)
        assert status == 503 and body["error"]["code"] == "no_route"
        for generation in node.generations:
            await generation.cancelled.wait()

    talk(node, conversation)


def test_when_a_choice_finds_no_room_none_is_begun() -> None:
    node = FakeNode(scripts=[[started("a", "b"), asyncio.Event()], KvExhausted("full")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await ask(client, prompt="x", n=2)
        assert status == 503 and body["error"]["code"] == "capacity"
        await node.generations[0].cancelled.wait()

    talk(node, conversation)


@pytest.mark.parametrize("prompt", ["the dog", list(TEXT.encode("the dog", special=True))])
def test_echo_begins_with_the_prompt(prompt: Any) -> None:
    node = FakeNode(scripts=[saying(" fox"), saying(" fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body = await ask(client, prompt=prompt, echo=True)
        assert body["choices"][0]["text"] == "the dog fox"
        chunks = await ask_stream(client, "/v1/completions", prompt=prompt, echo=True)
        assert "".join(c["choices"][0]["text"] for c in chunks) == "the dog fox"

    talk(node, conversation)


def test_a_long_prompt_is_echoed_too() -> None:
    text = "the dog " * 3000
    node = FakeNode(views=(model(context=100_000),), scripts=[saying("fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body = await ask(client, prompt=text, echo=True)
        assert body["choices"][0]["text"] == text + "fox"

    talk(node, conversation)


def test_a_stop_string_is_shown_to_who_asks() -> None:
    node = FakeNode(scripts=[saying("the dog and"), saying("the dog and")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for shown, text in ((True, "the dog"), (False, "the ")):
            _, body = await ask(client, prompt="x", stop="dog", include_stop_str_in_output=shown)
            assert body["choices"][0]["text"] == text
            assert body["choices"][0]["finish_reason"] == "stop"

    talk(node, conversation)


def test_special_tokens_are_shown_to_who_asks() -> None:
    user = TEXT.encode("<|user|>", special=False)
    script = [started("a", "b"), *generated([*user, *TEXT.encode("dog", special=False), END])]
    node = FakeNode(scripts=[[*script, finished("stop")], [*script, finished("stop")]])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for hidden, text in ((False, "<|user|>dog"), (True, "dog")):
            _, body = await ask(client, prompt="x", skip_special_tokens=hidden)
            assert body["choices"][0]["text"] == text

    talk(node, conversation)


def test_every_response_carries_the_name_of_its_request() -> None:
    node = FakeNode(scripts=[saying("x")])

    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        own = {"X-Request-Id": "mine-7"}
        for path in ("/healthz", "/nowhere", "/v1/models"):
            async with client.get(path, headers=own) as response:
                assert response.headers["X-Request-Id"] == "mine-7"
        for odd in ("a b", "x" * 200, ""):
            async with client.get("/healthz", headers={"X-Request-Id": odd}) as response:
                assert response.headers["X-Request-Id"] == f"req_{4242:016x}"
        body = {"model": "tiny", "prompt": "x", "stream": True}
        async with client.post("/v1/completions", json=body, headers=own) as response:
            assert response.headers["X-Request-Id"] == "mine-7"
            await response.read()
        assert served.notes[-1].get("request") == "mine-7"

    talk(node, conversation)
