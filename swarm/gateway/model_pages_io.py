"""Models that a running node takes on and gives up when its owner says so.

Only programs of this machine that show the token of `<home>/gateway.json` may ask.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from swarm.asks import LoadModel, UnloadModel
from swarm.disk_io import check_model_path
from swarm.errors import ConfigError, RequestError
from swarm.gateway.access_io import CONTROL_HEADER, is_of_this_machine
from swarm.node_port import NodePort
from swarm.notes import Note
from swarm.options import parse_layers
from swarm.waiting_io import end

NOTES_MAX = 256
"""Of what happens, waiting for a reader who is told of one model."""
PULSE_S = 5.0
"""An empty line comes after so long without news: the node is there."""
ENDS_OF_LOAD = frozenset({"shard.serving", "shard.failed", "shard.unloaded"})
"""The last: somebody unloads it before it is served."""
NEWS_OF_LOAD = ENDS_OF_LOAD | {"shard.intended", "shard.load"}
ENDS_OF_UNLOAD = frozenset({"shard.unloaded"})
NEWS_OF_UNLOAD = ENDS_OF_UNLOAD | {"shard.last_copy"}


def is_control(request: web.Request, token: str | None) -> bool:
    """Whether the node's own program asks, from this machine."""
    given = request.headers.get(CONTROL_HEADER, "").encode(errors="surrogateescape")
    return (
        token is not None
        and hmac.compare_digest(given, token.encode())
        and is_of_this_machine(request)
    )


class ModelPages:
    """Serves `/swarm/load` and `/swarm/unload`.

    Both answer with a line of JSON per piece of news, until the model is served, or could not be,
    or is gone; empty lines meanwhile say that the node is there. Who hangs up stops nothing.
    """

    def __init__(self, node: NodePort, control_token: str | None) -> None:
        """`control_token`: what must be shown; None switches both off."""
        self._node = node
        self._control_token = control_token

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/swarm/load", self._load), web.post("/swarm/unload", self._unload)]

    async def _load(self, request: web.Request) -> web.StreamResponse:
        """`path` of a folder or GGUF file of this machine, `name`, `layers` as A:B or nothing."""
        told = await self._asked(request)
        path, name = _text(told, "path"), _text(told, "name")
        try:
            layers = parse_layers(_text(told, "layers")) if told.get("layers") else None
            await asyncio.to_thread(check_model_path, Path(path))
        except ConfigError as error:
            raise RequestError(str(error)) from error

        ask = LoadModel(path, name, layers)
        return await self._followed(request, ask, NEWS_OF_LOAD, ENDS_OF_LOAD)

    async def _unload(self, request: web.Request) -> web.StreamResponse:
        """`model`: its name."""
        ask = UnloadModel(_text(await self._asked(request), "model"))
        return await self._followed(request, ask, NEWS_OF_UNLOAD, ENDS_OF_UNLOAD)

    async def _asked(self, request: web.Request) -> dict[str, object]:
        if not is_control(request, self._control_token):
            raise RequestError("this needs the node's control token", status=403)
        try:
            told = json.loads(await request.text())
        except ValueError as error:
            raise RequestError("the body is not JSON") from error
        if not isinstance(told, dict):
            raise RequestError("the body is not a JSON object")
        return told

    async def _followed(
        self,
        request: web.Request,
        ask: LoadModel | UnloadModel,
        news: frozenset[str],
        ends: frozenset[str],
    ) -> web.StreamResponse:
        """Do it, and tell what comes of it. Raises RequestError when it cannot be begun."""
        heard: asyncio.Queue[Note] = asyncio.Queue()

        async def listen() -> None:
            async for entry in self._node.subscribe(NOTES_MAX):
                if entry.event in news and entry.get("model") == ask.name:
                    heard.put_nowait(entry)

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)  # it hears all from here on
        try:
            self._node.asked(ask)
            return await _tell(request, heard, ends)
        finally:
            await end(listening)


async def _tell(
    request: web.Request, heard: asyncio.Queue[Note], ends: frozenset[str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    event = ""
    while event not in ends:
        line = ""
        with suppress(TimeoutError):
            entry = await asyncio.wait_for(heard.get(), PULSE_S)
            event = entry.event
            line = json.dumps({"event": event, **dict(entry.fields)})
        await response.write(f"{line}\n".encode())
    await response.write_eof()
    return response


def _text(told: dict[str, object], name: str) -> str:
    value = told.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} is missing", param=name)
    return value
