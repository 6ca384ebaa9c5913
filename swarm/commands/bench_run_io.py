"""Asks an OpenAI-compatible endpoint many times at once and takes the times."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from swarm.commands.bench import Level, Sample, prompt, read_chunk
from swarm.errors import ConfigError, LinkError, SwarmError
from swarm.notes import printable

Json = dict[str, Any]
LINE_BYTES_MAX = 1 << 20
ERROR_LETTERS = 200
BODY_BYTES_MAX = 1 << 20
"""Read of an answer that is no stream."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base`: up to and with /v1."""

    base: str
    headers: Mapping[str, str]
    timeout_s: float

    @staticmethod
    def of(url: str, headers: Mapping[str, str], timeout_s: float) -> Endpoint:
        base = (url if "://" in url else f"http://{url}").rstrip("/")
        if not base.startswith(("http://", "https://")) or not base.split("://")[1]:
            raise ConfigError(f"an endpoint is named as http://HOST:PORT, not {url!r}")
        return Endpoint(base if base.endswith("/v1") else f"{base}/v1", headers, timeout_s)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: `body` without its messages; `words` in each prompt; `requests` a level."""

    body: Json
    words: int
    requests: int
    seed: int


async def run_levels(
    endpoint: Endpoint,
    model: str | None,
    load: Load,
    levels: tuple[int, ...],
    told: Callable[[Level], None],
) -> tuple[str, list[Level]]:
    """The model that was asked, and one `Level` for each concurrency, told as it ends."""
    timeout = aiohttp.ClientTimeout(total=endpoint.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=endpoint.headers, read_bufsize=LINE_BYTES_MAX
    ) as session:
        name = model or await _only_model(session, endpoint)
        asked = Load({**load.body, "model": name}, load.words, load.requests, load.seed)
        rng = Random(load.seed)
        done = []
        for concurrency in levels:
            level = await _level(session, endpoint, asked, concurrency, rng)
            told(level)
            done.append(level)
        return name, done


async def _only_model(session: aiohttp.ClientSession, endpoint: Endpoint) -> str:
    try:
        async with session.get(f"{endpoint.base}/models") as answer:
            listed = await answer.json(content_type=None)
            names = [str(entry["id"]) for entry in listed["data"]]
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LinkError(f"no server answers at {endpoint.base} ({_why(error)})") from error
    except (ValueError, LookupError, TypeError) as error:
        raise LinkError(f"{endpoint.base} does not list its models; name one with --model") from (
            error
        )
    if len(names) != 1:
        listed_names = ", ".join(names) or "none"
        raise ConfigError(f"say which model with --model; {endpoint.base} lists: {listed_names}")
    return names[0]


async def _level(
    session: aiohttp.ClientSession, endpoint: Endpoint, load: Load, concurrency: int, rng: Random
) -> Level:
    """So many clients, each of which asks again as soon as it was answered."""
    count = max(load.requests, concurrency)
    prompts = [prompt(rng, load.words) for _ in range(count)]
    samples: list[Sample] = []
    began = time.monotonic()

    async def client() -> None:
        while prompts:
            text = prompts.pop()
            samples.append(await _one(session, endpoint, load, text))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return Level(concurrency, time.monotonic() - began, tuple(samples))


async def _one(session: aiohttp.ClientSession, endpoint: Endpoint, load: Load, text: str) -> Sample:
    body = {**load.body, "messages": [{"role": "user", "content": text}]}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    began = time.monotonic()
    texts: list[float] = []
    tokens: int | None = None
    try:
        async with session.post(f"{endpoint.base}/chat/completions", json=body) as answer:
            if answer.status != 200:
                return _failed(await _refusal(answer))
            async for line in answer.content:
                chunk = read_chunk(line)
                if chunk is None:
                    continue
                if chunk.has_text:
                    texts.append(time.monotonic() - began)
                tokens = tokens if chunk.tokens is None else chunk.tokens
                if chunk.is_end:
                    counted = len(texts) if tokens is None else tokens
                    return Sample(tuple(texts), time.monotonic() - began, counted)
    except SwarmError as error:
        return _failed(str(error))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return _failed(_why(error))
    return _failed("the answer broke off")


async def _refusal(answer: aiohttp.ClientResponse) -> str:
    """What an answer that is no 200 says of itself."""
    body = await answer.content.read(BODY_BYTES_MAX)
    try:
        said = json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        said = answer.reason
    return f"{answer.status}: {said}"


def _failed(why: str) -> Sample:
    return Sample((), 0.0, 0, printable(why)[:ERROR_LETTERS])


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno)
        return cause.strerror or str(cause)
    return str(error) or type(error).__name__
