"""Serves the map and the chat box as a web page at `/`."""

from __future__ import annotations

from importlib import resources

from aiohttp import web

from swarm.gateway.page import assembled, policy


class WebPage:
    """Read from the package once, when the gateway is built."""

    def __init__(self) -> None:
        folder = resources.files("swarm.gateway") / "page"
        html, css, js = (
            (folder / name).read_text("utf-8") for name in ("index.html", "page.css", "page.js")
        )
        self._body = assembled(html, css, js)
        self._headers = {
            "Content-Security-Policy": policy(css, js),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self._page)]

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=self._body, content_type="text/html", headers=self._headers)
