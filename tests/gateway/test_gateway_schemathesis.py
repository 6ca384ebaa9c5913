"""Requests that schemathesis makes from `/openapi.json`, sound and unsound, against a gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import openapi_cases
import pytest
from fake_node import model, serving
from hostile_http import node
from schemathesis import GenerationMode

EXAMPLES = 40
"""Of sound bodies few can be answered: so many that some are, whatever the library draws."""


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
    return openapi_cases.load(url, ("tiny", "other"))


@pytest.mark.parametrize(("path", "method", "mode"), openapi_cases.CASES)
def test_answers_are_what_the_document_says(
    url: str, schema: Any, path: str, method: str, mode: GenerationMode
) -> None:
    statuses = openapi_cases.statuses(url, schema[path][method], mode, EXAMPLES)
    right = (200 in statuses) == (mode is GenerationMode.POSITIVE)
    assert right or path in openapi_cases.RARELY_RIGHT
