"""Requests that schemathesis makes from a gateway's `/openapi.json`, sound and unsound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = 10
ANSWER_TIMEOUT_S = 120.0
"""The library's own ten seconds are too few for real machines that are killed meanwhile."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
RARELY_RIGHT = {"/v1/models/{name}", "/api/show", "/v1/messages", "/v1/messages/count_tokens"}
"""Where a sound body is seldom one that can be answered."""
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
              "/api/chat", "/api/generate")  # fmt: skip
OPERATIONS = [
    *((path, "post") for path in GENERATING),
    ("/v1/messages/count_tokens", "post"),
    ("/api/show", "post"),
    ("/api/tags", "get"),
    ("/v1/models", "get"),
    ("/v1/models/{name}", "get"),
    ("/readyz", "get"),
]
CASES = [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS] + [
    (path, method, GenerationMode.NEGATIVE) for path, method in OPERATIONS if method == "post"
]


TOKEN_LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}


def load(url: str, models: Iterable[str], tokens: int | None = None) -> Any:
    """The gateway's document, as schemathesis has it. Bodies name one of `models`: a name drawn
    from all strings is never that of a model, and nothing would be answered.

    `tokens`: what sound bodies ask for at most, where real machines work on it.
    """
    load_all_checks()
    document = httpx.get(f"{url}/openapi.json").json()
    for path in (*GENERATING, "/v1/messages/count_tokens"):
        _body(document, path)["properties"]["model"]["enum"] = list(models)
    if tokens is not None:
        for path, name in TOKEN_LIMITS.items():
            _limit(_body(document, path), name, tokens)
        for path in ("/api/chat", "/api/generate"):
            body = _body(document, path)
            options = {"type": "object", "properties": {}, "required": []}
            _limit(options, "num_predict", tokens)
            body["properties"]["options"] = options
            body["required"] = [*body.get("required", ()), "options"]
    return schemathesis.openapi.from_dict(document)


def _limit(schema: Any, name: str, most: int) -> None:
    schema["properties"][name] = {"type": "integer", "minimum": 1, "maximum": most}
    schema["required"] = sorted({*schema.get("required", ()), name})


def _body(document: Any, path: str) -> Any:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]


def statuses(url: str, operation: Any, mode: GenerationMode, examples: int = EXAMPLES) -> set[int]:
    """Send requests of one kind, always the same ones, and check each answer; the statuses."""
    seen: set[int] = set()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(base_url=url, timeout=ANSWER_TIMEOUT_S)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    check()
    return seen
