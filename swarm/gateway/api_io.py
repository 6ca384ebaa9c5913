"""The endpoints that clients of models use, one route each."""

from __future__ import annotations

from aiohttp import web

from swarm.gateway import anthropic_writer, catalog
from swarm.gateway.calls import Endpoint
from swarm.gateway.completions_io import Completions
from swarm.gateway.responses import model_json
from swarm.node_port import NodePort

ANTHROPIC_VERSION = "Anthropic-Version"
"""A header that Anthropic's clients send: they want the lists of models in their own form."""


class OpenAiPages:
    """Serves `/v1/models`, `/v1/chat/completions`, `/v1/completions` and `/v1/responses`."""

    def __init__(self, node: NodePort, completions: Completions, created: int) -> None:
        """`created`: what the models say of their age, in seconds since 1970."""
        self._node = node
        self._completions = completions
        self._created = created

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{name:.+}", self._model),
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/completions", self._completion),
            web.post("/v1/responses", self._responses),
        ]

    async def _models(self, request: web.Request) -> web.Response:
        listed = catalog.listed(self._node.models())
        if ANTHROPIC_VERSION in request.headers:
            return web.json_response(anthropic_writer.models_json(listed, self._created))
        data = [model_json(view, label, self._created) for label, view in listed]
        return web.json_response({"object": "list", "data": data})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        view = catalog.find(self._node.models(), name)
        if ANTHROPIC_VERSION in request.headers:
            return web.json_response(anthropic_writer.model_json(view, name, self._created))
        return web.json_response(model_json(view, name, self._created))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.CHAT, request)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.COMPLETION, request)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.RESPONSES, request)
