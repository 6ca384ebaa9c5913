"""The HTTP face of a node: OpenAI's endpoints, health, state and control, on aiohttp."""

from __future__ import annotations

import asyncio
import errno
import hmac
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler

from swarm.config import GatewayConfig
from swarm.errors import ConfigError, RequestError, SwarmError
from swarm.gateway import catalog, guard
from swarm.gateway.completions_io import Completions, error_response
from swarm.gateway.openai import Endpoint
from swarm.gateway.probe_io import Prober
from swarm.gateway.responses import ErrorAnswer, error_answer, model_json, not_covered, sse
from swarm.gateway.sources import Sources
from swarm.gateway.stream_io import STREAM, EventStream
from swarm.gateway.text_process_io import TextHelper, TextProcess
from swarm.gateway.view import note_json, state_json
from swarm.node_port import NodePort
from swarm.notes import Level, Note, NoteSink, note
from swarm.terms import Address

CONTROL_HEADER = "X-Swarm-Control"
"""Carries the token of `<home>/gateway.json` for requests that change the node."""
STOP_GRACE_S = 1.0
"""Time for running answers to tell their clients that they are cut off."""


class Gateway:
    """Serves one node. `start`, then `stop`; both on the node's event loop."""

    def __init__(
        self,
        node: NodePort,
        config: GatewayConfig,
        sources: Sources,
        notes: NoteSink,
        control_token: str | None,
        helper: TextHelper | None = None,
    ) -> None:
        """`control_token`: what `POST /swarm/leave` must show; None switches that off.

        `helper`: for tests; otherwise a process of this gateway's own.
        """
        self._node = node
        self._config = config
        self._notes = notes
        self._control_token = control_token
        self._created = int(sources.wall_clock())
        helper = helper or TextProcess(config, self._helper_said)
        self._completions = Completions(node, config, sources, notes, helper)
        self._prober = Prober(node, config, sources.clock)
        self._event_streams: dict[int, web.Request] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._loopback_only = True
        self._runner = web.AppRunner(
            self._app(),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=STOP_GRACE_S,
        )

    async def start(self, host: str | None = None, port: int | None = None) -> Address:
        """Listen, at once, whether or not the node knows anyone; the address that was bound.

        Without `port` the configured one is tried and then the next ones; a port that is asked
        for is not moved. Raises ConfigError when there is none to be had.
        """
        host = self._config.host if host is None else host
        first = self._config.port if port is None else port
        tries = self._config.port_tries if port is None else 1
        self._loopback_only = guard.is_loopback(host)
        await self._runner.setup()
        for candidate in range(first, first + tries):
            try:
                await web.TCPSite(self._runner, host, candidate).start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    await self._runner.cleanup()
                    reason = error.strerror or error
                    raise ConfigError(
                        f"the gateway cannot listen on {Address(host, candidate)}: {reason};"
                        " choose another with --gateway HOST:PORT"
                    ) from error
                continue
            return Address(host, int(self._runner.addresses[0][1]))
        await self._runner.cleanup()
        which = f"port {first} is" if tries == 1 else f"ports {first} to {first + tries - 1} are"
        raise ConfigError(
            f"{which} in use on {host}; free it or choose another with --gateway HOST:PORT"
        )

    async def stop(self) -> None:
        """Cut off what runs, each with an error that its client sees, and close. Idempotent."""
        self._completions.stop()
        for request in list(self._event_streams.values()):
            if request.transport is not None:
                request.transport.close()
        await self._runner.cleanup()
        await self._prober.close()
        await self._completions.close()
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)

    def _app(self) -> web.Application:
        app = web.Application(
            client_max_size=self._config.body_bytes_max,
            middlewares=[self._answer_errors, self._check_sender],
        )
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name:.+}", self._model),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/swarm/state", self._state),
                web.get("/swarm/events", self._events),
                web.post("/swarm/leave", self._leave),
            ]
        )
        return app

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every request gets an answer, and every error OpenAI's shape."""
        try:
            return await handler(request)
        except SwarmError as error:
            answer, allow = error_answer(error), None
        except web.HTTPException as error:
            allow = error.headers.get("Allow")
            answer = ErrorAnswer(error.status, error.reason, "invalid_request_error", None)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the root of every request
            what = f"{type(error).__name__}: {error}"
            self._notes(note("gateway.bug", Level.ERROR, path=request.path, error=what))
            answer = ErrorAnswer(500, "an error inside the gateway", "server_error", "internal")
            allow = None
        return await self._send_error(request, answer, {"Allow": allow} if allow else {})

    async def _send_error(
        self, request: web.Request, answer: ErrorAnswer, headers: dict[str, str]
    ) -> web.StreamResponse:
        """As a response, or as the last event of a stream that has begun."""
        stream: EventStream | None = request.get(STREAM)
        if stream is None or not stream.is_open:
            return error_response(answer, self._config, headers)
        with suppress(ConnectionError):
            await stream.write(sse(answer.json()))
        return stream.response

    @web.middleware
    async def _check_sender(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        judge = guard.refusal if self._loopback_only else guard.refusal_from_afar
        why = judge(request.headers.get("Host"), request.headers.get("Origin"))
        if why is not None:
            raise RequestError(why, status=403, code="forbidden_origin")
        return await handler(request)

    def _helper_said(self, line: str) -> None:
        self._notes(note("gateway.text_helper", Level.WARNING, line=line))

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

    async def _models(self, _: web.Request) -> web.Response:
        listed = catalog.listed(self._node.models())
        data = [model_json(view, label, self._created) for label, view in listed]
        return web.json_response({"object": "list", "data": data})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        view = catalog.find(self._node.models(), name)
        return web.json_response(model_json(view, name, self._created))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.CHAT, request)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._completions.serve(Endpoint.COMPLETION, request)

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response(state_json(self._node.snapshot()))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Notes as they come. A reader that lags loses the oldest ones."""
        if len(self._event_streams) >= self._config.event_streams_max:
            raise RequestError("too many readers of events", status=429)
        notes = self._node.subscribe(self._config.event_backlog_max)
        stream = EventStream(request, {}, self._config)
        self._event_streams[id(request)] = request
        try:
            async with stream:
                await stream.open()
                async for entry in notes:
                    await stream.write(sse(note_json(entry)))
        except ConnectionError:
            pass
        finally:
            del self._event_streams[id(request)]
            await _close(notes)
        return stream.response

    def refuse_new(self) -> None:
        """The node is about to leave: new requests get 503, running ones go on."""
        self._completions.refuse_new()

    async def _leave(self, request: web.Request) -> web.Response:
        """Start a planned departure. Only for programs of this machine that hold the token."""
        given = request.headers.get(CONTROL_HEADER, "").encode()
        peer = request.transport.get_extra_info("peername") if request.transport else None
        if (
            self._control_token is None
            or not hmac.compare_digest(given, self._control_token.encode())
            or not guard.is_loopback(str(peer[0]) if peer else "")
        ):
            raise RequestError("leaving needs the node's control token", status=403)
        if self._leaving is None:
            self._completions.refuse_new()
            self._leaving = asyncio.create_task(self._depart())
        body = {"leaving": True, "grace_s": self._config.leave_grace_s}
        return web.json_response(body, status=202)

    async def _depart(self) -> None:
        try:
            await self._node.leave(self._config.leave_grace_s)
        except SwarmError as error:
            self._notes(note("gateway.leave_failed", Level.ERROR, error=str(error)))


async def _close(notes: AsyncIterator[Note]) -> None:
    close = getattr(notes, "aclose", None)
    if close is not None:
        with suppress(RuntimeError):
            await close()
