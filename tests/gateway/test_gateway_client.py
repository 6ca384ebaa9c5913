"""The command line's client before servers that are no gateway, and addresses that are none."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from swarm.errors import ConfigError, LinkError
from swarm.gateway.client_io import GatewayClient


@contextmanager
def stranger(body: bytes) -> Iterator[GatewayClient]:
    """Some other program's server, which says the same to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - its base class names it so

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield GatewayClient(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


CALLS: dict[str, Callable[[GatewayClient], object]] = {
    "state": lambda client: client.state(),
    "models": lambda client: client.models(),
    "model": lambda client: client.model("m"),
    "leave": lambda client: client.leave("token"),
    "events": lambda client: list(client.events()),
    "change": lambda client: list(client.change_models("load", {})),
    "chat": lambda client: list(client.chat({})),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"null", b"[]", b"7", b'{"data": 7}', b'{"data": [{}]}', b"data: 7\n"]
)
def test_an_answer_that_makes_no_sense_is_one_sentence(name: str, body: bytes) -> None:
    with stranger(body) as client:
        try:
            told = CALLS[name](client)
        except LinkError as error:
            assert "\n" not in str(error)
        else:
            assert told == [] and name in ("events", "change"), "it ended without a word"


@pytest.mark.parametrize("url", ["http://[::1", "https://host", "http://", "host:port", "//[x]:1"])
def test_what_is_no_address_of_a_gateway(url: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        GatewayClient(url)
