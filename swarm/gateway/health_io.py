"""Whether the process lives, and whether a model can really answer."""

from __future__ import annotations

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.gateway import catalog
from swarm.gateway.completions_io import error_response
from swarm.gateway.probe_io import Prober
from swarm.gateway.responses import ErrorAnswer, not_covered
from swarm.gateway.sources import Sources
from swarm.node_port import NodePort


class HealthPages:
    """Serves `/healthz` and `/readyz`."""

    def __init__(self, node: NodePort, config: GatewayConfig, sources: Sources) -> None:
        self._node = node
        self._config = config
        self._prober = Prober(node, config, sources.clock)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]

    async def close(self) -> None:
        await self._prober.close()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        """200 when a token came through a whole route lately: of `model`, or else of any model."""
        views = self._node.models()
        name = request.query.get("model")
        wanted = (
            [catalog.find(views, name)] if name else [view for _, view in catalog.listed(views)]
        )
        problems = {}
        for view in wanted:
            problem = await self._prober.problem(view)
            if problem is None:
                return web.json_response({"ready": True, "model": view.spec.name})
            problems[view.spec.name] = problem
        if not problems and views:
            raise not_covered(views[0])
        said = "; ".join(f"{model}: {problem}" for model, problem in problems.items())
        answer = ErrorAnswer(
            503, said or "no model is known here yet", "server_error", "not_ready", retry=True
        )
        return error_response(answer, self._config, {})
