"""One completion request from body to last byte: prepare, generate, stream or collect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.effects import Stalled, Started
from swarm.errors import CapacityError, LinkError, RequestError, SwarmError
from swarm.gateway import catalog, openai
from swarm.gateway.answer import Answer
from swarm.gateway.feed_io import EventFeed
from swarm.gateway.openai import Call, Endpoint
from swarm.gateway.responses import (
    SSE_DONE,
    ChunkWriter,
    Envelope,
    ErrorAnswer,
    body,
    error_answer,
    sse,
)
from swarm.gateway.sources import Sources
from swarm.gateway.stream_io import EventStream
from swarm.gateway.text_process_io import TextHelper
from swarm.gateway.texts_io import Texts
from swarm.node_port import NodePort
from swarm.notes import NoteSink, note
from swarm.terms import ModelSpec, Order, SessionId

SESSION_HEADER = "X-Swarm-Session"


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready to be generated."""

    call: Call
    spec: ModelSpec
    order: Order
    answer: Answer


class Completions:
    """Serves `/v1/chat/completions` and `/v1/completions`."""

    def __init__(
        self,
        node: NodePort,
        config: GatewayConfig,
        sources: Sources,
        notes: NoteSink,
        helper: TextHelper,
    ) -> None:
        self._node = node
        self._config = config
        self._sources = sources
        self._notes = notes
        self._texts = Texts(node, config, helper)
        self._requests = 0
        self._running: dict[SessionId, EventFeed] = {}
        self._refusing = False

    def refuse_new(self) -> None:
        """Answer new requests with 503 from now on."""
        self._refusing = True

    def stop(self) -> None:
        """Refuse new requests and cut off those that run; each tells its client."""
        self.refuse_new()
        for feed in list(self._running.values()):
            feed.cut()

    async def close(self) -> None:
        await self._texts.close()

    async def serve(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse:
        """The response. Whatever way this ends, the session's hops are freed."""
        began = self._sources.clock()
        if self._refusing:
            raise LinkError("this node is leaving the swarm; ask another")
        if self._requests >= self._config.requests_max:
            raise RequestError("too many requests at once on this gateway", status=429)
        self._requests += 1
        try:
            job = await self._prepare(endpoint, await self._body(request), began)
            feed = EventFeed(self._node.generate(job.order))
            return await self._run(request, job, feed, began)
        finally:
            self._requests -= 1

    async def _body(self, request: web.Request) -> bytes:
        limit_s = self._config.prepare_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await request.read()
        except TimeoutError as error:
            detail = f"the request's body did not arrive within {limit_s:g} s"
            raise RequestError(detail, status=408) from error

    async def _prepare(self, endpoint: Endpoint, data: bytes, began: float) -> Job:
        limit_s = self._config.prepare_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._job(endpoint, data, began)
        except TimeoutError as error:
            raise CapacityError(
                f"the prompt could not be made ready within {limit_s:g} s; try again"
            ) from error

    async def _job(self, endpoint: Endpoint, data: bytes, began: float) -> Job:
        call = await self._texts.parse(endpoint, data)
        spec = catalog.find(self._node.models(), call.model).spec
        table = await self._texts.table(spec)
        now = datetime.fromtimestamp(self._sources.wall_clock(), UTC).astimezone()
        ids = await self._texts.prompt_ids(call, data, spec, now)
        order = openai.order_of(call, spec, ids, self._sources.seed(), self._config)
        return Job(call, spec, order, Answer(table, order, call.stop, began))

    async def _run(
        self, request: web.Request, job: Job, feed: EventFeed, began: float
    ) -> web.StreamResponse:
        self._running[feed.session] = feed
        try:
            if job.call.stream:
                return await self._stream(request, job, feed)
            return await self._collect(job, feed)
        finally:
            del self._running[feed.session]
            self._tell(job, feed.session, began)
            await feed.close()

    async def _collect(self, job: Job, feed: EventFeed) -> web.Response:
        answer, pieces = job.answer, []
        while not answer.is_over and (event := await feed.next()) is not None:
            piece = answer.see(event, self._sources.clock())
            if piece is not None:
                pieces.append(piece)
        if not answer.is_over:
            answer.fail(_cut_off())
        headers = {SESSION_HEADER: feed.session}
        if answer.error is not None:
            return error_response(error_answer(answer.error), self._config, headers)
        return web.json_response(
            body(self._envelope(job, feed.session), answer, pieces), headers=headers
        )

    async def _stream(self, request: web.Request, job: Job, feed: EventFeed) -> web.StreamResponse:
        answer = job.answer
        headers = {SESSION_HEADER: feed.session}
        writer = ChunkWriter(self._envelope(job, feed.session), answer)
        opening = writer.opening()
        stream = EventStream(
            request,
            headers,
            self._config,
            opening=sse(opening) if opening else b"",
            status=lambda: self._status(answer),
        )
        async with stream:
            try:
                await self._pass_on(feed, answer, writer, stream)
                if answer.error is not None and not stream.is_open:
                    return error_response(error_answer(answer.error), self._config, headers)
                await stream.write(_ending(answer, writer))
            except ConnectionError:
                pass  # the client is gone; freeing the session is all that is left to do
        return stream.response

    async def _pass_on(
        self,
        feed: EventFeed,
        answer: Answer,
        writer: ChunkWriter,
        stream: EventStream,
    ) -> None:
        while (event := await feed.next()) is not None:
            piece = answer.see(event, self._sources.clock())
            if isinstance(event, Started):
                await stream.open()
            elif isinstance(event, Stalled):
                await stream.comment(f"stalled: {event.cause}")
            chunk = writer.chunk(piece) if piece is not None else None
            if chunk is not None and (stream.is_open or answer.error is None):
                await stream.write(sse(chunk))
            if answer.is_over:
                return
        answer.fail(_cut_off())

    def _status(self, answer: Answer) -> str:
        if answer.stall_began is None:
            return "waiting"
        return f"stalled for {self._sources.clock() - answer.stall_began:.1f} s"

    def _envelope(self, job: Job, session: SessionId) -> Envelope:
        prefix = "chatcmpl" if job.call.endpoint is Endpoint.CHAT else "cmpl"
        created = int(self._sources.wall_clock())
        return Envelope(job.call, f"{prefix}-{session}", created, job.call.model)

    def _tell(self, job: Job, session: SessionId, began: float) -> None:
        answer = job.answer
        outcome = answer.finish_reason or ("failed" if answer.error else "client gone")
        self._notes(
            note(
                "gateway.answered",
                session=session,
                model=job.spec.name,
                outcome=outcome,
                prompt_tokens=len(job.order.prompt_ids),
                completion_tokens=answer.token_count,
                duration_ms=round((self._sources.clock() - began) * 1000, 1),
            )
        )


def error_response(
    answer: ErrorAnswer, config: GatewayConfig, headers: Mapping[str, str]
) -> web.Response:
    retry = {"Retry-After": str(config.retry_after_s)} if answer.retry else {}
    return web.json_response(answer.json(), status=answer.status, headers={**headers, **retry})


def _ending(answer: Answer, writer: ChunkWriter) -> bytes:
    """The last events: an error, or usage and the terminator. Never both."""
    if answer.error is not None:
        return sse(error_answer(answer.error).json())
    usage = writer.usage()
    return (sse(usage) if usage else b"") + SSE_DONE


def _cut_off() -> SwarmError:
    return LinkError("the answer was cut off: this gateway is stopping")
