"""The helper process for text: same ids, a loop that runs on, crashes outlived, nothing left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import psutil
import pytest
import tiny_text
from fake_node import TABLE, TEXT, FakeNode, InlineHelper, model, saying, serving, spec

from swarm.config import GatewayConfig
from swarm.errors import CapacityError, LinkError, LocalProtocolError, RequestError
from swarm.gateway import text_work
from swarm.gateway.calls import Endpoint
from swarm.gateway.dialects import parse
from swarm.gateway.text_process_io import TextProcess
from swarm.gateway.texts_io import SMALL_BODY_BYTES, Texts
from swarm.terms import ModelSpec

CONFIG = GatewayConfig()
NOW = tiny_text.NOW
LONG = spec(context=10**6)

Work = Callable[[TextProcess, Texts], Awaitable[None]]


def with_process(work: Work, said: list[str] | None = None) -> None:
    """Run something with a real helper, and see that nothing of it is left."""

    async def main() -> int | None:
        helper = TextProcess(CONFIG, (said if said is not None else []).append)
        texts = Texts(FakeNode(), CONFIG, helper)
        await work(helper, texts)
        pid = helper.pid
        await texts.close()
        await texts.close()
        return pid

    pid = asyncio.run(main())
    assert pid is None or not psutil.pid_exists(pid)


def body_of(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny"} | fields).encode()


async def ids(texts: Texts, endpoint: Endpoint, body: bytes, of: ModelSpec) -> tuple[int, ...]:
    """As the gateway does it: read the body, find the tokens, make the ids."""
    call = await texts.parse(endpoint, body)
    await texts.words(of)
    (found,) = await texts.prompt_ids(call, body, of, NOW)
    return found


def test_the_process_gives_the_ids_and_tokens_that_the_same_code_gives_here() -> None:
    messages = [{"role": "user", "content": "the 😀"}]

    async def work(helper: TextProcess, texts: Texts) -> None:
        assert helper.pid is None
        chat = await ids(texts, Endpoint.CHAT, body_of(messages=messages), LONG)
        assert chat == TEXT.encode_chat(messages, NOW)
        text = await ids(texts, Endpoint.COMPLETION, body_of(prompt="the dog"), LONG)
        assert text == TEXT.encode("the dog", special=True)
        words = await texts.words(LONG)
        assert words is not None and words.tool_family is None
        table = words.table
        assert table.decode(text) == "the dog"
        assert (table.pieces, table.offsets, table.flags) == (
            TABLE.pieces,
            TABLE.offsets,
            TABLE.flags,
        )

    with_process(work)


@pytest.mark.parametrize("prompt", ["the dog and fox " * 2000, [1, 2, 3] * 20_000])
def test_a_big_body_is_read_by_the_process(prompt: Any) -> None:
    body = body_of(
        prompt=prompt, stop=["a"], stream=True, stream_options={"include_usage": True}, logprobs=2,
        seed=5, max_tokens=3,
    )  # fmt: skip
    assert len(body) > SMALL_BODY_BYTES

    async def work(_: TextProcess, texts: Texts) -> None:
        call = await texts.parse(Endpoint.COMPLETION, body)
        here = parse(Endpoint.COMPLETION, body, CONFIG)
        assert call.prompts == () and call.sampling == here.sampling and call.stop == here.stop
        assert (call.stream, call.include_usage, call.max_tokens) == (True, True, 3)
        assert await ids(texts, Endpoint.COMPLETION, body, LONG) == (
            tuple(prompt) if isinstance(prompt, list) else TEXT.encode(prompt, special=True)
        )

    with_process(work)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (body_of(prompt="x" * 20_000, n=0), "n must be at least 1"),
        (body_of(prompt=[1] * 20_000), "64 tokens"),
        (body_of(prompt=[1] * 20_000 + [1 << 40]), "64 tokens"),
        (body_of(prompt="x", max_tokens=100), "64 tokens"),
        (b"[" * 20_000, "JSON"),
    ],
)
def test_refusals_come_back_as_they_are(body: bytes, says: str) -> None:
    async def work(_: TextProcess, texts: Texts) -> None:
        with pytest.raises(RequestError, match=says) as caught:
            await ids(texts, Endpoint.COMPLETION, body, spec())
        assert caught.value.status == 400

    with_process(work)


def test_ids_that_are_no_numbers_of_any_vocabulary_are_refused() -> None:
    body = body_of(prompt=[1] * 20_000 + [1 << 40])

    async def work(_: TextProcess, texts: Texts) -> None:
        with pytest.raises(RequestError, match="outside the vocabulary"):
            await ids(texts, Endpoint.COMPLETION, body, LONG)

    with_process(work)


def test_the_loop_runs_on_while_a_long_prompt_is_encoded() -> None:
    body = body_of(prompt="the quick brown fox " * 20_000)

    async def work(_: TextProcess, texts: Texts) -> None:
        await texts.words(LONG)
        task = asyncio.create_task(ids(texts, Endpoint.COMPLETION, body, LONG))
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 10, "the loop stood still"
        assert len(await task) > 20_000

    with_process(work)


def test_a_short_prompt_need_not_wait_for_a_long_one() -> None:
    body = body_of(prompt="the quick brown fox " * 50_000)

    async def work(_: TextProcess, texts: Texts) -> None:
        await texts.words(LONG)
        long = asyncio.create_task(ids(texts, Endpoint.COMPLETION, body, LONG))
        await ids(texts, Endpoint.COMPLETION, body_of(prompt="the dog"), LONG)
        assert not long.done()
        await long

    with_process(work)


def test_a_killed_helper_is_started_again_and_loads_again() -> None:
    body = body_of(prompt="the dog")

    async def work(helper: TextProcess, texts: Texts) -> None:
        first = await ids(texts, Endpoint.COMPLETION, body, LONG)
        pid = helper.pid
        assert pid is not None
        asking = asyncio.create_task(
            ids(texts, Endpoint.COMPLETION, body_of(prompt="dog " * 100_000), LONG)
        )
        await asked(helper)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LinkError, match="text helper ended"):
            await asking
        assert await ids(texts, Endpoint.COMPLETION, body, LONG) == first
        assert helper.pid not in (None, pid)

    with_process(work)


def test_a_fault_that_nobody_foresaw_fails_its_own_question_alone() -> None:
    said: list[str] = []

    async def work(helper: TextProcess, texts: Texts) -> None:
        body = body_of(prompt="dog " * 50_000)
        long = asyncio.create_task(ids(texts, Endpoint.COMPLETION, body, LONG))
        await asked(helper)
        answer, _ = await helper.ask(({"do": "load", "model": "x", "files": 3}, b"secret"))
        with pytest.raises(LocalProtocolError, match="TypeError while"):
            text_work.check(answer)
        assert len(await long) > 10_000
        while not any("text_work.py" in line for line in said):
            await asyncio.sleep(0)

    with_process(work, said)
    assert "TypeError at" in said and not any("secret" in line for line in said)


async def asked(helper: TextProcess) -> None:
    """Until a question is with the process."""
    while helper._running is None or not helper._running.waiting:
        await asyncio.sleep(0)


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
CHAT = body_of(messages=[{"role": "user", "content": "x"}])
PLAIN = body_of(prompt="the dog")


def with_looping_template(work: Work) -> None:
    """A checkpoint whose template never ends; its tokenizer is loaded already."""

    async def main() -> None:
        node = FakeNode(files=tiny_text.files(tiny_text.byte_level(), LOOP))
        helper = TextProcess(CONFIG, lambda line: None)
        texts = Texts(node, CONFIG, helper)
        await texts.words(LONG)
        helper._timeout_s = 0.2
        await work(helper, texts)
        await texts.close()

    asyncio.run(main())


def test_a_template_that_loops_is_given_up_and_its_process_with_it() -> None:
    async def work(helper: TextProcess, texts: Texts) -> None:
        pid = helper.pid
        assert pid is not None
        loops = [asyncio.create_task(ids(texts, Endpoint.CHAT, CHAT, LONG)) for _ in range(3)]
        for outcome in await asyncio.gather(*loops, return_exceptions=True):
            assert isinstance(outcome, CapacityError) and "made ready within 0.2 s" in str(outcome)
        helper._timeout_s = CONFIG.prepare_timeout_s
        # At once, while the old process may still be dying: its end is none of this one's business.
        assert await ids(texts, Endpoint.COMPLETION, PLAIN, LONG) == TEXT.encode(
            "the dog", special=True
        )
        assert helper.pid not in (None, pid)

    with_looping_template(work)


def test_a_question_whose_asker_went_away_is_given_up_too() -> None:
    async def work(helper: TextProcess, texts: Texts) -> None:
        pid = helper.pid
        asking = asyncio.create_task(ids(texts, Endpoint.CHAT, CHAT, LONG))
        await asked(helper)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while helper.pid == pid:
            await asyncio.sleep(0)

    with_looping_template(work)


def test_the_process_ends_when_its_daemon_is_gone() -> None:
    program = [sys.executable, "-m", "swarm.gateway.text_helper_io", "{}"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"\0\0\0")
        process.stdin.close()
        assert process.wait() == 0


def test_models_that_nobody_knows_any_more_are_forgotten() -> None:
    async def main() -> None:
        node, helper = FakeNode(views=(model("one"), model("two"))), InlineHelper(CONFIG)
        texts = Texts(node, CONFIG, helper)
        for name in ("one", "two"):
            await texts.words(spec(name))
        node.views = (model("two"),)
        await texts.words(spec("two"))
        question = text_work.encode_question(Endpoint.COMPLETION, spec("one"), NOW)
        answer, _ = await helper.ask((question, body_of(prompt="x")))
        assert answer == {"unknown_model": True}
        assert len(node.files_read) == 8

    asyncio.run(main())


def test_a_gateway_has_a_helper_of_its_own_and_takes_it_along() -> None:
    node = FakeNode(scripts=[saying("fox")])

    async def main() -> None:
        before = {process.pid for process in psutil.Process().children()}
        async with serving(node, real_helper=True) as served:
            async with (
                aiohttp.ClientSession(served.url) as client,
                client.post("/v1/completions", json={"model": "tiny", "prompt": "x"}) as response,
            ):
                assert (await response.json())["choices"][0]["text"] == "fox"
            started = {process.pid for process in psutil.Process().children()} - before
            assert len(started) == 1
        assert not any(psutil.pid_exists(pid) for pid in started)

    asyncio.run(main())
