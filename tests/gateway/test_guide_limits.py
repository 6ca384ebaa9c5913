"""What a schema may ask for before anything is compiled: patterns that are costly to tell apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_gateway_tool_guides import VOCABULARY

from swarm.guides import COMMON_PATTERNS_MAX, PATTERN_PROPERTIES_MAX, GuideError, Matcher
from swarm.terms import Guide, GuideKind


def matcher(schema: Any) -> Matcher:
    return Matcher(VOCABULARY, Guide(GuideKind.JSON_SCHEMA, json.dumps(schema)))


def patterned(count: int) -> dict[str, Any]:
    properties = {f"^p{i}$": {"type": "integer"} for i in range(count)}
    return {"type": "object", "patternProperties": properties, "additionalProperties": False}


def common(count: int) -> dict[str, Any]:
    parts = [{"type": "string", "pattern": f"^[a-z]*{chr(97 + i)}"} for i in range(count)]
    return {"type": "object", "properties": {"x": {"allOf": parts}}}


def test_a_few_patterns_are_fine() -> None:
    assert matcher(patterned(4)).allowed([])
    assert matcher(common(2)).allowed([])


@pytest.mark.parametrize(
    "schema",
    [
        patterned(PATTERN_PROPERTIES_MAX + 1),
        {"anyOf": [patterned(PATTERN_PROPERTIES_MAX), patterned(1)]},
        common(COMMON_PATTERNS_MAX + 1),
        {"allOf": [common(COMMON_PATTERNS_MAX), {"pattern": "a"}]},
    ],
)
def test_patterns_that_take_minutes_are_refused_at_once(schema: Any) -> None:
    with pytest.raises(GuideError, match="at most"):
        matcher(schema)
