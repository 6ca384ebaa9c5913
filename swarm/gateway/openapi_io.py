"""Serves the description of all that is served."""

from __future__ import annotations

from aiohttp import web

from swarm.gateway import openapi
from swarm.gateway.fields import Json
from swarm.node_port import NodePort


class OpenApiPages:
    """Serves `/openapi.json`, made when it is first asked for."""

    def __init__(self, node: NodePort) -> None:
        self._node = node
        self._document: Json | None = None

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/openapi.json", self._openapi)]

    async def _openapi(self, request: web.Request) -> web.Response:
        if self._document is None:
            served = [
                (route.method, route.resource.canonical)
                for route in request.app.router.routes()
                if route.resource is not None and route.method not in ("HEAD", "*")
            ]
            self._document = openapi.document(served, self._node.snapshot().version)
        return web.json_response(self._document)
