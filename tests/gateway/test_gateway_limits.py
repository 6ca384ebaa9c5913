"""What clients may ask for at once, how slowly, and with how much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from fake_node import FakeNode, Served, finished, saying, serving, spoken, started

from swarm.config import GatewayConfig

Talk = Callable[[Served, aiohttp.ClientSession], Awaitable[None]]
ASK: dict[str, Any] = {"model": "tiny", "prompt": [1]}


def talk(node: FakeNode, conversation: Talk, config: GatewayConfig) -> None:
    async def main() -> None:
        async with serving(node, config) as served, aiohttp.ClientSession(served.url) as client:
            await conversation(served, client)

    asyncio.run(main())


async def ask(client: aiohttp.ClientSession) -> tuple[int, Any]:
    async with client.post("/v1/completions", json=ASK) as response:
        return response.status, await response.json()


def gated(gate: asyncio.Event, word: str) -> list[Any]:
    return [started("a", "b"), gate, *spoken(word), finished()]


def test_requests_beyond_the_limit_take_turns_in_order() -> None:
    gate = asyncio.Event()
    node = FakeNode(scripts=[gated(gate, "the"), saying("dog"), saying("fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        asked = []
        for waiting in range(3):
            asked.append(asyncio.create_task(ask(client)))
            while node_count(client) <= waiting:
                await asyncio.sleep(0)
        while not node.orders:
            await asyncio.sleep(0)
        assert len(node.orders) == 1
        gate.set()
        answers = [await one for one in asked]
        assert [body["choices"][0]["text"] for _, body in answers] == ["the", "dog", "fox"]

    talk(node, conversation, GatewayConfig(requests_max=1, queue_max=2))


def node_count(client: aiohttp.ClientSession) -> int:
    """Connections that the client has open: one for each request under way."""
    assert client.connector is not None
    return len(client.connector._acquired)


def test_who_goes_away_leaves_the_queue_and_who_waits_too_long_is_told() -> None:
    gate = asyncio.Event()
    node = FakeNode(scripts=[gated(gate, "the"), saying("fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        first = asyncio.create_task(ask(client))
        while not node.orders:
            await asyncio.sleep(0)
        status, body = await ask(client)
        assert status == 503 and "no turn came within 0.05 s" in body["error"]["message"]
        gone = asyncio.create_task(ask(client))
        while node_count(client) < 2:
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        gate.set()
        assert (await first)[0] == 200
        assert (await ask(client))[0] == 200

    config = GatewayConfig(requests_max=1, queue_max=1, queue_timeout_s=0.05)
    talk(node, conversation, config)


def test_who_waits_when_the_node_begins_to_leave_is_turned_away() -> None:
    gate = asyncio.Event()
    node = FakeNode(scripts=[gated(gate, "the")])

    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        asked = []
        for waiting in range(2):
            asked.append(asyncio.create_task(ask(client)))
            while node_count(client) <= waiting or not node.orders:
                await asyncio.sleep(0)
        served.gateway.refuse_new()
        gate.set()
        (first, _), (second, body) = [await one for one in asked]
        assert (first, second) == (200, 503) and "leaving" in body["error"]["message"]
        assert len(node.orders) == 1

    talk(node, conversation, GatewayConfig(requests_max=1))


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"GET /healthz HT"],
)
def test_headers_that_do_not_come_close_the_connection(sent: bytes) -> None:
    async def conversation(served: Served, _: aiohttp.ClientSession) -> None:
        address = served.address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()

    talk(FakeNode(), conversation, GatewayConfig(idle_timeout_s=0.1))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", "than 1000 bytes"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2000 + b"\r\n\r\n", "than 1000"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: x\r\n" % i for i in range(30))
         + b"\r\n", "headers"),
        (b"not http at all\r\n\r\n", "this is no HTTP request that can be read"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", "Content-Length"),
    ],
    ids=["line", "header", "headers", "words", "length"],
)  # fmt: skip
def test_what_cannot_be_read_as_a_request_is_a_400_in_a_sentence(head: bytes, said: str) -> None:
    async def conversation(served: Served, _: aiohttp.ClientSession) -> None:
        address = served.address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(head)
        head_back, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head_back.split()[1] == b"400" and b"application/json" in head_back
        error = json.loads(body)["error"]
        assert error["type"] == "invalid_request_error"
        assert said in error["message"] and "\n" not in error["message"]
        writer.close()

    talk(FakeNode(), conversation, GatewayConfig(header_bytes_max=1000, headers_max=20))
