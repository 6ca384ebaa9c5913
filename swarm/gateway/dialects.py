"""The one table of dialects: which code reads an endpoint's bodies and writes its answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarm.config import GatewayConfig
from swarm.gateway import (
    anthropic,
    anthropic_writer,
    ollama,
    ollama_writer,
    openai,
    openai_responses,
)
from swarm.gateway.anthropic_writer import AnthropicWriter
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.fields import Json, json_object
from swarm.gateway.ollama_writer import OllamaWriter
from swarm.gateway.openai_responses_writer import ResponsesWriter
from swarm.gateway.openai_writer import OpenAiWriter
from swarm.gateway.responses import ErrorAnswer
from swarm.gateway.writing import Reply, Writer

_PARSERS: Mapping[Endpoint, Callable[[Json, GatewayConfig], Call]] = {
    **openai.PARSERS,
    **openai_responses.PARSERS,
    **ollama.PARSERS,
    **anthropic.PARSERS,
}
_WRITERS: Mapping[Endpoint, Callable[[Reply], Writer]] = {
    Endpoint.CHAT: OpenAiWriter,
    Endpoint.COMPLETION: OpenAiWriter,
    Endpoint.RESPONSES: ResponsesWriter,
    Endpoint.OLLAMA_CHAT: OllamaWriter,
    Endpoint.OLLAMA_GENERATE: OllamaWriter,
    Endpoint.MESSAGES: AnthropicWriter,
}
_ERRORS: tuple[tuple[str, Callable[[ErrorAnswer], Json]], ...] = (
    ("/api/", ollama_writer.error_json),
    ("/v1/messages", anthropic_writer.error_json),
)


def parse(endpoint: Endpoint, body: bytes, config: GatewayConfig) -> Call:
    """The call in a request body. Raises RequestError (400) naming the field at fault."""
    return _PARSERS[endpoint](json_object(body), config)


def writer(reply: Reply) -> Writer:
    """Who puts this answer into words for its client."""
    return _WRITERS[reply.call.endpoint](reply)


def error_json(path: str, error: ErrorAnswer) -> Json:
    """The body of an error response, as the clients of this path know it."""
    for prefix, shape in _ERRORS:
        if path.startswith(prefix):
            return shape(error)
    return error.json()
