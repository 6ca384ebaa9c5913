"""Serves `/metrics` and `/v1/usage`: what this gateway counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from swarm.access.usage import totals
from swarm.access.usage_io import UsageLedger, parse_day
from swarm.errors import ConfigError, RequestError
from swarm.gateway.accounts import line_json, usage_csv
from swarm.gateway.callers import ASKED
from swarm.gateway.metrics import OTHER, Meter
from swarm.node_port import NodePort
from swarm.notes import Note

NOTES_WAITING_MAX = 1024
"""Notes that may wait to be counted, should the loop be busy for long."""


class AccountPages:
    """`start` and `close` with the gateway."""

    def __init__(self, node: NodePort, meter: Meter, ledger: UsageLedger | None) -> None:
        self._node = node
        self._meter = meter
        self._ledger = ledger
        self._listener: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._metrics), web.get("/v1/usage", self._usage)]

    def start(self) -> None:
        notes = self._node.subscribe(NOTES_WAITING_MAX)
        self._listener = asyncio.create_task(self._listen(notes))

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def count_answer(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`. Paths that are no route of ours are counted as one."""
        resource = request.match_info.route.resource
        self._meter.answered(resource.canonical if resource else OTHER, response.status)

    async def _listen(self, notes: AsyncIterator[Note]) -> None:
        async for entry in notes:
            self._meter.note(entry)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(
            body=encode(self._meter.registry), headers={"Content-Type": content_type}
        )

    async def _usage(self, request: web.Request) -> web.Response:
        """All that was counted here; to who shows a key, what that key used."""
        if self._ledger is None:
            raise RequestError("this gateway counts no usage", status=404)
        caller = ASKED.get().caller
        since = request.query.get("since", "")
        try:
            day = parse_day(since) if since else 0
        except ConfigError as error:
            raise RequestError(str(error), param="since") from error
        lines = await self._ledger.lines(day, caller.name if caller.key is not None else None)
        if request.query.get("format") == "csv":
            return web.Response(text=usage_csv(lines), content_type="text/csv", charset="utf-8")
        return web.json_response(
            {"object": "list", "data": [line_json(line) for line in lines],
             "totals": [line_json(line) for line in totals(lines)]}
        )  # fmt: skip
