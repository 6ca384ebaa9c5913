"""A name for every request, which its response and the notes about it carry."""

from __future__ import annotations

import re
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

REQUEST_ID_HEADER = "X-Request-Id"
REQUEST_ID = web.RequestKey("request_id", str)
_SANE = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class Naming:
    """Takes the client's name for a request, if it is short and plain, or draws a fresh one."""

    def __init__(self, draw: Callable[[], int]) -> None:
        """`draw`: a fresh non-negative number."""
        self._draw = draw

    @web.middleware
    async def name(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(REQUEST_ID_HEADER, "")
        request[REQUEST_ID] = given if _SANE.fullmatch(given) else f"req_{self._draw():016x}"
        return await handler(request)

    async def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Before the headers go out. `Request-Id` is what Anthropic's clients look for."""
        name = request.get(REQUEST_ID)
        if name is not None:
            response.headers[REQUEST_ID_HEADER] = response.headers["Request-Id"] = name
