"""The endpoints over real sockets: answers, refusals, limits, health, control."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from fake_node import (
    END,
    TEXT,
    TOKEN,
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

from swarm.config import GatewayConfig
from swarm.errors import ConfigError, KvExhausted, LinkClosed, NoRoute, ShardError
from swarm.gateway.http_io import Gateway
from swarm.gateway.sources import Sources
from swarm.terms import LayerRange, ModelId

HELLO = [{"role": "user", "content": "the dog"}]
GONE = NoRoute(model().spec.model_id, (LayerRange(2, 4),), "no route")

Talk = Callable[[Served, aiohttp.ClientSession], Awaitable[None]]


def talk(node: FakeNode, conversation: Talk, config: GatewayConfig | None = None) -> None:
    async def main() -> None:
        async with serving(node, config) as served, aiohttp.ClientSession(served.url) as client:
            await conversation(served, client)

    asyncio.run(main())


async def post(client: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, Any, Any]:
    async with client.post(path, json=body) as response:
        return response.status, await response.json(), response.headers


async def get(client: aiohttp.ClientSession, path: str) -> tuple[int, Any]:
    async with client.get(path) as response:
        return response.status, await response.json()


def test_a_chat_answer_has_text_usage_and_the_way() -> None:
    node = FakeNode(scripts=[rerouted(spoken("the do"), spoken("g & fox"))])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body, headers = await post(
            client, "/v1/chat/completions", model="tiny", messages=HELLO, seed=7, max_tokens=20
        )
        assert status == 200
        (choice,) = body["choices"]
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["content"] == "the dog & fox"
        assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
        assert body["object"] == "chat.completion" and body["model"] == "tiny"
        sent = len(spoken("the do")) + len(spoken("g & fox"))
        assert body["usage"]["completion_tokens"] == sent
        assert body["swarm"]["reroutes"] == 1 and body["swarm"]["stall_ms"] == [125.0]
        assert [hop["node"] for hop in body["swarm"]["route"]] == ["a", "c"]
        assert headers["X-Swarm-Session"] == "0" * 16
        (order,) = node.orders
        assert (order.sampling.seed, order.max_tokens, order.stop_ids) == (7, 20, {END})
        assert node.generations[0].cancelled.is_set()

    talk(node, conversation)


def test_the_prompt_of_a_chat_is_the_rendered_template() -> None:
    node = FakeNode(scripts=[saying("x")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        await post(client, "/v1/chat/completions", model="tiny", messages=HELLO)
        expected = TEXT.encode("<|user|>the dog<|end|>\n<|assistant|>", special=False)
        assert node.orders[0].prompt_ids == expected
        assert node.orders[0].sampling.seed == 4242
        assert node.orders[0].max_tokens == 64 - len(expected)

    talk(node, conversation)


def test_ids_in_and_out() -> None:
    ids = list(TEXT.encode("the dog", special=False))
    node = FakeNode(scripts=[saying(" fox"), saying(" fox")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body, _ = await post(
            client, "/v1/completions", model="tiny", prompt=ids, return_token_ids=True
        )
        (choice,) = body["choices"]
        assert choice["text"] == " fox"
        assert choice["prompt_token_ids"] == ids
        assert choice["token_ids"] == list(TEXT.encode(" fox", special=False))
        _, body, _ = await post(
            client, "/v1/chat/completions", model="tiny", messages=HELLO, return_token_ids=True
        )
        assert body["prompt_token_ids"] == list(node.orders[1].prompt_ids)
        assert body["choices"][0]["token_ids"] == choice["token_ids"]

    talk(node, conversation)


def test_a_model_without_tokenizer_serves_ids_only() -> None:
    node = FakeNode(views=(model(has_text=False),), scripts=[saying("abc")], files={})

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body, _ = await post(
            client,
            "/v1/completions",
            model="tiny",
            prompt=[1, 2],
            return_token_ids=True,
            logprobs=1,
        )
        (choice,) = body["choices"]
        assert choice["text"] == "" and len(choice["token_ids"]) == len(spoken("abc"))
        assert choice["logprobs"]["tokens"][0] == f"token_id:{choice['token_ids'][0]}"
        for path, extra in (
            ("/v1/completions", {"prompt": "text"}),
            ("/v1/chat/completions", {"messages": HELLO}),
        ):
            status, body, _ = await post(client, path, model="tiny", **extra)
            assert status == 400 and "no tokenizer" in body["error"]["message"]
        assert node.files_read == []

    talk(node, conversation)


def test_logprobs_of_both_kinds() -> None:
    node = FakeNode(scripts=[saying("ab"), saying("ab")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body, _ = await post(
            client, "/v1/chat/completions", model="tiny", messages=HELLO, logprobs=True,
            top_logprobs=2,
        )  # fmt: skip
        first, *_ = body["choices"][0]["logprobs"]["content"]
        assert (first["token"], first["bytes"], first["logprob"]) == ("a", [97], -0.25)
        assert first["top_logprobs"][1]["logprob"] == -9999.0
        assert node.orders[0].sampling.logprobs == 2
        _, body, _ = await post(client, "/v1/completions", model="tiny", prompt="x", logprobs=2)
        told = body["choices"][0]["logprobs"]
        assert told["tokens"] == ["a", "b"] and told["token_logprobs"] == [-0.25, -0.25]
        assert told["text_offset"] == [0, 1] and len(told["top_logprobs"][0]) == 2

    talk(node, conversation)


def test_a_stop_string_ends_the_work_at_once() -> None:
    never = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), *spoken("the dog stop"), never, *spoken("x")]])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body, _ = await post(client, "/v1/completions", model="tiny", prompt="x", stop=" stop")
        assert body["choices"][0]["text"] == "the dog"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == len(spoken("the dog stop"))
        assert node.generations[0].cancelled.is_set()

    talk(node, conversation)


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [(GONE, 503, True), (KvExhausted("full"), 503, True), (ShardError("bad kernel"), 500, False)],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_failure_before_the_first_token_is_a_status(
    error: Any, status: int, retry: bool, stream: bool, at_once: bool
) -> None:
    node = FakeNode(scripts=[error if at_once else [failed(error)]])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        got, body, headers = await post(
            client, "/v1/completions", model="tiny", prompt="x", stream=stream
        )
        assert got == status and str(error) in body["error"]["message"]
        assert headers.get("Retry-After") == ("5" if retry else None)
        assert ("X-Swarm-Session" in headers) is not at_once
        assert ("2:4" in body["error"]["message"]) is (error is GONE)

    talk(node, conversation)


def test_a_failure_after_some_tokens_is_no_answer() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("some"), failed(GONE)]])

    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        status, body, _ = await post(client, "/v1/completions", model="tiny", prompt="x")
        assert status == 503 and "choices" not in body
        (told,) = [entry for entry in served.notes if entry.event == "gateway.answered"]
        assert told.get("outcome") == "failed"
        assert told.get("completion_tokens") == len(spoken("some"))

    talk(node, conversation)


def test_an_end_without_a_last_event_is_no_answer_either() -> None:
    node = FakeNode(scripts=[[started("a", "b"), *spoken("some")]])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body, _ = await post(client, "/v1/completions", model="tiny", prompt="x")
        assert status == 503 and "cut off" in body["error"]["message"]

    talk(node, conversation)


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "says"),
    [
        ("chat/completions", {"messages": HELLO}, 400, "model", "required"),
        ("chat/completions", {"model": "tiny", "messages": HELLO, "n": 33}, 400, "n", "32 answers"),
        ("chat/completions", {"model": "other", "messages": HELLO}, 404, "model", "no model"),
        ("completions", {"model": "tiny", "prompt": ""}, 400, "prompt", "empty"),
        ("completions", {"model": "tiny", "prompt": []}, 400, "prompt", "empty"),
        ("completions", {"model": "tiny", "prompt": [999]}, 400, "prompt", "vocabulary"),
        ("completions", {"model": "tiny", "prompt": [1] * 65}, 400, "prompt", "64 tokens"),
        ("completions", {"model": "tiny", "prompt": "ab" * 9000}, 400, "prompt", "64 tokens"),
        ("completions", {"model": "tiny", "prompt": [1], "max_tokens": 64}, 400, "max_tokens", "64"),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_requests_are_told_in_openais_shape(
    path: str, body: Any, status: int, param: str, says: str
) -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        got, told, _ = await post(client, f"/v1/{path}", **body)
        assert got == status
        assert set(told) == {"error"}
        assert (told["error"]["param"], told["error"]["type"]) == (param, "invalid_request_error")
        assert says in told["error"]["message"]

    talk(FakeNode(), conversation)


def test_a_model_without_chat_template_says_so() -> None:
    node = FakeNode()
    del node.files["chat_template.jinja"]

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body, _ = await post(client, "/v1/chat/completions", model="tiny", messages=HELLO)
        assert status == 400 and "base model" in body["error"]["message"]

    talk(node, conversation)


def test_an_uncovered_model_is_not_listed_and_not_served() -> None:
    views = (model("whole"), model("holed", missing=(LayerRange(1, 3),)))

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        _, body = await get(client, "/v1/models")
        assert [entry["id"] for entry in body["data"]] == ["whole"]
        assert (await get(client, "/v1/models/whole"))[1]["object"] == "model"
        assert (await get(client, "/v1/models/holed"))[0] == 503
        assert (await get(client, "/v1/models/a/b"))[0] == 404
        status, body, headers = await post(client, "/v1/completions", model="holed", prompt=[1])
        assert status == 503 and headers["Retry-After"] == "5"
        assert "1:3" in body["error"]["message"]

    talk(FakeNode(views=views), conversation)


def test_the_list_follows_the_cover() -> None:
    node = FakeNode(views=())

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        assert (await get(client, "/v1/models"))[1]["data"] == []
        node.views = (model(),)
        assert [m["id"] for m in (await get(client, "/v1/models"))[1]["data"]] == ["tiny"]

    talk(node, conversation)


def test_text_files_are_read_once_and_asked_for_again_after_a_failure() -> None:
    node = FakeNode(scripts=[saying("x") for _ in range(9)], file_error=LinkClosed("peer went"))

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        ask = {"model": "tiny", "prompt": "x"}
        status, body, _ = await post(client, "/v1/completions", **ask)
        assert status == 503 and "peer went" in body["error"]["message"]
        node.file_error = None
        node.files_read.clear()
        await asyncio.gather(*(post(client, "/v1/completions", **ask) for _ in range(8)))
        assert sorted(node.files_read) == sorted({*node.files_read})
        assert len(node.orders) == 8

    talk(node, conversation)


HASTE = GatewayConfig(prepare_timeout_s=0.05, body_timeout_s=0.05)


def test_a_prompt_that_cannot_be_made_ready_in_time_is_a_503() -> None:
    class Slow(FakeNode):
        async def model_file(self, model_id: ModelId, name: str) -> bytes:
            return await asyncio.get_running_loop().create_future()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body, headers = await post(client, "/v1/completions", model="tiny", prompt="x")
        assert status == 503 and headers["Retry-After"] == "5"
        assert "could not be made ready within 0.05 s" in body["error"]["message"]

    talk(Slow(), conversation, HASTE)


def test_a_body_that_does_not_come_is_a_408() -> None:
    async def conversation(served: Served, _: aiohttp.ClientSession) -> None:
        reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        writer.write(head.encode())
        assert b" 408 " in await reader.readline()
        writer.close()

    talk(FakeNode(), conversation, HASTE)


def test_an_unusable_tokenizer_is_a_500_that_names_it() -> None:
    node = FakeNode(files={"tokenizer.json": b"{}"})

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body, _ = await post(client, "/v1/completions", model="tiny", prompt="x")
        assert status == 500 and "tokenizer of tiny" in body["error"]["message"]

    talk(node, conversation)


def test_too_many_requests_are_turned_away() -> None:
    gate = asyncio.Event()
    node = FakeNode(scripts=[[started("a", "b"), gate, *spoken("x"), finished()], saying("y")])
    config = GatewayConfig(requests_max=1, queue_max=0)

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        ask = {"model": "tiny", "prompt": [1]}
        first = asyncio.create_task(post(client, "/v1/completions", **ask))
        while not node.orders:
            await asyncio.sleep(0)
        status, body, headers = await post(client, "/v1/completions", **ask)
        assert status == 429 and headers["Retry-After"] == "5"
        assert body["error"]["type"] == "rate_limit_error"
        gate.set()
        assert (await first)[0] == 200
        assert (await post(client, "/v1/completions", **ask))[0] == 200

    talk(node, conversation, config)


def test_bodies_paths_and_methods_have_limits() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body, _ = await post(client, "/v1/completions", model="tiny", prompt="x" * 2000)
        assert status == 413 and "longer than the 1000 bytes" in body["error"]["message"]
        status, body = await get(client, "/v1/elsewhere")
        assert status == 404 and "/v1/elsewhere" in body["error"]["message"]
        async with client.put("/v1/models") as response:
            assert response.status == 405 and "GET" in response.headers["Allow"]
            assert "takes GET,HEAD, not PUT" in (await response.json())["error"]["message"]
        for kind in ("text/plain", "multipart/form-data; boundary=x", "image/png"):
            headers = {"Content-Type": kind}
            async with client.post("/v1/completions", data=b"{}", headers=headers) as response:
                assert response.status == 415
                assert kind.partition(";")[0] in (await response.json())["error"]["message"]

    talk(FakeNode(), conversation, GatewayConfig(body_bytes_max=1000))


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
)
@pytest.mark.parametrize("path", ["/swarm/state", "/v1/models", "/healthz"])
def test_web_pages_cannot_reach_a_loopback_gateway(headers: dict[str, str], path: str) -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        async with client.get(path, headers=headers) as response:
            assert response.status == 403
            assert (await response.json())["error"]["code"] == "forbidden_origin"
        async with client.get(path, headers={"Origin": "http://localhost:3000"}) as response:
            assert response.status != 403

    talk(FakeNode(), conversation)


def test_a_gateway_for_the_network_answers_to_any_name() -> None:
    async def main() -> None:
        async with (
            serving(FakeNode(), GatewayConfig(auth="off"), host="0.0.0.0") as served,
            aiohttp.ClientSession(served.url) as client,
        ):
            name = {"Host": "tower.lan:8000"}
            for origin, status in ((None, 200), ("http://tower.lan:8000", 200), ("null", 403),
                                   ("https://evil.example", 403)):  # fmt: skip
                headers = name | ({"Origin": origin} if origin else {})
                async with client.get("/v1/models", headers=headers) as response:
                    assert response.status == status

    asyncio.run(main())


def test_health_needs_nobody() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        assert await get(client, "/healthz") == (200, {"status": "ok"})
        status, body = await get(client, "/readyz")
        assert status == 503 and "no model" in body["error"]["message"]

    talk(FakeNode(views=()), conversation)


def test_a_fresh_proof_makes_ready_without_work() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        assert (await get(client, "/readyz?model=tiny"))[0] == 200
        assert (await get(client, "/readyz"))[0] == 200
        assert (await get(client, "/readyz?model=other"))[0] == 404

    node = FakeNode(views=(model(probe_age_s=1.0),))
    talk(node, conversation)
    assert not node.orders


def test_an_old_proof_is_renewed_by_one_token_for_all_who_ask() -> None:
    node = FakeNode(
        views=(model(probe_age_s=999.0),),
        scripts=[[started("a", "b"), *generated([5]), finished()]],
    )

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        answers = await asyncio.gather(*(get(client, "/readyz?model=tiny") for _ in range(5)))
        assert [status for status, _ in answers] == [200] * 5
        assert (await get(client, "/readyz"))[0] == 200
        (order,) = node.orders
        assert order.max_tokens == 1

    talk(node, conversation)


@pytest.mark.parametrize("script", [GONE, [failed(GONE)], [started("a", "b"), asyncio.Event()]])
def test_no_token_means_not_ready_though_covered(script: Any) -> None:
    node = FakeNode(scripts=[script])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await get(client, "/readyz?model=tiny")
        assert status == 503
        assert "tiny: no" in body["error"]["message"]
        assert all(generation.cancelled.is_set() for generation in node.generations)

    talk(node, conversation, GatewayConfig(probe_timeout_s=0.05))


def test_an_uncovered_model_is_not_ready() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for path in ("/readyz?model=tiny", "/readyz"):
            status, body = await get(client, path)
            assert status == 503 and "1:2" in body["error"]["message"]

    talk(FakeNode(views=(model(missing=(LayerRange(1, 2),)),)), conversation)


def test_the_state_is_served() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await get(client, "/swarm/state")
        assert status == 200 and body["node_id"] == "a" * 32

    talk(FakeNode(), conversation)


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_leaving_needs_the_token(token: str | None) -> None:
    node = FakeNode()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        headers = {} if token is None else {"X-Swarm-Control": token}
        async with client.post("/swarm/leave", headers=headers) as response:
            assert response.status == 403

    talk(node, conversation)
    assert not node.left.is_set()


def test_leaving_tells_the_node_and_turns_new_requests_away() -> None:
    node = FakeNode()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        for _again in range(2):
            async with client.post("/swarm/leave", headers={"X-Swarm-Control": TOKEN}) as response:
                assert response.status == 202
        await node.left.wait()
        status, body, headers = await post(client, "/v1/completions", model="tiny", prompt=[1])
        assert status == 503 and "leaving" in body["error"]["message"]
        assert "Retry-After" in headers

    talk(node, conversation)


async def leave(client: aiohttp.ClientSession, body: str) -> tuple[int, Any]:
    headers = {"X-Swarm-Control": TOKEN}
    async with client.post("/swarm/leave", data=body, headers=headers) as response:
        return response.status, await response.json()


def test_a_departure_that_is_announced_comes_in_its_time_and_answers_go_on_until_then() -> None:
    node = FakeNode(scripts=[saying("x")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await leave(client, '{"in_s": 3600}')
        assert (status, body["leaving"], body["in_s"]) == (202, True, 3600.0)
        status, _body, _headers = await post(client, "/v1/completions", model="tiny", prompt=[1])
        assert status == 200
        assert not node.left.is_set()
        assert (await leave(client, '{"in_s": 0.01}'))[0] == 202
        await node.left.wait()
        status, _body, _headers = await post(client, "/v1/completions", model="tiny", prompt=[1])
        assert status == 503
        assert (await leave(client, '{"in_s": 60}'))[0] == 409

    talk(node, conversation)
    assert node.notices == [3600.0, 0.01]


def test_a_departure_that_is_announced_may_be_taken_back() -> None:
    node = FakeNode()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, body = await leave(client, '{"stay": true}')
        assert status == 409 and "no departure is announced" in body["error"]["message"]
        await leave(client, '{"in_s": 3600}')
        assert await leave(client, '{"stay": true}') == (200, {"leaving": False})
        assert (await leave(client, '{"stay": true}'))[0] == 409

    talk(node, conversation)
    assert node.notices == [3600.0, None] and not node.left.is_set()


@pytest.mark.parametrize(
    "body",
    ["[]", "{", '{"in_s": "5m"}', '{"in_s": true}', '{"in_s": 0}', '{"in_s": -1}', '{"in_s": 1e9}',
     '{"stay": 1}', '{"stay": true, "in_s": 5}'],
)  # fmt: skip
def test_a_departure_that_makes_no_sense(body: str) -> None:
    node = FakeNode()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, told = await leave(client, body)
        assert status == 400 and told["error"]["message"]

    talk(node, conversation)
    assert node.notices == [] and not node.left.is_set()


def taken_port() -> socket.socket:
    holder = socket.create_server(("127.0.0.1", 0))
    holder.listen()
    return holder


def test_a_busy_default_port_moves_on_and_a_busy_chosen_one_stops() -> None:
    async def main() -> None:
        with taken_port() as holder:
            busy = holder.getsockname()[1]
            config = GatewayConfig(port=busy, port_tries=50)
            sources = Sources(lambda: 0.0, lambda: 0.0, lambda: 0)
            gateway = Gateway(FakeNode(), config, sources, lambda _: None, None)
            address = await gateway.start()
            assert busy < address.port < busy + 50
            await gateway.stop()
            chosen = Gateway(FakeNode(), config, sources, lambda _: None, None)
            with pytest.raises(ConfigError, match=f"port {busy} is in use.*--gateway"):
                await chosen.start("127.0.0.1", busy)

    asyncio.run(main())


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_an_impossible_address_is_a_plain_sentence(host: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="cannot listen on"):
            async with serving(FakeNode(), GatewayConfig(auth="off"), host):
                pass

    asyncio.run(main())
