"""Many streamed completions at once, timed with as little work as can be: one thread reads bytes
and notes when they came; what they say is looked at after the last stream has ended. So the client
takes next to nothing of the cores that the servers are measured on.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
SILENCE_MAX_S = 300.0
"""Streams of which none says anything for so long are given up."""
READ_BYTES = 65536
FIRST_ID, LAST_ID = 1000, 40000
"""Prompts are made of ordinary words' ids; special ones are the lowest."""


@dataclass(slots=True)
class Streamed:
    """One answer: when its tokens came, and how it ended. Times are of the monotonic clock."""

    asked_at: float
    arrivals: list[float] = field(default_factory=list)
    """Of each event with a token; two in one packet have one time."""
    status: int = 0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    """As the server counted them, else the number of events."""
    error: str | None = None
    done: bool = False
    session: str = ""
    """As the server's header names it."""
    swarm: Json = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0] - self.asked_at

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def tokens_s(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / (self.arrivals[-1] - self.arrivals[0])


@dataclass(slots=True)
class _Reading:
    result: Streamed
    pieces: list[tuple[float, bytes]] = field(default_factory=list)


def prompt_ids(count: int, rng: random.Random) -> list[int]:
    """A prompt that no cache can know."""
    return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def completion(prompt: Sequence[int], tokens: int, **more: Any) -> Json:
    """The body of a request that gives exactly `tokens` tokens, on any of the servers here."""
    return {
        "model": "smollm2",
        "prompt": list(prompt),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,
    } | more


def ask_all(url: str, bodies: Iterable[Json], path: str = "/v1/completions") -> list[Streamed]:
    """Ask all at once; returns when every stream has ended."""
    place = urlsplit(url)
    address = (place.hostname or "127.0.0.1", place.port or 80)
    requests = [_request(address, path, body) for body in bodies]
    with selectors.DefaultSelector() as selector:
        readings = [_open(address, request, selector) for request in requests]
        _read_all(selector)
    return [parse(reading.result, reading.pieces) for reading in readings]


def ask(url: str, body: Json, path: str = "/v1/completions") -> Streamed:
    return ask_all(url, [body], path)[0]


def _request(address: tuple[str, int], path: str, body: Json) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {len(data)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def _open(address: tuple[str, int], request: bytes, selector: selectors.BaseSelector) -> _Reading:
    reading = _Reading(Streamed(time.monotonic()))
    connection = socket.create_connection(address, timeout=SILENCE_MAX_S)
    connection.sendall(request)
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, reading)
    return reading


def _read_all(selector: selectors.BaseSelector) -> None:
    while selector.get_map():
        ready = selector.select(SILENCE_MAX_S)
        if not ready:
            for key in list(selector.get_map().values()):
                key.data.result.error = "silence"
                _close(selector, key)
        for key, _ in ready:
            _read(selector, key)


def _read(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    assert isinstance(key.fileobj, socket.socket)
    try:
        data = key.fileobj.recv(READ_BYTES)
    except ConnectionError as error:
        key.data.result.error = str(error)
        data = b""
    if data:
        key.data.pieces.append((time.monotonic(), data))
    else:
        _close(selector, key)


def _close(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    selector.unregister(key.fileobj)
    assert isinstance(key.fileobj, socket.socket)
    key.fileobj.close()


# ------------------------------------------------------------ after the fact


def parse(result: Streamed, pieces: Sequence[tuple[float, bytes]]) -> Streamed:
    """What the bytes said. Lines that start with `data:` are events, whatever the chunking."""
    line = b""
    for moment, data in pieces:
        *lines, line = (line + data).split(b"\n")
        for entry in lines:
            _take_line(result, moment, entry.strip())
    if result.status != 200 and result.error is None:
        result.error = line.decode(errors="replace")[:200] or "no answer"
    if not result.done and result.error is None:
        result.error = "cut off"
    result.tokens = result.tokens or len(result.arrivals)
    return result


def _take_line(result: Streamed, moment: float, line: bytes) -> None:
    if not result.status and line.startswith(b"HTTP/"):
        result.status = int(line.split()[1])
    elif line.lower().startswith(b"x-swarm-session:"):
        result.session = line.split(b":", 1)[1].strip().decode()
    elif line == b"data: [DONE]":
        result.done = True
    elif line.startswith(b"data:"):
        _take_event(result, moment, json.loads(line[5:]))


def _take_event(result: Streamed, moment: float, event: Json) -> None:
    if "error" in event:
        result.error = json.dumps(event["error"])[:200]
    result.tokens = (event.get("usage") or {}).get("completion_tokens", result.tokens)
    result.swarm = event.get("swarm") or result.swarm
    for choice in event.get("choices", ()):
        text = choice.get("text") or choice.get("delta", {}).get("content")
        ids = choice.get("token_ids") or []
        result.ids += ids
        result.text += text or ""
        if text or ids:
            result.arrivals.append(moment)


def aggregate_tokens_s(streams: Sequence[Streamed]) -> float:
    """All tokens of a round over the time from its first request to its last token."""
    failed = [stream.error for stream in streams if stream.error is not None]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(streams)} streams failed, first: {failed[0]}")
    began = min(stream.asked_at for stream in streams)
    ended = max(stream.arrivals[-1] for stream in streams)
    return sum(stream.tokens for stream in streams) / (ended - began)
