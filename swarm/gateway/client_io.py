"""What the command line asks of a running node: its state, chats, and to leave. Blocking."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import psutil

from swarm.errors import ConfigError, LinkError, RequestError
from swarm.gateway.reading import ChatEvent, Done, chat_event

Json = dict[str, Any]

CONTROL_HEADER = "X-Swarm-Control"
SESSION_HEADER = "X-Swarm-Session"
TIMEOUT_S = 30.0
"""Longest silence of a gateway; it comments on a stall every few seconds."""
LOOK_S = 0.5
"""How often an end that is waited for is looked for."""
START_HINT = "start a node with `swarm join`"


@dataclass(frozen=True, slots=True)
class RunningNode:
    """The node that runs from a home folder, as its `gateway.json` tells."""

    url: str
    pid: int
    control_token: str

    def client(self) -> GatewayClient:
        """Shows the node's token, so that a gateway which asks for keys lets its owner in."""
        return GatewayClient(self.url, {CONTROL_HEADER: self.control_token})


def running_node(home: Path) -> RunningNode:
    """The node of a home. Raises ConfigError, with what to do, when none runs there."""
    file = home / "gateway.json"
    try:
        told = json.loads(file.read_text())
        node = RunningNode(str(told["url"]), int(told["pid"]), str(told["control_token"]))
    except FileNotFoundError as error:
        raise ConfigError(f"no node runs from {home}; {START_HINT}, or name its --home") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{file} is damaged; {START_HINT} again") from error
    if not psutil.pid_exists(node.pid):
        raise ConfigError(f"the node of {home} ended without saying so; {START_HINT} again")
    return node


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait until a process has ended; False when it is still there after the time."""
    if pid == os.getpid():
        raise ValueError("a process cannot wait for its own end")
    end = time.monotonic() + timeout_s
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:  # one whose parent has not looked yet
            left_s = end - time.monotonic()
            if left_s <= 0.0:
                return False
            with suppress(psutil.TimeoutExpired):
                process.wait(min(left_s, LOOK_S))
                break
    except psutil.NoSuchProcess:
        pass
    return True


class GatewayClient:
    """Speaks to the gateway at `url`.

    Raises LinkError when it cannot be reached and RequestError when it refuses.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """`headers`: sent along with each request."""
        try:
            parts = urlsplit(url if "//" in url else f"//{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"a gateway is named as http://HOST:PORT, not {url!r}") from error
        if parts.scheme not in {"", "http"} or not parts.hostname:
            raise ConfigError(f"a gateway is named as http://HOST:PORT, not {url!r}")
        self.url = f"http://{parts.netloc}"
        self._host = parts.hostname
        self._port = port or 80
        self.headers = dict(headers or {})

    def state(self) -> Json:
        told = self._call("GET", "/swarm/state")
        if "node_id" not in told:
            raise self._stranger()
        return told

    def explain(self, question: Mapping[str, str | int]) -> Json:
        """The routes that a request could take now."""
        return self._call("GET", f"/swarm/explain?{urlencode(question)}")

    def models(self) -> list[str]:
        """The models that are covered now."""
        with self._sense():
            return [str(entry["id"]) for entry in self._call("GET", "/v1/models")["data"]]

    def model(self, name: str) -> str:
        """The covered model that `name` means. Raises RequestError, which names those there are."""
        with self._sense():
            return str(self._call("GET", f"/v1/models/{quote(name)}")["id"])

    def leave(self, control_token: str) -> float:
        """Ask the node to leave; the seconds it gives running sessions."""
        with self._sense():
            return float(self._departure(control_token, {})["grace_s"])

    def leave_in(self, control_token: str, in_s: float) -> None:
        """Ask it to leave in so many seconds, and to tell others."""
        self._departure(control_token, {"in_s": in_s})

    def stay(self, control_token: str) -> None:
        """Take that back. Raises RequestError where there is nothing to take back."""
        self._departure(control_token, {"stay": True})

    def _departure(self, control_token: str, asked: Json) -> Json:
        return self._call("POST", "/swarm/leave", {CONTROL_HEADER: control_token}, asked)

    def change_models(self, what: str, asked: Json) -> Iterator[Json]:
        """Have models loaded (`load`) or given up (`unload`): what comes of it, to the end."""
        connection, response = self._send("POST", f"/swarm/{what}", asked, {})
        with closing(connection), closing(response):
            if response.status != http.client.OK:
                raise _refusal(response)
            try:
                for line in response:
                    if line.strip():
                        entry = dict(json.loads(line))
                        if "event" not in entry:
                            raise self._stranger()
                        yield entry
            except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
                raise LinkError(f"{self.url} broke off: {error}") from error

    def events(self) -> Iterator[tuple[str, Json]]:
        """Named events from now on, until the node ends. Leave the iteration to hang up."""
        connection, response = self._send("GET", "/swarm/events", None, {})
        with closing(connection), closing(response):
            if response.status != http.client.OK:
                raise _refusal(response)
            name = ""
            try:
                for line in response:
                    field, _, value = line.rstrip(b"\r\n").partition(b": ")
                    if field == b"data":
                        yield name, dict(json.loads(value))
                    name = value.decode() if field == b"event" else ""
            except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
                raise LinkError(f"{self.url} broke off: {error}") from error

    def chat(self, body: Mapping[str, Any]) -> ChatStream:
        """Start a streamed chat answer; returns when the gateway begins to answer."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection, response = self._send("POST", "/v1/chat/completions", asked, {})
        if response.status != http.client.OK:
            with closing(connection):
                raise _refusal(response)
        return ChatStream(connection, response)

    def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Json | None = None,
    ) -> Json:
        connection, response = self._send(method, path, body, headers or {})
        with closing(connection):
            if response.status >= http.client.BAD_REQUEST:
                raise _refusal(response)
            try:
                return dict(json.loads(response.read()))
            except (ValueError, TypeError, OSError, http.client.HTTPException) as error:
                raise self._stranger() from error

    @contextmanager
    def _sense(self) -> Iterator[None]:
        """An answer without what it must hold is some other program's."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            raise self._stranger() from error

    def _stranger(self) -> LinkError:
        return LinkError(f"{self.url} does not answer as a swarm gateway")

    def _send(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        data = None if body is None else json.dumps(body).encode()
        try:
            known = {"Content-Type": "application/json", **self.headers}
            connection.request(method, path, data, {**known, **headers})
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise LinkError(
                f"no gateway answers at {self.url} ({why}); is the node running? {START_HINT}"
            ) from error


class ChatStream:
    """An answer as it comes. Leaving the context hangs up, which ends the work for it."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response
        self.session = response.headers.get(SESSION_HEADER, "")

    def __enter__(self) -> ChatStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[ChatEvent]:
        """Events up to `Done`. Raises LinkError when the answer is cut off before that."""
        try:
            for line in self._response:
                event = chat_event(line)
                if event is not None:
                    yield event
                if isinstance(event, Done):
                    return
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(f"the answer broke off: {error}") from error
        raise LinkError("the answer broke off: the gateway hung up")


def _refusal(response: http.client.HTTPResponse) -> RequestError:
    try:
        message = str(json.loads(response.read())["error"]["message"])
    except (ValueError, LookupError, TypeError, OSError, http.client.HTTPException):
        message = f"the gateway answered {response.status} {response.reason}"
    return RequestError(message, status=response.status)
