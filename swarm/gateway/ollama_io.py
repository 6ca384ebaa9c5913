"""Ollama's endpoints: answers by `Completions`, lists and descriptions of what the swarm covers."""

from __future__ import annotations

from datetime import UTC, datetime

from aiohttp import web

from swarm.errors import RequestError
from swarm.gateway import catalog, ollama, ollama_lists
from swarm.gateway.calls import Endpoint
from swarm.gateway.completions_io import Completions
from swarm.gateway.fields import json_object
from swarm.node_port import NodePort


class OllamaPages:
    """Serves `/api/chat`, `generate`, `tags`, `show`, `ps` and `version`; refuses the rest."""

    def __init__(self, node: NodePort, completions: Completions, created: int) -> None:
        """`created`: what the models say of their age, in seconds since 1970."""
        self._node = node
        self._completions = completions
        self._created = datetime.fromtimestamp(created, UTC).isoformat()

    def routes(self) -> list[web.RouteDef]:
        refused = [
            web.route("*", path, self._refuse)
            for name in ollama_lists.REFUSED
            for path in (f"/api/{name}", f"/api/{name}/{{rest:.*}}")
        ]
        return [
            web.post("/api/chat", self._chat),
            web.post("/api/generate", self._generate),
            web.get("/api/tags", self._tags),
            web.post("/api/show", self._show),
            web.get("/api/ps", self._ps),
            web.get("/api/version", self._version),
            *refused,
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.OLLAMA_CHAT, request)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.OLLAMA_GENERATE, request)

    async def _tags(self, _: web.Request) -> web.Response:
        listed = catalog.listed(self._node.models())
        models = [ollama_lists.entry(view, name, self._created) for name, view in listed]
        return web.json_response({"models": models})

    async def _ps(self, _: web.Request) -> web.Response:
        listed = catalog.listed(self._node.models())
        models = [ollama_lists.running(view, name, self._created) for name, view in listed]
        return web.json_response({"models": models})

    async def _show(self, request: web.Request) -> web.Response:
        name = ollama.shown(json_object(await self._completions.body(request)))
        view = catalog.find(self._node.models(), name)
        family = await self._completions.tool_family(view.spec)
        return web.json_response(ollama_lists.shown(view, self._created, tools=family is not None))

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self._node.snapshot().version})

    async def _refuse(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix("/api/")
        raise RequestError(
            f"{name} is not served here: {ollama_lists.REFUSED[name.partition('/')[0]]}",
            status=501,
            code="unsupported_endpoint",
        )
