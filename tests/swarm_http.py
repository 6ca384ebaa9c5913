"""A small HTTP client for node gateways, standard library only: JSON calls and streamed answers.

`connect` is how a socket to the gateway is made: tests in network namespaces hand in their own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
Connect = Callable[[str, int], socket.socket]
READ_TIMEOUT_S = 120.0


def plain_connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=READ_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One node's HTTP face."""

    url: str
    connect: Connect = plain_connect

    def send(self, method: str, path: str, body: Json | None = None) -> http.client.HTTPConnection:
        """Send a request and wait for nothing; `getresponse()` of the result waits."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        connection = http.client.HTTPConnection(host, port, timeout=READ_TIMEOUT_S)
        connection.sock = self.connect(host, port)
        connection.sock.settimeout(READ_TIMEOUT_S)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request(method, path, body=data, headers=headers)
        return connection

    def open(self, method: str, path: str, body: Json | None = None) -> http.client.HTTPResponse:
        """Send a request; returns as soon as the response's headers are there."""
        return self.send(method, path, body).getresponse()

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        response = self.open(method, path, body)
        with response:
            text = response.read()
        return response.status, json.loads(text) if text else {}

    def state(self) -> Json:
        status, body = self.call("GET", "/swarm/state")
        assert status == 200, (status, body)
        return body

    def ask(self, **body: Any) -> Answer:
        """Start a streamed completion (or chat, where `messages` is given); waits for nothing."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        asked = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "temperature": 0,
        } | body
        return Answer(self.send("POST", path, asked))


@dataclass(slots=True)
class Answer:
    """A streamed answer as it arrives. `read_to(k)` returns once k tokens are here.

    A stream that breaks off simply ends: `done` stays False.
    """

    connection: http.client.HTTPConnection
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: Json | None = None
    usage: Json | None = None
    swarm: Json = field(default_factory=dict)
    done: bool = False
    comments: int = 0
    _response: http.client.HTTPResponse | None = None
    _events: Iterator[Json] | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        """Waits for the headers, which come with the first event."""
        if self._response is None:
            self._response = self.connection.getresponse()
            if self._response.status != 200:
                self.error = json.loads(self._response.read() or b"{}").get("error", {})
        return self._response

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def session(self) -> str:
        return self.response.headers.get("x-swarm-session", "")

    @property
    def token_counts(self) -> Json:
        """Of the usage what does not depend on how much of the prompt was still there."""
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return {name: (self.usage or {})[name] for name in names}

    def read_to(self, count: int) -> Answer:
        while len(self.ids) < count and self.next_event() is not None:
            pass
        return self

    def finish(self) -> Answer:
        while self.next_event() is not None:
            pass
        return self

    def close(self) -> None:
        """Hang up as a client that goes away."""
        self.response.close()
        self.connection.close()

    def next_event(self) -> Json | None:
        """The next event, already counted in; None at the end of the stream."""
        if self._events is None:
            self._events = self._read_events()
        event = next(self._events, None)
        if event is not None:
            self._take(event)
        return event

    def _read_events(self) -> Iterator[Json]:
        if self.response.status != 200:
            return
        broken = contextlib.suppress(ConnectionError, http.client.IncompleteRead)
        with broken, self.response, contextlib.closing(self.connection):
            while line := self.response.readline():
                if line.startswith(b":"):
                    self.comments += 1
                elif line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        self.done = True
                        return
                    yield json.loads(data)

    def _take(self, event: Json) -> None:
        self.error = event.get("error") or self.error
        self.usage = event.get("usage") or self.usage
        self.swarm = event.get("swarm") or self.swarm
        self.prompt_ids = event.get("prompt_token_ids") or self.prompt_ids
        for choice in event.get("choices", ()):
            self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
            ids = choice.get("token_ids") or []
            self.ids += ids
            self.arrivals += [time.monotonic()] * len(ids)
            self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
