"""The HTTP face of a node: OpenAI's endpoints, health, state and control, on aiohttp."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from swarm.config import GatewayConfig
from swarm.departure_io import DepartureDesk
from swarm.errors import ConfigError, SwarmError
from swarm.gateway.access_io import Door
from swarm.gateway.accounts_io import AccountPages
from swarm.gateway.anthropic_io import AnthropicPages
from swarm.gateway.api_io import OpenAiPages
from swarm.gateway.callers import CountedNode
from swarm.gateway.completions_io import Completions, error_response
from swarm.gateway.events_io import EventPages
from swarm.gateway.explain_io import ExplainPages
from swarm.gateway.health_io import HealthPages
from swarm.gateway.metrics import Meter
from swarm.gateway.model_pages_io import ModelPages
from swarm.gateway.naming_io import Naming
from swarm.gateway.node_pages_io import NodePages
from swarm.gateway.ollama_io import OllamaPages
from swarm.gateway.openapi_io import OpenApiPages
from swarm.gateway.page_io import WebPage
from swarm.gateway.responses import ErrorAnswer, error_answer
from swarm.gateway.server_io import Runner
from swarm.gateway.sources import Sources
from swarm.gateway.stream_io import STREAM, EventStream
from swarm.gateway.text_process_io import TextHelper, TextProcess
from swarm.node_port import NodePort
from swarm.notes import Level, NoteSink, note
from swarm.terms import Address

PATH_SHOWN_CHARS = 100


class Pages(Protocol):
    """Some endpoints. A file of its own for each, so that this one need not know what they do."""

    def routes(self) -> list[web.RouteDef]: ...


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
        self._config = config
        self._notes = notes
        self._naming = Naming(sources.seed)
        self._door = Door(config, sources, notes, control_token)
        meter = Meter(sources.clock, node.snapshot)
        self._accounts = AccountPages(node, meter, self._door.ledger)
        counted = CountedNode(node, self._door, meter.observe)
        helper = helper or TextProcess(config, self._helper_said)
        self._completions = Completions(counted, config, sources, notes, helper)
        created = int(sources.wall_clock())
        self._health = HealthPages(node, config, sources)
        self.departure = DepartureDesk(node, config.leave_grace_s, self.refuse_new, notes)
        self._events = EventPages(node, config, sources, notes)
        self._pages: tuple[Pages, ...] = (
            self._health,
            OpenAiPages(node, self._completions, created),
            OllamaPages(node, self._completions, created),
            AnthropicPages(self._completions),
            OpenApiPages(node),
            NodePages(node, config, control_token, self.departure),
            ModelPages(node, control_token),
            WebPage(),
            self._events,
            ExplainPages(node),
            self._accounts,
        )
        self._runner = Runner(self._app(), config)

    async def start(self, host: str | None = None, port: int | None = None) -> Address:
        """Listen, at once, whether or not the node knows anyone; the address that was bound.

        Without `port` the configured one is tried and then the next ones; a port that is asked
        for is not moved. Raises ConfigError when there is none to be had.
        """
        host = self._config.host if host is None else host
        first = self._config.port if port is None else port
        tries = self._config.port_tries if port is None else 1
        await self._door.open(host)
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
            self._accounts.start()
            return Address(host, int(self._runner.addresses[0][1]))
        await self._runner.cleanup()
        which = f"port {first} is" if tries == 1 else f"ports {first} to {first + tries - 1} are"
        raise ConfigError(
            f"{which} in use on {host}; free it or choose another with --gateway HOST:PORT"
        )

    @property
    def routes(self) -> tuple[web.AbstractRoute, ...]:
        """All that is served here."""
        return tuple(self._runner.app.router.routes())

    async def stop(self) -> None:
        """Cut off what runs, each with an error that its client sees, and close. Idempotent."""
        self._completions.stop()
        self._events.stop()
        await self._runner.cleanup()
        await self._health.close()
        await self._completions.close()
        await self.departure.close()
        await self._events.close()
        await self._accounts.close()
        await self._door.close()

    def _app(self) -> web.Application:
        app = web.Application(
            client_max_size=self._config.body_bytes_max,
            middlewares=[self._naming.name, self._answer_errors, self._door.admit],
        )
        for prepare in (self._naming.tell, self._door.allow_origin, self._accounts.count_answer):
            app.on_response_prepare.append(prepare)
        for pages in self._pages:
            app.add_routes(pages.routes())
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
            answer = self._plain(request, error, allow)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the root of every request
            what = f"{type(error).__name__}: {error}"
            self._notes(note("gateway.bug", Level.ERROR, path=request.path, error=what))
            answer = ErrorAnswer(500, "an error inside the gateway", "server_error", "internal")
            allow = None
        return await self._send_error(request, answer, {"Allow": allow} if allow else {})

    def _plain(
        self, request: web.Request, error: web.HTTPException, allow: str | None
    ) -> ErrorAnswer:
        """What aiohttp refuses, in a sentence."""
        path = request.path[:PATH_SHOWN_CHARS]
        said = {
            404: f"there is no {path} here; GET /openapi.json lists what there is",
            405: f"{path} takes {allow}, not {request.method}",
            413: f"the body is longer than the {self._config.body_bytes_max} bytes allowed",
        }
        message = said.get(error.status, error.reason)
        return ErrorAnswer(error.status, message, "invalid_request_error", None)

    async def _send_error(
        self, request: web.Request, answer: ErrorAnswer, headers: dict[str, str]
    ) -> web.StreamResponse:
        """As a response, or as the last event of a stream that has begun."""
        stream: EventStream | None = request.get(STREAM)
        if stream is None or not stream.is_open:
            return error_response(answer, self._config, headers, request.path)
        with suppress(ConnectionError):
            await stream.fail(answer)
        return stream.response

    def _helper_said(self, line: str) -> None:
        self._notes(note("gateway.text_helper", Level.WARNING, line=line))

    def refuse_new(self) -> None:
        """The node is about to leave: new requests get 503, running ones go on."""
        self._completions.refuse_new()
