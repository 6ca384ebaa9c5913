"""aiohttp's server, in whose words nobody is answered: also what is no HTTP gets our JSON."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from swarm.config import GatewayConfig
from swarm.gateway.completions_io import error_response
from swarm.gateway.responses import ErrorAnswer

STOP_GRACE_S = 1.0
"""Time for running answers to tell their clients that they are cut off."""
_SILENT = logging.getLogger("swarm.gateway.http")
_SILENT.disabled = True
"""For what aiohttp has to say of requests that are no HTTP: strangers must not fill the log."""


class _Connection(web.RequestHandler):
    """One connection of a client."""

    __slots__ = ("_config",)

    def __init__(self, server: web.Server, config: GatewayConfig, **options: Any) -> None:
        super().__init__(server, **options)
        self._config = config

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be read as a request; the connection is closed after it."""
        response = super().handle_error(request, status, exc, message)
        said = "an error inside the gateway" if status >= 500 else self._said(exc, message)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        ours = error_response(ErrorAnswer(response.status, said, kind, None), self._config, {})
        ours.force_close()
        return ours

    def _said(self, exc: BaseException | None, message: str | None) -> str:
        if isinstance(exc, LineTooLong):
            return f"a line of the request is longer than {self._config.header_bytes_max} bytes"
        what = next(iter((message or "").splitlines()), "").strip(" :.")
        return f"this is no HTTP request that can be read: {what or 'it is malformed'}"


class Runner(web.AppRunner):
    """Serves an application within the limits of the config."""

    def __init__(self, app: web.Application, config: GatewayConfig) -> None:
        self._config = config
        self._options: dict[str, Any] = {
            "access_log": None,
            "logger": _SILENT,
            "max_line_size": config.header_bytes_max,
            "max_field_size": config.header_bytes_max,
            "max_headers": config.headers_max,
            "keepalive_timeout": config.idle_timeout_s,
        }
        super().__init__(
            app, handler_cancellation=True, shutdown_timeout=STOP_GRACE_S, **self._options
        )

    @property
    def server(self) -> Any:
        """What makes the handler of a new connection; None before `setup`."""
        server = super().server
        if server is None:
            return None
        loop = server._loop
        return partial(_Connection, server, self._config, loop=loop, **self._options)
