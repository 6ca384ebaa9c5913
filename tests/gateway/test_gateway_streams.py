"""Streams over raw sockets: what a client sees of stalls, losses, cuts, and of its own leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fake_node import (
    TEXT,
    FakeNode,
    Served,
    Step,
    failed,
    finished,
    generated,
    model,
    rerouted,
    saying,
    serving,
    spoken,
    started,
    stats,
)

from swarm.config import GatewayConfig
from swarm.effects import Finished, Stalled
from swarm.errors import NoRoute, RerouteLimitReached
from swarm.terms import LayerRange

HELLO = [{"role": "user", "content": "the dog"}]
GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "cover did not return")


@dataclass
class Client:
    """A bare HTTP/1.1 client that sees every byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, path: str, **body: Any) -> bytes:
        """Send a request; the head of the response, headers in lower case."""
        data = json.dumps({"model": "tiny"} | body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        return (await self.reader.readuntil(b"\r\n\r\n")).lower()

    async def block(self) -> str | None:
        """The next event or comment; None at the proper end of the body."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readline()
        return data.decode() if size else None

    async def blocks(self) -> list[str]:
        """All that is left, one entry per event or comment."""
        text = ""
        while (data := await self.block()) is not None:
            text += data
        return text.split("\n\n")[:-1]

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


Talk = Callable[[Served, Client], Awaitable[None]]


def talk(node: FakeNode, conversation: Talk, config: GatewayConfig | None = None) -> None:
    async def main() -> None:
        async with serving(node, config) as served:
            client = Client(
                *await asyncio.open_connection(served.address.host, served.address.port)
            )
            await conversation(served, client)
            await client.close()

    asyncio.run(main())


def events(blocks: list[str]) -> list[Any]:
    """The JSON of the data events."""
    data = [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def text_of(blocks: list[str]) -> str:
    choices = [event["choices"][0] for event in events(blocks) if event.get("choices")]
    return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)


def finishes(blocks: list[str]) -> list[str]:
    choices = [event["choices"][0] for event in events(blocks) if event.get("choices")]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


async def stream(client: Client, **body: Any) -> list[str]:
    await client.ask("/v1/completions", prompt="x", stream=True, **body)
    return await client.blocks()


def test_a_chat_stream_opens_with_the_role_and_ends_with_usage_and_done() -> None:
    node = FakeNode(scripts=[saying("the dog")])

    async def conversation(_: Served, client: Client) -> None:
        head = await client.ask(
            "/v1/chat/completions", messages=HELLO, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        assert b" 200 " in head and b"content-type: text/event-stream" in head
        assert b"x-swarm-session: 0000000000000000" in head
        blocks = await client.blocks()
        first, *middle, last = events(blocks)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["object"] == "chat.completion.chunk"
        assert all(event["usage"] is None for event in [first, *middle])
        assert middle[-1]["choices"][0]["delta"] == {}
        assert text_of(blocks) == "the dog" and finishes(blocks) == ["length"]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len(spoken("the dog"))
        assert [hop["node"] for hop in last["swarm"]["route"]] == ["a", "b"]
        assert last["swarm"]["ttft_ms"] > 0 and last["swarm"]["exact"] is True
        assert blocks[-1] == "data: [DONE]"

    talk(node, conversation)


def test_a_completion_stream_has_ids_where_they_are_asked_for() -> None:
    node = FakeNode(scripts=[saying("😀 dog"), saying("dog")])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, return_token_ids=True)
        first, *rest = [event["choices"][0] for event in events(blocks)]
        assert first["prompt_token_ids"] == list(node.orders[0].prompt_ids)
        ids = [i for choice in rest for i in choice["token_ids"]]
        assert ids == list(TEXT.encode("😀 dog", special=False))
        assert text_of(blocks) == "😀 dog"
        assert not any("usage" in event for event in events(blocks))
        assert not any("token_ids" in json.dumps(e) for e in events(await stream(client)))

    talk(node, conversation)


def test_logprobs_come_with_their_tokens() -> None:
    node = FakeNode(scripts=[saying("ab"), saying("ab")])

    async def conversation(_: Served, client: Client) -> None:
        choices = [event["choices"][0] for event in events(await stream(client, logprobs=1))]
        told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        assert [entry["tokens"] for entry in told] == [["a"], ["b"]]
        assert [entry["text_offset"] for entry in told] == [[0], [1]]
        await client.ask("/v1/chat/completions", messages=HELLO, stream=True, logprobs=True)
        choices = [event["choices"][0] for event in events(await client.blocks())]
        entries = [c["logprobs"]["content"][0] for c in choices if c["logprobs"]]
        assert [entry["token"] for entry in entries] == ["a", "b"]

    talk(node, conversation)


@pytest.mark.parametrize("lost_after", range(len(spoken("go 😀日 on"))))
def test_a_character_split_over_the_loss_comes_out_whole(lost_after: int) -> None:
    tokens = spoken("go 😀日 on")
    node = FakeNode(scripts=[rerouted(tokens[:lost_after], tokens[lost_after:])])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, stream_options={"include_usage": True})
        assert text_of(blocks) == "go 😀日 on"
        assert "\ufffd" not in json.dumps(blocks, ensure_ascii=False)
        told = events(blocks)[-1]
        assert told["usage"]["completion_tokens"] == len(tokens)
        assert (told["swarm"]["reroutes"], told["swarm"]["stall_ms"]) == (1, [125.0])
        assert ": stalled: b vanished" in blocks
        assert blocks[-1] == "data: [DONE]"

    talk(node, conversation)


@pytest.mark.parametrize("lost_after", range(len(spoken("a dog STOP it"))))
def test_a_stop_string_split_over_the_loss_still_stops(lost_after: int) -> None:
    tokens = spoken("a dog STOP it")
    node = FakeNode(scripts=[rerouted(tokens[:lost_after], tokens[lost_after:])])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, stop=[" STOP", "never"])
        assert text_of(blocks) == "a dog" and finishes(blocks) == ["stop"]
        assert blocks[-1] == "data: [DONE]"
        assert node.generations[0].cancelled.is_set()

    talk(node, conversation)


def test_text_withheld_for_a_stop_that_does_not_come_is_not_lost() -> None:
    tokens = spoken("a STO")
    node = FakeNode(scripts=[rerouted(tokens, [])])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, stop="STOP")
        assert text_of(blocks) == "a STO" and finishes(blocks) == ["length"]

    talk(node, conversation)


@pytest.mark.parametrize("error", [GONE, RerouteLimitReached("lost 17 hops")])
@pytest.mark.parametrize("token_count", [0, 1, 4])
def test_a_cut_stream_ends_with_an_error_and_nothing_that_looks_like_success(
    error: Any, token_count: int
) -> None:
    tokens = spoken("the dog and fox")[:token_count]
    script = [started("a", "b"), *tokens, Stalled("b vanished"), failed(error)]
    node = FakeNode(scripts=[script])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, stream_options={"include_usage": True})
        told = events(blocks)[-1]
        assert str(error) in told["error"]["message"]
        assert ("2:4" in told["error"]["message"]) is (error is GONE)
        assert "data: [DONE]" not in blocks
        assert finishes(blocks) == []
        assert blocks[-1].startswith("data: {")
        assert not any("choices" in event and not event["choices"] for event in events(blocks))

    talk(node, conversation)


def test_withheld_text_is_given_out_before_the_error() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("a STO"), failed(GONE)]])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, stop="STOP")
        assert text_of(blocks) == "a STO" and "error" in events(blocks)[-1]

    talk(node, conversation)


def test_comments_keep_the_connection_alive_and_name_the_stall() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    script: list[Step] = [
        started("a", "b"), first, *spoken("dog"), Stalled("b went silent"), second,
        started("a", "c", epoch=2), *spoken(" fox"), Finished("length", stats("a", "c")),
    ]  # fmt: skip
    node = FakeNode(scripts=[script])

    async def conversation(_: Served, client: Client) -> None:
        await client.ask("/v1/completions", prompt="x", stream=True)
        assert await client.block() == ": waiting\n\n"
        assert await client.block() == ": waiting\n\n"
        first.set()
        seen = ""
        while "b went silent" not in seen:
            seen += await client.block() or ""
        reminder = await client.block() or ""
        assert reminder.startswith(": stalled for ")
        second.set()
        blocks = await client.blocks()
        assert text_of([*seen.split("\n\n"), *blocks]) == "dog fox"

    talk(node, conversation, GatewayConfig(keepalive_s=0.01))


def test_a_slow_start_is_kept_alive_too() -> None:
    gate = asyncio.Event()
    node = FakeNode(scripts=[[gate, *saying("dog")]])

    async def conversation(_: Served, client: Client) -> None:
        head = await client.ask("/v1/chat/completions", messages=HELLO, stream=True)
        assert b" 200 " in head
        opening = await client.block() or ""
        assert '"role": "assistant"' in opening
        gate.set()
        assert text_of(await client.blocks()) == "dog"

    talk(node, conversation, GatewayConfig(keepalive_s=0.01))


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("token_count", [0, 1, 5])
def test_a_client_that_leaves_stops_the_work_at_once(is_stream: bool, token_count: int) -> None:
    never = asyncio.Event()
    script = [started("a", "b"), *spoken("the dog and fox")[:token_count], never]
    node = FakeNode(scripts=[script])

    async def conversation(served: Served, client: Client) -> None:
        data = json.dumps({"model": "tiny", "prompt": "x", "stream": is_stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
        client.writer.write(head.encode() + b"\r\n\r\n" + data)
        while not node.generations or node.generations[0].given <= token_count:
            await asyncio.sleep(0)
        await client.close()
        await node.generations[0].cancelled.wait()
        while not served.notes:
            await asyncio.sleep(0)
        assert served.notes[-1].get("outcome") == "client gone"
        assert served.notes[-1].get("completion_tokens") == token_count

    talk(node, conversation)


def test_a_reset_connection_stops_the_work_too() -> None:
    never = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the dog"), never]])

    async def conversation(_: Served, client: Client) -> None:
        await client.ask("/v1/completions", prompt="x", stream=True)
        client.writer.transport.abort()
        await node.generations[0].cancelled.wait()

    talk(node, conversation)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    words = generated([5]) * 20_000
    never = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), *words, never]])

    async def conversation(_: Served, client: Client) -> None:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        data = b'{"model": "tiny", "prompt": "x", "stream": true, "logprobs": 5}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
        client.writer.write(head.encode() + b"\r\n\r\n" + data)
        while not node.generations:
            await asyncio.sleep(0)
        await node.generations[0].cancelled.wait()

    talk(node, conversation, GatewayConfig(write_timeout_s=0.1))


def test_stopping_the_gateway_tells_the_clients_of_running_answers() -> None:
    never = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the dog"), never]])

    async def main() -> None:
        async with serving(node) as served:
            client = Client(
                *await asyncio.open_connection(served.address.host, served.address.port)
            )
            await client.ask("/v1/completions", prompt="x", stream=True)
            while node.generations[0].given <= len(spoken("the dog")):
                await asyncio.sleep(0)
            await served.gateway.stop()
            blocks = await client.blocks()
            assert text_of(blocks) == "the dog"
            assert "cut off" in events(blocks)[-1]["error"]["message"]
            assert "data: [DONE]" not in blocks and finishes(blocks) == []
            await client.close()

    asyncio.run(main())


def test_many_streams_at_once_all_end() -> None:
    node = FakeNode(scripts=[saying("dog " * n, "length") for n in range(1, 33)])

    async def one(served: Served) -> int:
        client = Client(*await asyncio.open_connection(served.address.host, served.address.port))
        blocks = await stream(client)
        assert finishes(blocks) == ["length"] and blocks[-1] == "data: [DONE]"
        await client.close()
        return text_of(blocks).count("dog")

    async def main() -> None:
        async with serving(node) as served:
            counts = await asyncio.gather(*(one(served) for _ in range(32)))
            assert sorted(counts) == list(range(1, 33))

    asyncio.run(main())


def test_an_idle_connection_keeps_nobody_out() -> None:
    node = FakeNode(scripts=[saying("dog")])

    async def conversation(served: Served, client: Client) -> None:
        idle = Client(*await asyncio.open_connection(served.address.host, served.address.port))
        idle.writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
        assert text_of(await stream(client)) == "dog"
        await idle.close()

    talk(node, conversation)


def test_a_bug_in_mid_stream_is_an_error_event() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("dog"), "not an event"]])  # type: ignore[list-item]

    async def conversation(served: Served, client: Client) -> None:
        blocks = await stream(client)
        assert text_of(blocks) == "dog"
        assert events(blocks)[-1]["error"]["code"] == "internal"
        assert "data: [DONE]" not in blocks
        assert "gateway.bug" in [entry.event for entry in served.notes]

    talk(node, conversation)


def test_a_finish_at_the_end_token_is_a_stop() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("dog<|end|>"), finished("stop")]])

    async def conversation(_: Served, client: Client) -> None:
        blocks = await stream(client, stream_options={"include_usage": True})
        assert text_of(blocks) == "dog" and finishes(blocks) == ["stop"]
        told = events(blocks)[-1]
        assert told["usage"]["completion_tokens"] == len(spoken("dog<|end|>"))

    talk(node, conversation)
