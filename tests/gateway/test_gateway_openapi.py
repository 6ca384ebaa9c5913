"""The description of the API against the API: every route, every body, sound by its own rules."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from fake_node import FakeNode, serving

from swarm.gateway import openapi


@pytest.fixture(scope="module")
def served() -> Any:
    async def main() -> Any:
        async with (
            serving(FakeNode()) as served,
            aiohttp.ClientSession(served.url) as client,
            client.get("/openapi.json") as response,
        ):
            return await response.json()

    return asyncio.run(main())


def references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(references(value) for value in part.values()))
    if isinstance(part, list):
        return set().union(*(references(value) for value in part))
    return set()


def test_all_that_is_referred_to_is_there(served: Any) -> None:
    known = {f"#/components/schemas/{name}" for name in served["components"]["schemas"]}
    assert references(served) <= known


def test_every_endpoint_of_models_is_told_with_its_body(served: Any) -> None:
    for path in (
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
        "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show",
    ):  # fmt: skip
        operation = served["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert "model" in schema["properties"]
        assert {"200", "400", "404", "413", "429", "503"} <= set(operation["responses"])
    assert {"/v1/models", "/v1/models/{name}", "/api/tags", "/healthz"} <= set(served["paths"])


def test_a_route_that_nobody_described_is_listed_all_the_same() -> None:
    told = openapi.document([("GET", "/new/{thing:.+}")], "1")
    operation = told["paths"]["/new/{thing}"]["get"]
    assert operation["parameters"][0]["name"] == "thing"
