"""aiohttp's server and client run on simulated time and the simulated network."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from sim_streams import Pair

from sims.http_client import LoopConnector
from sims.wire import WIFI

URL = "http://10.0.0.2:8080"


async def _hello(request: web.Request) -> web.Response:
    return web.Response(text=f"hello {request.remote}")


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def _ticks(request: web.Request) -> web.StreamResponse:
    """Three server-sent events, a second apart."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(3):
        await response.write(f"data: {number}\n\n".encode())
        await _pause(1.0)
    return response


async def _pause(duration_s: float) -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(duration_s, future.set_result, None)
    await future


def _serve(pair: Pair) -> web.AppRunner:
    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=10_000_000)
        routes = [("/hello", _hello), ("/ticks", _ticks)]
        app.add_routes([web.get(path, handler) for path, handler in routes])
        app.add_routes([web.post("/echo", _echo)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 8080).start()
        return runner

    return pair.run(pair.processes[1], start())


def test_requests_and_keep_alive() -> None:
    pair = Pair()
    runner = _serve(pair)

    async def talk() -> tuple[list[str], bytes]:
        async with aiohttp.ClientSession(connector=LoopConnector()) as session:
            texts = []
            for _ in range(3):
                async with session.get(f"{URL}/hello") as response:
                    texts.append(await response.text())
            async with session.post(f"{URL}/echo", data=b"x" * 1_000_000) as response:
                return texts, await response.read()

    texts, body = pair.run(pair.processes[0], talk())
    assert texts == ["hello 10.0.0.1"] * 3
    assert body == b"x" * 1_000_000
    pair.run(pair.processes[1], runner.cleanup())
    pair.rest(1.0)
    assert pair.net.open_count(pair.a) == 0
    assert pair.net.open_count(pair.b) == 0
    pair.check()


def test_a_stream_of_events_comes_as_it_is_written() -> None:
    pair = Pair()
    pair.net.profile = WIFI.lossy(0.0)
    _serve(pair)

    async def listen() -> list[float]:
        times = []
        async with (
            aiohttp.ClientSession(connector=LoopConnector()) as session,
            session.get(f"{URL}/ticks") as response,
        ):
            async for line in response.content:
                if line.startswith(b"data"):
                    times.append(pair.now_s)
        return times

    times = pair.run(pair.processes[0], listen())
    assert [after - times[0] for after in times] == pytest.approx([0.0, 1.0, 2.0], abs=0.2)
    pair.check()


def test_a_killed_server_cuts_the_answer_and_then_refuses() -> None:
    pair = Pair()
    _serve(pair)

    async def ask(path: str) -> str:
        try:
            async with (
                aiohttp.ClientSession(connector=LoopConnector()) as session,
                session.get(f"{URL}{path}") as response,
            ):
                return await response.text()
        except aiohttp.ClientError as error:
            return type(error).__name__

    task = pair.loop.spawn(pair.processes[0], ask("/ticks"))
    pair.rest(1.5)
    pair.loop.kill(pair.processes[1])
    pair.net.process_ended(pair.processes[1])
    pair.wait(task.done)
    assert task.result() == "ClientPayloadError"
    assert pair.run(pair.processes[0], ask("/hello")) == "ClientConnectorError"
