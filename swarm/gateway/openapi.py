"""The OpenAPI 3.1 document of a gateway, from the models that check its requests. Pure.

Source: https://spec.openapis.org/oas/v3.1.0. What a body may hold is told by the same classes that
read it; endpoints that take no body are told from the routes that are served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from swarm.gateway import anthropic, ollama, openai, openai_responses
from swarm.gateway.fields import Json

_REF = "#/components/schemas/"
_VARIABLE = re.compile(r"\{(\w+)(?::[^}]*)?\}")

_STRING, _INTEGER, _OBJECT, _ARRAY = (
    {"type": kind} for kind in ("string", "integer", "object", "array")
)


def _shape(required: Mapping[str, Json], **optional: Json) -> Json:
    properties = {**required, **optional}
    return {"type": "object", "required": list(required), "properties": properties}


_SHAPES: dict[str, Json] = {
    "Error": _shape({"error": _shape({"message": _STRING, "type": _STRING})}),
    "OllamaError": _shape({"error": _STRING}),
    "AnthropicError": _shape(
        {"type": {"const": "error"}, "error": _shape({"type": _STRING, "message": _STRING})}
    ),
    "ChatCompletion": _shape(
        {
            "id": _STRING,
            "object": {"const": "chat.completion"},
            "created": _INTEGER,
            "model": _STRING,
            "choices": _ARRAY,
            "usage": _OBJECT,
        },
        swarm=_OBJECT,
    ),
    "Completion": _shape(
        {
            "id": _STRING,
            "object": {"const": "text_completion"},
            "created": _INTEGER,
            "model": _STRING,
            "choices": _ARRAY,
            "usage": _OBJECT,
        },
        swarm=_OBJECT,
    ),
    "Response": _shape(
        {
            "id": _STRING,
            "object": {"const": "response"},
            "created_at": _INTEGER,
            "status": _STRING,
            "model": _STRING,
            "output": _ARRAY,
            "usage": _OBJECT,
        },
        swarm=_OBJECT,
    ),
    "Message": _shape(
        {
            "id": _STRING,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": _STRING,
            "content": _ARRAY,
            "usage": _OBJECT,
        },
        stop_reason=_STRING,
        swarm=_OBJECT,
    ),
    "TokenCount": _shape({"input_tokens": _INTEGER}),
    "OllamaChat": _shape(
        {"model": _STRING, "created_at": _STRING, "message": _OBJECT, "done": {"type": "boolean"}}
    ),
    "OllamaGenerate": _shape(
        {"model": _STRING, "created_at": _STRING, "response": _STRING, "done": {"type": "boolean"}}
    ),
    "OllamaModel": _shape({"details": _OBJECT, "model_info": _OBJECT, "capabilities": _ARRAY}),
    "OllamaModels": _shape({"models": _ARRAY}),
    "ModelList": _shape({"object": {"const": "list"}, "data": _ARRAY}),
    "Model": _shape({"id": _STRING, "object": {"const": "model"}, "created": _INTEGER}),
    "Object": _OBJECT,
}


@dataclass(frozen=True, slots=True)
class _Told:
    """What is to say of an endpoint beside its path."""

    summary: str
    answer: str
    """Name of the shape of a whole answer."""
    body: type[BaseModel] | None = None
    streams: str | None = None
    """Content type of a streamed answer."""
    query: tuple[str, ...] = ()


_SSE = "text/event-stream"
_LINES = "application/x-ndjson"
_TOLD: dict[tuple[str, str], _Told] = {
    ("POST", "/v1/chat/completions"): _Told(
        "An answer to a conversation", "ChatCompletion", openai.ChatBody, _SSE
    ),
    ("POST", "/v1/completions"): _Told(
        "The continuation of a text", "Completion", openai.CompletionBody, _SSE
    ),
    ("POST", "/v1/responses"): _Told(
        "An answer in items", "Response", openai_responses.ResponsesBody, _SSE
    ),
    ("POST", "/v1/messages"): _Told(
        "An answer to a conversation, as Anthropic has it", "Message", anthropic.MessagesBody, _SSE
    ),
    ("POST", "/v1/messages/count_tokens"): _Told(
        "The tokens of a conversation", "TokenCount", anthropic.CountBody
    ),
    ("POST", "/api/chat"): _Told(
        "An answer to a conversation, as Ollama has it", "OllamaChat", ollama.ChatBody, _LINES
    ),
    ("POST", "/api/generate"): _Told(
        "An answer to a prompt, as Ollama has it", "OllamaGenerate", ollama.GenerateBody, _LINES
    ),
    ("POST", "/api/show"): _Told("What a model is", "OllamaModel", ollama.ShowBody),
    ("GET", "/api/tags"): _Told("The models that are covered now", "OllamaModels"),
    ("GET", "/api/ps"): _Told("The same: covered is loaded", "OllamaModels"),
    ("GET", "/api/version"): _Told("The version of the node", "Object"),
    ("GET", "/v1/models"): _Told("The models that are covered now", "ModelList"),
    ("GET", "/v1/models/{name}"): _Told("One of them", "Model"),
    ("GET", "/healthz"): _Told("Whether the process lives", "Object"),
    ("GET", "/readyz"): _Told(
        "Whether a token came through a whole route lately", "Object", query=("model",)
    ),
    ("GET", "/swarm/state"): _Told("All that the node knows", "Object"),
    ("GET", "/openapi.json"): _Told("This document", "Object"),
    ("GET", "/"): _Told("The map and a chat box as a web page", ""),
}
_STATUSES = {
    400: "a field is wrong, not supported, or does not fit the context",
    401: "no key, or not a good one",
    403: "not allowed from there, or with this key",
    404: "there is no such model or path",
    405: "another method is wanted",
    408: "the body did not come in time",
    413: "the body is too big",
    415: "the body is of another type than JSON",
    429: "too much at once, or more than this key may",
    500: "a bug, or a tokenizer that cannot be used",
    501: "known to clients of other servers, not served here",
    503: "no route, no room, or the node is leaving: try again later",
}


def document(served: Iterable[tuple[str, str]], version: str) -> Json:
    """`served`: method and path of every route, a variable as `{name}` or `{name:pattern}`."""
    components = dict(_SHAPES)
    paths: dict[str, Json] = {}
    for method, pattern in served:
        path = _VARIABLE.sub(r"{\1}", pattern)
        told = _TOLD.get((method, path), _Told(f"{method} {path}", ""))
        entry = paths.setdefault(path, {})
        entry[method.lower()] = _operation(method, path, told, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Swarm gateway", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": components},
    }


def _operation(method: str, path: str, told: _Told, components: Json) -> Json:
    operation: Json = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "summary": told.summary,
        "responses": _responses(path, told),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in _VARIABLE.findall(path)
    ]
    parameters += [{"name": name, "in": "query", "schema": _STRING} for name in told.query]
    if parameters:
        operation["parameters"] = parameters
    if told.body is not None:
        schema = _body(path, told.body, components)
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(path: str, told: _Told) -> Json:
    """An endpoint of which no more is known answers with whatever it does."""
    if not told.answer:
        return {"default": {"description": "see docs/gateway.md"}}
    content: Json = {"application/json": {"schema": {"$ref": _REF + told.answer}}}
    if told.streams is not None:
        content[told.streams] = {"schema": _STRING}
    error = "OllamaError" if path.startswith("/api/") else "Error"
    if path.startswith("/v1/messages"):
        error = "AnthropicError"
    refused = {"application/json": {"schema": {"$ref": _REF + error}}}
    responses: Json = {"200": {"description": "the answer", "content": content}}
    for status, description in _STATUSES.items():
        responses[str(status)] = {"description": description, "content": refused}
    return responses


def _body(path: str, model: type[BaseModel], components: Json) -> Json:
    """The schema of a body; its parts get names of this endpoint's own."""
    prefix = "".join(part.capitalize() for part in re.findall(r"[a-z]+", path))
    schema = model.model_json_schema(ref_template=_REF + prefix + "{model}")
    for name, part in schema.pop("$defs", {}).items():
        components[prefix + name] = part
    return schema
