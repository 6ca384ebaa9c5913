"""What a node shows and takes beside its models: its state, and a departure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.errors import RequestError, SwarmError
from swarm.gateway.model_pages_io import is_control
from swarm.gateway.view import state_json
from swarm.node_port import NodePort
from swarm.notes import Level, NoteSink, note


class NodePages:
    """Serves `/swarm/state` and `/swarm/leave`."""

    def __init__(
        self,
        node: NodePort,
        config: GatewayConfig,
        notes: NoteSink,
        control_token: str | None,
        refuse_new: Callable[[], None],
    ) -> None:
        """`control_token`: what `POST /swarm/leave` must show; None switches that off.

        `refuse_new` is called when a departure begins.
        """
        self._node = node
        self._config = config
        self._notes = notes
        self._control_token = control_token
        self._refuse_new = refuse_new
        self._leaving: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/swarm/state", self._state),
            web.post("/swarm/leave", self._leave),
        ]

    async def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(state_json(self._node.snapshot()))

    async def _leave(self, request: web.Request) -> web.Response:
        """Start a planned departure. Only for programs of this machine that hold the token."""
        if not is_control(request, self._control_token):
            raise RequestError("leaving needs the node's control token", status=403)
        if self._leaving is None:
            self._refuse_new()
            self._leaving = asyncio.create_task(self._depart())
        body = {"leaving": True, "grace_s": self._config.leave_grace_s}
        return web.json_response(body, status=202)

    async def _depart(self) -> None:
        try:
            await self._node.leave(self._config.leave_grace_s)
        except SwarmError as error:
            self._notes(note("gateway.leave_failed", Level.ERROR, error=str(error)))
