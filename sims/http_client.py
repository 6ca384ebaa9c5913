"""A connector that lets aiohttp's client dial through the loop it runs on.

Its own makes real sockets. Hosts are IP literals: there is no name server.

    aiohttp.ClientSession(connector=LoopConnector())
"""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace


class LoopConnector(aiohttp.BaseConnector):
    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        """Raises ClientConnectorError where nobody answers or listens."""
        host, port = req.url.host or "", req.url.port or 80
        try:
            async with asyncio.timeout(timeout.sock_connect):
                _, protocol = await self._loop.create_connection(self._factory, host, port)
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        assert isinstance(protocol, ResponseHandler)
        return protocol
