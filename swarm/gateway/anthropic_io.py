"""Anthropic's endpoints."""

from __future__ import annotations

from aiohttp import web

from swarm.gateway.calls import Endpoint
from swarm.gateway.completions_io import Completions


class AnthropicPages:
    """Serves `/v1/messages` and `/v1/messages/count_tokens`."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/messages", self._messages),
            web.post("/v1/messages/count_tokens", self._count),
        ]

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.MESSAGES, request)

    async def _count(self, request: web.Request) -> web.Response:
        counts = await self._completions.count(Endpoint.COUNT_TOKENS, request)
        return web.json_response({"input_tokens": sum(counts)})
