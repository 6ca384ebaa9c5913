"""Follows the events of a gateway for a map, through its going and coming back."""

from __future__ import annotations

import asyncio
import json
import locale
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from swarm.errors import ConfigError
from swarm.gateway.client_io import GatewayClient
from swarm.gateway.map_look import PLAIN, PRETTY
from swarm.gateway.map_scene import Choices
from swarm.gateway.map_tui import MapApp

Json = dict[str, Any]

RETRY_S = 1.0
SILENCE_S = 15.0
"""A gateway comments on silence every few seconds: after this long it is gone."""
CONNECT_S = 5.0
EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Of one event: the state of a thousand nodes is a tenth of it."""


class Follower:
    """Calls `take` with each event and `say` with how the connection is, for ever."""

    def __init__(
        self,
        find: Callable[[], GatewayClient],
        take: Callable[[str, Json], None],
        say: Callable[[str], None],
    ) -> None:
        """`find` is asked before each try: a node that starts anew may listen elsewhere. It may
        raise ConfigError, which is said."""
        self._find = find
        self._take = take
        self._say = say

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as session:
            while True:
                shown = "the gateway"
                try:
                    client = self._find()
                    shown = urlsplit(client.url).netloc
                    await self._read(session, client)
                    self._say(f"{shown} hung up, trying again")
                except ConfigError as error:
                    self._say(str(error))
                except (TimeoutError, aiohttp.ClientError, ValueError) as error:
                    self._say(f"no answer from {shown}: {_reason(error)}, trying again")
                await asyncio.sleep(RETRY_S)

    async def _read(self, session: aiohttp.ClientSession, client: GatewayClient) -> None:
        url = f"{client.url}/swarm/events"
        async with session.get(url, headers=client.headers) as response:
            response.raise_for_status()
            name, pending = "", b""
            async for piece in response.content.iter_any():
                *lines, pending = (pending + piece).split(b"\n")
                if len(pending) > EVENT_BYTES_MAX:
                    raise ValueError("an event without end")
                for line in lines:
                    name = self._line(name, line)

    def _line(self, name: str, line: bytes) -> str:
        """Take one line of the stream; the name of the event it is in."""
        field, _, value = line.partition(b": ")
        if field == b"event":
            return value.decode()
        if field == b"data":
            self._say("live")
            self._take(name, json.loads(value))
        return name if line else ""


def run_map(find: Callable[[], GatewayClient], *, plain: bool) -> None:
    """Draw the map of the gateway that `find` names until the person quits."""
    encoding = (sys.stdout.encoding or locale.getencoding()).lower()
    glyphs = PLAIN if plain or "utf" not in encoding else PRETTY
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    choices = Choices(glyphs=glyphs, zone=zone)
    app = MapApp(lambda take, say: Follower(find, take, say).run(), choices, time.monotonic)
    app.run()


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return "it asks for a key" if error.status == 401 else f"status {error.status}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or "it cannot be reached"
    return str(error) or type(error).__name__
