"""What a node shows and takes beside its models: its state, and a departure."""

from __future__ import annotations

import json
import sys

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.departure_io import DepartureDesk
from swarm.errors import RequestError
from swarm.gateway.model_pages_io import is_control
from swarm.gateway.view import state_json
from swarm.node_port import NodePort


class NodePages:
    """Serves `/swarm/state` and `/swarm/leave`."""

    def __init__(
        self,
        node: NodePort,
        config: GatewayConfig,
        control_token: str | None,
        desk: DepartureDesk,
    ) -> None:
        """`control_token`: what `POST /swarm/leave` must show; None switches that off."""
        self._node = node
        self._config = config
        self._control_token = control_token
        self._desk = desk

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/swarm/state", self._state),
            web.post("/swarm/leave", self._leave),
        ]

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(state_json(self._node.snapshot()))

    async def _leave(self, request: web.Request) -> web.Response:
        """Start a planned departure, or with `in_s` announce it, or with `stay` take that back.
        Only for programs of this machine that hold the token."""
        if not is_control(request, self._control_token):
            raise RequestError("leaving needs the node's control token", status=403)
        in_s, stays = _wish(await request.text())
        if stays:
            self._desk.stay()
            return web.json_response({"leaving": False})
        if in_s is None:
            self._desk.leave()
        else:
            self._desk.leave_in(in_s)
        body = {"leaving": True, "in_s": in_s or 0.0, "grace_s": self._config.leave_grace_s}
        return web.json_response(body, status=202)


def _wish(text: str) -> tuple[float | None, bool]:
    """`in_s` and `stay` of the body, which may be empty."""
    try:
        told = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise RequestError("the body is not JSON") from error
    if not isinstance(told, dict):
        raise RequestError("the body is not a JSON object")
    in_s, stays = told.get("in_s"), told.get("stay", False)
    if in_s is not None and (isinstance(in_s, bool) or not isinstance(in_s, int | float)):
        raise RequestError("in_s is a number of seconds", param="in_s")
    if not isinstance(stays, bool):
        raise RequestError("stay is true or false", param="stay")
    if stays and in_s is not None:
        raise RequestError("in_s and stay exclude each other", param="stay")
    return None if in_s is None else min(in_s, sys.float_info.max), stays
