"""`GET /swarm/explain`: the routes that a request could take now, and what each part costs."""

from __future__ import annotations

from aiohttp import web

from swarm.gateway import catalog
from swarm.gateway.explaining import ROUTES_MAX, Question, explain_json
from swarm.gateway.view import shown_names
from swarm.node_port import NodePort


class ExplainPages:
    def __init__(self, node: NodePort) -> None:
        self._node = node

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/swarm/explain", self._explain)]

    async def _explain(self, request: web.Request) -> web.Response:
        question = Question.read(request.query)
        view = catalog.wanted(self._node.models(), question.model)
        counts = (question.prompt_tokens, question.max_tokens)
        found = self._node.explain(view.spec.model_id, *counts, min(question.routes, ROUTES_MAX))
        names = shown_names(self._node.snapshot().nodes)
        return web.json_response(explain_json(view.spec, question, found, names))
