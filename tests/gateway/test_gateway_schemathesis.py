"""Requests that schemathesis makes from `/openapi.json`, sound and unsound, against a gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
import schemathesis
from fake_node import model, serving
from hostile_http import node
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
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
RARELY_RIGHT = {"/v1/models/{name}", "/api/show", "/v1/messages", "/v1/messages/count_tokens"}
"""Where a sound body is seldom one that can be answered."""
OPERATIONS = [
    ("/v1/chat/completions", "post"),
    ("/v1/completions", "post"),
    ("/v1/responses", "post"),
    ("/v1/messages", "post"),
    ("/v1/messages/count_tokens", "post"),
    ("/api/chat", "post"),
    ("/api/generate", "post"),
    ("/api/show", "post"),
    ("/api/tags", "get"),
    ("/v1/models", "get"),
    ("/v1/models/{name}", "get"),
    ("/readyz", "get"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A gateway on a loop and thread of its own: schemathesis' client blocks."""
    told: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        target = node()
        target.views = (model(context=4096),)
        async with serving(target) as served:
            end = asyncio.Event()
            told.set_result((served.url, asyncio.get_running_loop(), end))
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    where, loop, end = told.result(timeout=30)
    yield where
    loop.call_soon_threadsafe(end.set)
    thread.join()


@pytest.fixture(scope="module")
def schema(url: str) -> Any:
    load_all_checks()
    document = httpx.get(f"{url}/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                 "/v1/messages/count_tokens", "/api/chat", "/api/generate"):  # fmt: skip
        _name_the_model(document, path)
    return schemathesis.openapi.from_dict(document)


def _name_the_model(document: Any, path: str) -> None:
    """A name drawn from all strings is never that of a model: nothing would be answered."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    content["application/json"]["schema"]["properties"]["model"]["enum"] = ["tiny", "other"]


CASES = [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS] + [
    (path, method, GenerationMode.NEGATIVE) for path, method in OPERATIONS if method == "post"
]


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_answers_are_what_the_document_says(
    url: str, schema: Any, path: str, method: str, mode: GenerationMode
) -> None:
    operation = schema[path][method]
    statuses: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(base_url=url)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    check()
    assert (200 in statuses) == (mode is GenerationMode.POSITIVE) or path in RARELY_RIGHT
