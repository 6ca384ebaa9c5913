"""Clients that mean no good: what they send to a gateway, and what must be left afterwards.

Everything is drawn from one seeded generator, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil
from fake_node import FakeNode, Served, finished, spoken, started

from swarm.config import GatewayConfig

BODY_BYTES_MAX = 64 * 1024
CONFIG = GatewayConfig(
    body_bytes_max=BODY_BYTES_MAX,
    idle_timeout_s=0.5,
    body_timeout_s=2.0,
    header_bytes_max=4096,
    headers_max=50,
)
"""Small, so that a thousand clients meet every limit."""
BY_DESIGN = {501, 503}
"""Endpoints that are known and not served; a prompt that takes too long to be made ready."""
AT_ONCE = 32
WARM_UP = b'{"model": "tiny", "prompt": "the dog"}'
"""Starts the helper process for text, which stays."""
ANSWER_TIMEOUT_S = 90.0
POSTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show", "/api/pull",
)  # fmt: skip
PATHS = (
    *POSTS, "/v1/models", "/v1/models/tiny", "/api/tags", "/healthz", "/readyz", "/openapi.json",
    "/swarm/state", "/", "/../..", "/%00", "/v1/models/%ff", "/v1//",
)  # fmt: skip
FIELDS = (
    "model", "messages", "prompt", "input", "max_tokens", "temperature", "top_p", "top_k", "seed",
    "n", "stop", "stream", "stream_options", "tools", "tool_choice", "options", "system", "echo",
    "logprobs", "top_logprobs", "chat_template_kwargs", "stop_token_ids", "response_format",
    "instructions", "max_output_tokens", "stop_sequences", "continue_final_message", "format",
    "include", "name", "keep_alive", "user", "metadata",
)  # fmt: skip


@dataclass
class Result:
    """What came of an attack run."""

    statuses: Counter[int | str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    """Requests that were answered with an error of ours, or not at all; leaks."""


def script() -> list[Any]:
    return [started("a", "b"), *spoken("the dog and the fox"), finished("stop")]


def node() -> FakeNode:
    """Answers whatever is asked, as often as it is."""
    return FakeNode(always=script)


def value(random: Random, depth: int = 0) -> Any:
    """Any JSON value, likely or not."""
    kind = random.randrange(12 if depth < 3 else 8)
    if kind == 8:
        return [value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 9:
        return {random.choice(FIELDS): value(random, depth + 1) for _ in range(random.randrange(4))}
    if kind == 10:
        roles = ("user", "assistant", "system", "tool", "developer", "", "x" * 100)
        return [{"role": random.choice(roles), "content": value(random, depth + 2)}]
    if kind == 11:
        part = random.choice(("function", "text", "tool_result", "x"))
        inner, text = value(random, depth + 1), value(random, depth + 2)
        return [{"type": part, "function": inner, "text": text}]
    plain = (None, True, -1, 0, 1 << 80, 1e300, "tiny", "", "\u0000\ud7ff\U0001f600", "x" * 5000,
             0.5, 7)  # fmt: skip
    return random.choice(plain)


def body(random: Random) -> bytes:
    """A body that is nearly right: most fields well, some replaced."""
    message = {"role": "user", "content": "the dog"}
    fields: dict[str, Any] = {
        "model": "tiny", "messages": [message], "prompt": "the dog", "input": "the dog",
        "max_tokens": 5, "stream": random.random() < 0.5,
    }  # fmt: skip
    for _ in range(random.randrange(4)):
        fields[random.choice(FIELDS)] = value(random)
    return json.dumps(fields).encode()


def raw_body(random: Random) -> bytes:
    """Not JSON, or not what JSON should be."""
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: random.randbytes(random.randrange(400)),
        lambda: b"[" * 30_000,
        lambda: b'{"a":' * 8_000,
        lambda: b"null",
        lambda: b'{"model": NaN}',
        lambda: b'{"model": "\\ud800"}',
        lambda: b'{"model": "tiny", "prompt": "' + b"\xff" * 50 + b'"}',
        lambda: b'{"max_tokens": 1' + b"0" * 10_000 + b"}",
        lambda: body(random)[: random.randrange(1, 60)],
    )
    return random.choice(kinds)()


def head(random: Random, path: str, length: int | str, method: str = "POST") -> bytes:
    kinds = ("application/json", "application/json; charset=utf-16", "text/plain", "x", "")
    kind = random.choice(kinds) if random.random() < 0.1 else "application/json"
    lines = [
        f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}",
        f"Content-Length: {length}", "Connection: close",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def well_formed(random: Random) -> bytes:
    data = body(random)
    return head(random, random.choice(POSTS), len(data)) + data


def no_json(random: Random) -> bytes:
    data = raw_body(random)
    return head(random, random.choice(POSTS), len(data)) + data


def wrong_place(random: Random) -> bytes:
    method = random.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "NOPE"))
    return head(random, random.choice(PATHS), 0, method)


def too_big(random: Random) -> bytes:
    path = random.choice(POSTS)
    if random.random() < 0.5:
        return head(random, path, BODY_BYTES_MAX + 1) + b"x" * (BODY_BYTES_MAX + 1)
    start = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    return start.encode() + b"Connection: close\r\n\r\n" + chunk * 6 + b"0\r\n\r\n"


def no_http(random: Random) -> bytes:
    path = random.choice(POSTS)
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: random.randbytes(random.randrange(1, 600)) + b"\r\n\r\n",
        lambda: head(random, path, -1),
        lambda: head(random, path, "1e3"),
        lambda: head(random, path, 5).replace(b"\r\n\r\n", b"\r\nContent-Length: 6\r\n\r\n"),
        lambda: head(random, path + "x" * 9000, 0),
        lambda: head(random, path, 0).replace(b"Host", b"X: " + b"y" * 9000 + b"\r\nHost"),
        lambda: head(random, path, 0).replace(b"Host", b"X: y\r\n" * 200 + b"Host"),
        lambda: head(random, path, 0).replace(b"HTTP/1.1", b"HTTP/9.7"),
        lambda: (
            b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"
        ),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),
    )
    return random.choice(kinds)()


def cut_short(random: Random) -> bytes:
    """Part of a request, after which nothing comes."""
    data = body(random)
    whole = head(random, random.choice(POSTS), len(data)) + data
    return whole[: random.randrange(1, len(whole))]


Attack = Callable[[Served, Random], Awaitable[int | str]]


async def answered(served: Served, data: bytes) -> int | str:
    """Send all and read the answer to its end; the status, or `closed` without one."""
    reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
    try:
        writer.write(data)
        line = await reader.readline()
        await reader.read()
        words = line.split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()


async def hang_up(served: Served, random: Random) -> int | str:
    """Go away after some bytes of the answer, or before the first."""
    reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
    data = json.dumps({"model": "tiny", "prompt": "the dog", "stream": True}).encode()
    writer.write(head(random, "/v1/completions", len(data)) + data)
    with suppress(ConnectionError):
        if random.random() < 0.5:
            await reader.read(random.randrange(1, 300))
    writer.transport.abort()
    return "hung up"


def sending(make: Callable[[Random], bytes]) -> Attack:
    async def attack(served: Served, random: Random) -> int | str:
        return await answered(served, make(random))

    return attack


ATTACKS: tuple[tuple[Attack, float], ...] = (
    (sending(well_formed), 0.5),
    (sending(no_json), 0.12),
    (sending(wrong_place), 0.1),
    (sending(no_http), 0.12),
    (sending(too_big), 0.05),
    (sending(cut_short), 0.03),
    (hang_up, 0.08),
)


async def assault(served: Served, target: FakeNode, count: int, seed: int) -> Result:
    """So many requests, some at a time; what is left of them in the end counts as bad."""
    result = Result()
    await answered(served, head(Random(0), "/v1/completions", len(WARM_UP)) + WARM_UP)
    tasks, descriptors = _tasks(), psutil.Process().num_fds()
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            random = Random(seed * 1_000_003 + number)
            (attack,) = random.choices([a for a, _ in ATTACKS], [share for _, share in ATTACKS])
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    status = await attack(served, random)
            except TimeoutError:
                status = "no answer"
            result.statuses[status] += 1
            odd = isinstance(status, int) and status >= 500 and status not in BY_DESIGN
            if odd or status == "no answer":
                result.bad.append(f"request {number} of seed {seed}: {status}")

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    result.bad += [f"bug: {note}" for note in served.notes if note.event == "gateway.bug"]
    result.bad += await _left_over(target, tasks, descriptors)
    return result


async def _left_over(target: FakeNode, tasks: int, descriptors: int) -> list[str]:
    """Sessions, tasks and descriptors that did not go within the time that connections may idle."""

    def left() -> list[str]:
        gc.collect()
        running = [made.session for made in target.generations if not made.cancelled.is_set()]
        found = [f"session {session} was not freed" for session in running]
        found += [f"{_tasks() - tasks} tasks left"] if _tasks() > tasks else []
        more = psutil.Process().num_fds() - descriptors
        return found + ([f"{more} descriptors left"] if more > 0 else [])

    try:
        async with asyncio.timeout(10 * CONFIG.idle_timeout_s):
            while left():
                await asyncio.get_running_loop().run_in_executor(None, gc.collect)
    except TimeoutError:
        return left()
    return []


def _tasks() -> int:
    return sum(not task.done() for task in asyncio.all_tasks())
