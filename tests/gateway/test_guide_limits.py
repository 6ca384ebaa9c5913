"""What a guide may cost: patterns that are costly to tell apart are refused at once, and what takes
long all the same is given up, while others go on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from test_gateway_tool_guides import VOCABULARY

from swarm import guides_io
from swarm.errors import CapacityError
from swarm.guides import COMMON_PATTERNS_MAX, PATTERN_PROPERTIES_MAX, GuideError, Matcher, begun
from swarm.guides_io import LEFT_MAX, GuideMaking
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


SLOW = Guide(GuideKind.REGEX, "slow")
BROKEN = Guide(GuideKind.REGEX, "broken")
QUICK = Guide(GuideKind.REGEX, "[0-9]+")


class Panic(BaseException):
    """What a library in another language raises when it gives up."""


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets the guides that are slow be done."""
    ended = threading.Event()

    def compiled(vocabulary: Any, guide: Guide) -> Matcher:
        if guide is SLOW:
            ended.wait()
        if guide is BROKEN:
            raise Panic
        return begun(vocabulary, guide)

    monkeypatch.setattr(guides_io, "begun", compiled)
    yield ended
    ended.set()


def test_a_guide_that_takes_long_is_given_up_and_others_go_on(end: threading.Event) -> None:
    making = GuideMaking(0.02)
    with pytest.raises(GuideError, match="more than 0.02 s to compile"):
        making.make(VOCABULARY, SLOW)
    assert making.is_worn
    assert GuideMaking(30.0).make(VOCABULARY, QUICK).allowed([])
    end.set()
    while making.is_worn:
        pass


def test_not_every_core_is_left_to_guides_that_take_long(end: threading.Event) -> None:
    making = GuideMaking(0.02)
    for _ in range(LEFT_MAX):
        with pytest.raises(GuideError):
            making.make(VOCABULARY, SLOW)
    with pytest.raises(CapacityError, match="too long"):
        making.make(VOCABULARY, QUICK)


def test_a_library_that_panics_is_a_guide_that_cannot_be_followed(end: threading.Event) -> None:
    with pytest.raises(GuideError, match="could not be compiled"):
        GuideMaking(30.0).make(VOCABULARY, BROKEN)
    with pytest.raises(GuideError, match=r"\w"):
        GuideMaking(30.0).make(VOCABULARY, Guide(GuideKind.REGEX, "(["))
