"""Lets requests in: by where they come from, by key, and counts what each key uses."""

from __future__ import annotations

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler

from swarm.access.keys import Caller, Gate, check_quota, presented
from swarm.access.keys_io import KeyWatch
from swarm.access.usage import Amount
from swarm.access.usage_io import UsageLedger
from swarm.config import GatewayConfig
from swarm.errors import ConfigError, RequestError
from swarm.gateway import guard
from swarm.gateway.callers import ASKED, Asked
from swarm.gateway.sources import Sources
from swarm.notes import NoteSink
from swarm.terms import ModelId, NodeId

CONTROL_HEADER = "X-Swarm-Control"
"""Carries the token of `<home>/gateway.json`: programs of this machine show it instead of a key."""
OPEN_PATHS = frozenset({"/", "/healthz"})
"""Answered without a key: they tell nothing of the swarm. The web page asks its reader for one."""


class Door:
    """Judges every request before its handler runs. `open` and `close` with the gateway."""

    def __init__(
        self, config: GatewayConfig, sources: Sources, notes: NoteSink, control_token: str | None
    ) -> None:
        self._config = config
        self._clock = sources.clock
        self._control_token = control_token
        self._loopback_only = True
        self._origins = guard.allowed_origins(config.allow_origins)
        self._gate = Gate(is_required=False)
        self._keys = sources.keys
        self._watch = (
            None if sources.keys is None else KeyWatch(sources.keys, self._gate, self._clock, notes)
        )
        self.ledger = (
            None if sources.usage is None else UsageLedger(sources.usage, sources.wall_clock, notes)
        )
        self._wall_clock = sources.wall_clock
        self._consumed = sources.consumed

    async def open(self, host: str) -> None:
        """Before the gateway listens on `host`. Raises ConfigError where it must not."""
        self._loopback_only = guard.is_loopback(host)
        self._gate.is_required = guard.needs_keys(self._config.auth, host)
        if self._watch is not None:
            await self._watch.refresh()
        if self._gate.is_required and not self._gate.has_keys:
            where = "here" if self._loopback_only else f"on {host}, beyond this machine,"
            raise ConfigError(
                f"the gateway is to listen {where} and no key is in force: make one with"
                " `swarm keys add NAME`, or let everybody in with --no-auth"
            )
        if self.ledger is not None:
            await self.ledger.start()

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        if self.ledger is not None:
            await self.ledger.close()

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses with RequestError 401, 403 or 429; else the handler knows who asks."""
        self._check_sender(request)
        if _is_preflight(request):
            return self._preflight(request)
        caller = Caller()
        if request.path not in OPEN_PATHS and not self._shows_control_token(request):
            caller = await self._caller(request)
        ASKED.set(Asked(caller, self._clock()))
        return await handler(request)

    async def allow_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`: pages that may ask may read the answer as well."""
        origin = request.headers.get("Origin")
        if self._origins:
            response.headers.add("Vary", "Origin")
        if origin is not None and origin.lower() in self._origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "*"

    # ------------------------------------------------------------ Books

    def check(self, caller: Caller) -> None:
        if self.ledger is not None and caller.key is not None:
            check_quota(caller, self.ledger.used_today(caller.name), self._wall_clock())

    def charge(self, caller: Caller, model: str, amount: Amount) -> None:
        if self.ledger is not None:
            self.ledger.add(caller.name, model, amount)

    def consumed(self, server: NodeId, model_id: ModelId, layer_tokens: int) -> None:
        if self._consumed is not None:
            self._consumed(server, model_id, layer_tokens)

    # ------------------------------------------------------------ inside

    def _check_sender(self, request: web.Request) -> None:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if origin is not None and origin.lower() in self._origins:
            origin = None
        judge = guard.refusal if self._loopback_only else guard.refusal_from_afar
        why = judge(host, origin)
        if why is not None:
            raise RequestError(why, status=403, code="forbidden_origin")

    async def _caller(self, request: web.Request) -> Caller:
        headers = request.headers
        key = presented(headers.get("Authorization"), headers.get("x-api-key"))
        if self._watch is not None and (key is not None or self._gate.is_required):
            await self._watch.refresh()
        return self._gate.admit(key, self._clock())

    def _shows_control_token(self, request: web.Request) -> bool:
        given = request.headers.get(CONTROL_HEADER)
        return (
            given is not None
            and self._control_token is not None
            and hmac.compare_digest(_bytes(given), _bytes(self._control_token))
            and is_of_this_machine(request)
        )

    def _preflight(self, request: web.Request) -> web.Response:
        """A browser asks whether a page may ask. No key comes with that, and none is needed."""
        if request.headers.get("Origin", "").lower() not in self._origins:
            raise RequestError(
                "pages of other sites may not ask; --allow-origin opens the gateway to one",
                status=403,
                code="forbidden_origin",
            )
        wanted = request.headers.get("Access-Control-Request-Headers", "")
        wanted = wanted if wanted.isascii() else ""
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
                "Access-Control-Allow-Headers": wanted or "authorization, content-type",
                "Access-Control-Max-Age": "600",
            },
        )


def is_of_this_machine(request: web.Request) -> bool:
    """Whether the connection comes from loopback, or from the very address it goes to."""
    transport = request.transport
    peer, own = (
        (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        if transport is not None
        else (None, None)
    )
    if not peer:
        return False
    return guard.is_loopback(str(peer[0])) or bool(own and peer[0] == own[0])


def _is_preflight(request: web.Request) -> bool:
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def _bytes(header: str) -> bytes:
    """As it came: a header may hold bytes that are no text."""
    return header.encode(errors="surrogateescape")
