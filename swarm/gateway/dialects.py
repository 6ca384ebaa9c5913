"""The one table of dialects: which code reads an endpoint's bodies and writes its answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarm.config import GatewayConfig
from swarm.gateway import openai
from swarm.gateway.calls import Call, Endpoint
from swarm.gateway.fields import Json, json_object
from swarm.gateway.openai_writer import OpenAiWriter
from swarm.gateway.writing import Reply, Writer

_PARSERS: Mapping[Endpoint, Callable[[Json, GatewayConfig], Call]] = {**openai.PARSERS}
_WRITERS: Mapping[Endpoint, Callable[[Reply], Writer]] = {
    Endpoint.CHAT: OpenAiWriter,
    Endpoint.COMPLETION: OpenAiWriter,
}


def parse(endpoint: Endpoint, body: bytes, config: GatewayConfig) -> Call:
    """The call in a request body. Raises RequestError (400) naming the field at fault."""
    return _PARSERS[endpoint](json_object(body), config)


def writer(reply: Reply) -> Writer:
    """Who puts this answer into words for its client."""
    return _WRITERS[reply.call.endpoint](reply)
