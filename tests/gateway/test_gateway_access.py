"""Keys at the gateway's door: who is asked for one, what a key opens, and what it is charged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_node import TOKEN, FakeNode, Served, finished, generated, saying, serving, started

from swarm.access.keys import ApiKey, Rate, digest_of
from swarm.access.keys_io import KeyStore
from swarm.access.usage_io import UsageStore
from swarm.config import GatewayConfig
from swarm.errors import ConfigError
from swarm.gateway.access_io import OPEN_PATHS

HELLO = [{"role": "user", "content": "the dog"}]
ASKED = GatewayConfig(auth="on")
Talk = Callable[[Served, aiohttp.ClientSession], Awaitable[None]]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def make_key(home: Path, name: str, **limits: Any) -> None:
    """A key whose text is `secret of NAME`."""
    KeyStore(home).add(ApiKey(name, digest_of(f"secret-of-{name}"), 1.0, **limits))


def talk(home: Path, conversation: Talk, config: GatewayConfig = ASKED, **served: Any) -> None:
    node = served.pop("node", None) or FakeNode()

    async def main() -> None:
        async with (
            serving(node, config, home=home, **served) as gateway,
            aiohttp.ClientSession(gateway.url) as client,
        ):
            await conversation(gateway, client)

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "203.0.113.7"])
def test_a_gateway_beyond_this_machine_does_not_start_without_keys(
    host: str, tmp_path: Path
) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"swarm keys add NAME.*--no-auth"):
            async with serving(FakeNode(), host=host, home=tmp_path):
                pass

    asyncio.run(main())


def test_a_word_that_auth_does_not_know_stops_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"gateway\.auth is auto, on or off"):
            async with serving(FakeNode(), GatewayConfig(auth="yes"), home=tmp_path):
                pass

    asyncio.run(main())


def paths_of(served: Served) -> list[tuple[str, str]]:
    """Every method and path of the gateway's table, and one that is not in it."""
    found = [("GET", "/no/such/page")]
    for route in served.gateway.routes:
        method = "GET" if route.method == "*" else route.method
        found.append((method, re.sub(r"{.*?}", "tiny", route.resource.canonical)))
    return found


def test_beyond_this_machine_everything_but_health_asks_for_a_key(tmp_path: Path) -> None:
    make_key(tmp_path, "anna")

    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        paths = paths_of(served)
        assert {"/healthz", "/metrics", "/swarm/state", "/v1/usage"} <= {path for _, path in paths}
        for method, path in paths:
            for headers in ({}, bearer("wrong"), {"x-api-key": "wrong"}):
                async with client.request(method, path, headers=headers) as response:
                    assert response.status == (200 if path in OPEN_PATHS else 401), path
        for path, told in (
            ("/v1/chat/completions", lambda body: body["error"]["code"] == "invalid_api_key"),
            ("/v1/messages", lambda body: body["error"]["type"] == "authentication_error"),
            ("/api/chat", lambda body: "key" in body["error"]),
        ):
            async with client.post(path, json={}, headers=bearer("wrong")) as response:
                assert told(await response.json()), path
        for headers in (bearer("secret-of-anna"), {"x-api-key": "secret-of-anna"}):
            async with client.get("/v1/models", headers=headers) as response:
                assert response.status == 200

    talk(tmp_path, conversation, GatewayConfig(), host="0.0.0.0")


def test_the_owner_on_this_machine_needs_no_key(tmp_path: Path) -> None:
    make_key(tmp_path, "anna")

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for token, status in ((TOKEN, 200), ("wrong", 401)):
            headers = {"X-Swarm-Control": token}
            async with client.get("/swarm/state", headers=headers) as response:
                assert response.status == status

    talk(tmp_path, conversation)


def test_on_loopback_nobody_is_asked_and_who_shows_a_key_is_counted_by_it(tmp_path: Path) -> None:
    make_key(tmp_path, "anna")
    node = FakeNode(scripts=[saying("fox"), saying("fox"), saying("fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for headers in ({}, bearer("anything"), bearer("secret-of-anna")):
            body = {"model": "tiny", "messages": HELLO}
            async with client.post("/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200

    talk(tmp_path, conversation, GatewayConfig(), node=node)
    lines = UsageStore(tmp_path).lines()
    assert [(line.key, line.amount.requests) for line in lines] == [("", 2), ("anna", 1)]


def test_a_key_opens_the_models_it_was_made_for(tmp_path: Path) -> None:
    make_key(tmp_path, "anna", models=("other",))
    make_key(tmp_path, "bert", models=("tiny",))
    node = FakeNode(scripts=[saying("fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        body = {"model": "tiny", "messages": HELLO}
        for name, status in (("anna", 403), ("bert", 200)):
            headers = bearer(f"secret-of-{name}")
            async with client.post("/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == status
                if status == 403:
                    assert (await response.json())["error"]["code"] == "model_not_allowed"

    talk(tmp_path, conversation, node=node)


def test_a_rate_and_a_days_tokens_are_429_with_the_time_to_wait(tmp_path: Path) -> None:
    make_key(tmp_path, "anna", rate=Rate(2, 3600.0))
    make_key(tmp_path, "bert", tokens_per_day=5)
    node = FakeNode(scripts=[saying("fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for status in (200, 200, 429):
            async with client.get("/v1/models", headers=bearer("secret-of-anna")) as response:
                assert response.status == status
        assert 1700 < int(response.headers["Retry-After"]) <= 1800
        body = {"model": "tiny", "messages": HELLO}
        for status in (200, 429):
            async with client.post(
                "/v1/chat/completions", json=body, headers=bearer("secret-of-bert")
            ) as response:
                assert response.status == status
                code = (await response.json()).get("error", {}).get("code")
        assert code == "insufficient_quota"
        # The wall clock stands at 22:13:20 UTC.
        assert response.headers["Retry-After"] == str(86_400 - (22 * 3600 + 13 * 60 + 20))

    talk(tmp_path, conversation, node=node)


def test_usage_is_what_was_given_out_and_a_key_sees_its_own_alone(tmp_path: Path) -> None:
    for name in ("anna", "bert"):
        make_key(tmp_path, name)
    tokens = [started("a", "b"), *generated([5, 6, 7]), finished()]
    node = FakeNode(scripts=[tokens, tokens, [started("a", "b"), *generated([5]), asyncio.Event()]])

    async def ask(client: aiohttp.ClientSession, name: str, stream: bool) -> None:
        body = {"model": "tiny", "prompt": [1, 2], "stream": stream, "return_token_ids": True}
        headers = bearer(f"secret-of-{name}")
        async with client.post("/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200
            if stream:
                await response.content.readline()
            else:
                await response.read()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for name, stream in (("anna", False), ("bert", False), ("bert", True)):
            await ask(client, name, stream)
        await node.generations[2].cancelled.wait()
        headers = bearer("secret-of-bert")
        async with client.get("/v1/usage", headers=headers) as response:
            found = await response.json()
        line = {"key": "bert", "model": "tiny", "requests": 2, "prompt_tokens": 4,
                "completion_tokens": 4, "cached_tokens": 0}  # fmt: skip
        assert found["data"] == [{"day": "2023-11-14", **line}]
        assert found["totals"] == [line]
        async with client.get("/v1/usage?format=csv&since=2023-11-14", headers=headers) as response:
            assert (await response.text()).splitlines()[1] == "2023-11-14,bert,tiny,2,4,4,0"
        async with client.get("/v1/usage?since=yesterday", headers=headers) as response:
            assert response.status == 400
        owner = {"X-Swarm-Control": TOKEN}
        async with client.get("/v1/usage", headers=owner) as response:
            assert [entry["key"] for entry in (await response.json())["data"]] == ["anna", "bert"]

    talk(tmp_path, conversation, node=node)


def test_pages_may_ask_only_where_their_site_was_named(tmp_path: Path) -> None:
    site, other = "https://chat.example:8443", "https://evil.example"
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for origin, status in ((site, 204), (other, 403)):
            headers = {"Origin": origin, **preflight}
            async with client.options("/v1/chat/completions", headers=headers) as response:
                assert response.status == status
                assert response.headers.get("Access-Control-Allow-Origin") == (
                    site if origin == site else None
                )
        async with client.get("/v1/models", headers={"Origin": site}) as response:
            assert response.status == 401, "a page needs a key as anybody does"
            assert response.headers["Access-Control-Allow-Origin"] == site
            assert response.headers["Vary"] == "Origin"
        async with client.get("/v1/models", headers={"Origin": other}) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers

    make_key(tmp_path, "anna")
    talk(tmp_path, conversation, GatewayConfig(auth="on", allow_origins=f"{site}, app://one"))


def test_without_being_asked_no_page_of_another_site_gets_an_answer(tmp_path: Path) -> None:
    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        for method, path in paths_of(served):
            for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
                async with client.request(method, path, headers=headers) as response:
                    assert response.status == 403, (method, path)
                    assert "Access-Control-Allow-Origin" not in response.headers
            headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
            async with client.options(path, headers=headers) as response:
                assert response.status == 403

    talk(tmp_path, conversation, GatewayConfig())


@pytest.mark.parametrize("origins", ["*", "chat.example", "https://a/b", "https://*.example"])
def test_origins_that_are_none_stop_the_start(origins: str, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="an origin is given as"):
            async with serving(FakeNode(), GatewayConfig(allow_origins=origins)):
                pass

    asyncio.run(main())


def test_headers_that_are_no_text_are_no_key(tmp_path: Path) -> None:
    make_key(tmp_path, "anna")

    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        for header in (
            b"Authorization: Bearer \xff\xfe",
            b"x-api-key: \xff",
            b"X-Swarm-Control: \xff",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.address.port)
            lines = [b"GET /v1/models HTTP/1.1", b"Host: localhost", header, b"Connection: close"]
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert answer.split(b" ", 2)[1] in {b"400", b"401"}, answer
        assert [entry.event for entry in served.notes if entry.event == "gateway.bug"] == []

    talk(tmp_path, conversation)
