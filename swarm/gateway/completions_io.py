"""One request of a model, in any dialect, from body to last byte: prepare, generate, write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aiohttp import web

from swarm.config import GatewayConfig
from swarm.effects import Stalled, Started
from swarm.errors import CapacityError, LinkError, RequestError, SwarmError
from swarm.gateway import calls, catalog, dialects, tool_guides
from swarm.gateway.answer import Answer, Piece
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.feed_io import EventFeed
from swarm.gateway.naming_io import REQUEST_ID
from swarm.gateway.queue_io import Turns
from swarm.gateway.responses import ErrorAnswer, error_answer
from swarm.gateway.sources import Sources
from swarm.gateway.stream_io import EventStream
from swarm.gateway.text_process_io import TextHelper
from swarm.gateway.texts_io import Texts, Words
from swarm.gateway.tool_calls import ToolReader
from swarm.gateway.writing import Reply, Writer
from swarm.node_port import Generation, NodePort
from swarm.notes import NoteSink, note
from swarm.terms import ModelSpec, Order, SessionId

SESSION_HEADER = "X-Swarm-Session"


_JSON_TYPES = {
    "application/json",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
}
"""What JSON comes as: itself, without a type (as aiohttp names that), and from a bare `curl -d`."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready to be generated."""

    call: Call
    spec: ModelSpec
    answers: tuple[Answer, ...]
    """One for each choice of each prompt; each has its order."""


class Completions:
    """Answers requests of models, whatever the endpoint."""

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
        self._turns = Turns(config)
        self._running: dict[int, EventFeed] = {}
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
        self._check_open()
        async with self._turns.turn():
            self._check_open()
            job = await self._prepare(endpoint, await self.body(request), began)
            if not job.answers:
                return web.json_response(dialects.writer(self._reply(job, ())).body([]))
            return await self._run(request, job, self._begin(job), began)

    async def count(self, endpoint: Endpoint, request: web.Request) -> list[int]:
        """Tokens of each prompt of a request that asks for no answer."""
        self._check_open()
        async with self._turns.turn():
            data = await self.body(request)
            async with self._in_time():
                call, spec, _ = await self._parse(endpoint, data)
                return [len(ids) for ids in await self._prompts(call, data, spec)]

    def _check_open(self) -> None:
        """Also after a wait for a turn: the node may have begun to leave meanwhile."""
        if self._refusing:
            raise LinkError("this node is leaving the swarm; ask another")

    async def tool_family(self, spec: ModelSpec) -> str | None:
        """How a model writes tool calls; None where it knows none, or its way is not known."""
        async with self._in_time():
            words = await self._texts.words(spec)
        return words.tool_family if words else None

    async def body(self, request: web.Request) -> bytes:
        """All of it. Raises RequestError: 408 when it does not come in time, 415 for no JSON."""
        if request.content_type not in _JSON_TYPES and not request.path.startswith("/api/"):
            raise RequestError(
                f"the body must be application/json, not {request.content_type}", status=415
            )
        limit_s = self._config.body_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await request.read()
        except TimeoutError as error:
            detail = f"the request's body did not arrive within {limit_s:g} s"
            raise RequestError(detail, status=408) from error

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        limit_s = self._config.prepare_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError as error:
            raise CapacityError(
                f"the prompt could not be made ready within {limit_s:g} s; try again"
            ) from error

    async def _parse(self, endpoint: Endpoint, data: bytes) -> tuple[Call, ModelSpec, Words | None]:
        call = await self._texts.parse(endpoint, data)
        spec = catalog.find(self._node.models(), call.model).spec
        return call, spec, await self._texts.words(spec)

    async def _prompts(self, call: Call, data: bytes, spec: ModelSpec) -> list[tuple[int, ...]]:
        now = datetime.fromtimestamp(self._sources.wall_clock(), UTC).astimezone()
        return await self._texts.prompt_ids(call, data, spec, now)

    async def _prepare(self, endpoint: Endpoint, data: bytes, began: float) -> Job:
        async with self._in_time():
            call, spec, words = await self._parse(endpoint, data)
            prompts = await self._prompts(call, data, spec)
            banned = await self._texts.banned(call, spec)
            call = replace(call, sampling=replace(call.sampling, banned=banned))
            if words is not None:
                call = tool_guides.guided(call, words.tool_family, words.special)
        seeds = [self._sources.seed() for _ in prompts]
        orders = calls.orders_of(call, spec, prompts, seeds, self._config)
        return Job(call, spec, tuple(_answer(call, order, words, began) for order in orders))

    def _begin(self, job: Job) -> EventFeed:
        """Start the sessions: all of them, or none."""
        begun: list[Generation] = []
        try:
            for answer in job.answers:
                begun.append(self._node.generate(answer.order))
        except SwarmError:
            for generation in begun:
                generation.cancel()
            raise
        return EventFeed(begun)

    async def _run(
        self, request: web.Request, job: Job, feed: EventFeed, began: float
    ) -> web.StreamResponse:
        self._running[id(feed)] = feed
        try:
            writer = dialects.writer(self._reply(job, feed.sessions))
            if job.call.stream:
                return await self._stream(request, job, feed, writer)
            return await self._collect(request, job, feed, writer)
        finally:
            del self._running[id(feed)]
            self._tell(job, feed.sessions, request[REQUEST_ID], began)
            await feed.close()

    def _reply(self, job: Job, sessions: tuple[SessionId, ...]) -> Reply:
        return Reply(job.call, job.answers, sessions, int(self._sources.wall_clock()))

    async def _collect(
        self, request: web.Request, job: Job, feed: EventFeed, writer: Writer
    ) -> web.Response:
        pieces: list[list[Piece]] = [[] for _ in job.answers]
        while not _is_over(job) and (entry := await feed.next()) is not None:
            index, event = entry
            piece = job.answers[index].see(event, self._sources.clock())
            if piece is not None:
                pieces[index].append(piece)
            if job.answers[index].is_over:
                feed.finish(index)
        headers = _headers(feed)
        error = _error(job)
        if error is not None:
            return error_response(error_answer(error), self._config, headers, request.path)
        return web.json_response(writer.body(pieces), headers=headers)

    async def _stream(
        self, request: web.Request, job: Job, feed: EventFeed, writer: Writer
    ) -> web.StreamResponse:
        stream = EventStream(
            request,
            _headers(feed),
            self._config,
            opening=writer.opening(),
            status=lambda: self._status(job),
            voice=writer,
        )
        async with stream:
            try:
                await self._pass_on(feed, job, writer, stream)
                error = _error(job)
                if error is None:
                    await stream.write(writer.ending())
                elif stream.is_open:
                    await stream.fail(error_answer(error))
                else:
                    return error_response(
                        error_answer(error), self._config, _headers(feed), request.path
                    )
            except ConnectionError:
                pass  # the client is gone; freeing the sessions is all that is left to do
        return stream.response

    async def _pass_on(
        self, feed: EventFeed, job: Job, writer: Writer, stream: EventStream
    ) -> None:
        while not _is_over(job) and (entry := await feed.next()) is not None:
            index, event = entry
            answer = job.answers[index]
            piece = answer.see(event, self._sources.clock())
            if isinstance(event, Started):
                await stream.open()
            elif isinstance(event, Stalled):
                await stream.comment(f"stalled: {event.cause}")
            data = writer.piece(index, piece) if piece is not None else b""
            if data and (stream.is_open or answer.error is None):
                await stream.write(data)
            if answer.is_over:
                feed.finish(index)

    def _status(self, job: Job) -> str:
        stalls = [a.stall_began for a in job.answers if a.stall_began is not None and not a.is_over]
        if not stalls:
            return "waiting"
        return f"stalled for {self._sources.clock() - min(stalls):.1f} s"

    def _tell(
        self, job: Job, sessions: tuple[SessionId, ...], request_id: str, began: float
    ) -> None:
        for answer, session in zip(job.answers, sessions, strict=True):
            outcome = answer.finish_reason or ("failed" if answer.error else "client gone")
            self._notes(
                note(
                    "gateway.answered",
                    session=session,
                    request=request_id,
                    model=job.spec.name,
                    outcome=outcome,
                    prompt_tokens=len(answer.order.prompt_ids),
                    completion_tokens=answer.token_count,
                    duration_ms=round((self._sources.clock() - began) * 1000, 1),
                )
            )


def error_response(
    answer: ErrorAnswer, config: GatewayConfig, headers: Mapping[str, str], path: str = ""
) -> web.Response:
    """`path`: of the request; an error has the form that the clients of this path know."""
    after_s = config.retry_after_s if answer.retry_after_s is None else answer.retry_after_s
    retry = {"Retry-After": str(after_s)} if answer.retry else {}
    return web.json_response(
        dialects.error_json(path, answer), status=answer.status, headers={**headers, **retry}
    )


def _answer(call: Call, order: Order, words: Words | None, began: float) -> Answer:
    """An answer before its first token, which knows what to look for in the text."""
    table, reader, offered = words.table if words else None, None, call.rendering.tools
    if words is not None and words.tool_family is not None and offered is not None:
        reader = ToolReader(words.tool_family, offered.names, parallel=offered.parallel)
    marked = reader is not None and reader.shows_special
    if table is not None and (call.show_special or marked):
        table = table.showing_special()
    return Answer(table, order, call.stop, began, show_stop=call.show_stop, reader=reader)


def _headers(feed: EventFeed) -> dict[str, str]:
    return {SESSION_HEADER: ",".join(feed.sessions)}


def _is_over(job: Job) -> bool:
    """True when no more is to come: every answer is finished, or one of them failed."""
    return all(a.is_over for a in job.answers) or any(a.error is not None for a in job.answers)


def _error(job: Job) -> SwarmError | None:
    """Why the request failed: one answer that did is enough."""
    errors = [answer.error for answer in job.answers if answer.error is not None]
    if errors:
        return errors[0]
    unfinished = [answer for answer in job.answers if not answer.is_over]
    for answer in unfinished:
        answer.fail(_cut_off())
    return _cut_off() if unfinished else None


def _cut_off() -> SwarmError:
    return LinkError("the answer was cut off: this gateway is stopping")
