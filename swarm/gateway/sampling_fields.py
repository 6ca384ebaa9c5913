"""Fields that say how tokens are chosen, beside temperature and its like, and structured output.

Names and ranges are OpenAI's, and vLLM's for `min_p`, `repetition_penalty`, `min_tokens`,
`structured_outputs` and the `guided_` fields. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json

from swarm.errors import RequestError
from swarm.gateway.fields import Body, Json, unsupported
from swarm.messages import BANNED_IDS_MAX, BIAS_MAX, GUIDE_BYTES_MAX
from swarm.terms import Guide, GuideKind, Sampling, TokenBias

BIAS_LIMIT = 100.0
PENALTY_LIMIT = 2.0
BAD_WORDS_MAX = BANNED_IDS_MAX // 4
"""Words become sequences of tokens, each with and without a space before it."""
ANY_OBJECT = '{"type": "object"}'

Penalty = Annotated[float, Field(ge=-PENALTY_LIMIT, le=PENALTY_LIMIT)]


class SamplingFields(Body):
    """Mixed into the bodies of every endpoint that generates."""

    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=BIAS_LIMIT)] | None = None
    logit_bias: dict[str, Any] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    bad_words: list[str] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


@dataclass(frozen=True, slots=True)
class AskedGuide:
    """A guide, and the field that asks for it."""

    param: str
    guide: Guide


def steered(body: SamplingFields, sampling: Sampling) -> Sampling:
    """The sampling with what these fields add to it. Raises RequestError naming the field."""
    asked = asked_guide(body)
    return replace(
        sampling,
        min_p=float(body.min_p or 0.0),
        presence_penalty=float(body.presence_penalty or 0.0),
        frequency_penalty=float(body.frequency_penalty or 0.0),
        repetition_penalty=_repetition(body.repetition_penalty),
        min_tokens=body.min_tokens or 0,
        bias=_biases(body.logit_bias or {}),
        guide=asked.guide.kind if asked is not None else None,
    )


def bad_words(body: SamplingFields) -> tuple[str, ...]:
    words = tuple(body.bad_words or ())
    if len(words) > BAD_WORDS_MAX:
        detail = f"bad_words must have at most {BAD_WORDS_MAX} entries"
        raise RequestError(detail, param="bad_words")
    if "" in words:
        raise RequestError("bad_words must not have an empty string", param="bad_words")
    return words


def asked_guide(body: SamplingFields) -> AskedGuide | None:
    """What the answer must conform to. Raises RequestError where two fields ask for that."""
    asked = [
        AskedGuide(param, guide)
        for param, guide in (
            ("response_format", _of_format(body.response_format)),
            ("structured_outputs", _of_structured(body.structured_outputs)),
            ("guided_json", _given(body.guided_json, "guided_json", _schema)),
            ("guided_regex", _given(body.guided_regex, "guided_regex", _regex)),
            ("guided_choice", _given(body.guided_choice, "guided_choice", _choice)),
            ("guided_grammar", _given(body.guided_grammar, "guided_grammar", _grammar)),
        )
        if guide is not None
    ]
    if len(asked) > 1:
        raise RequestError(
            f"{asked[1].param} and {asked[0].param} both ask for structured output; use one",
            param=asked[1].param,
        )
    return asked[0] if asked else None


def schema_guide(schema: Any, param: str) -> Guide:
    """A guide for JSON that a schema describes. Raises RequestError for what is no schema."""
    return _schema(schema, param)


# -------------------------------------------------------------------- numbers


def _repetition(penalty: float | None) -> float:
    if penalty is None:
        return 1.0
    if penalty < 1.0 / BIAS_LIMIT:
        detail = f"repetition_penalty must be at least {1.0 / BIAS_LIMIT:g}"
        raise RequestError(detail, param="repetition_penalty")
    return float(penalty)


def _biases(given: Mapping[str, Any]) -> tuple[TokenBias, ...]:
    if len(given) > BIAS_MAX:
        raise RequestError(f"logit_bias must have at most {BIAS_MAX} entries", param="logit_bias")
    return tuple(_bias(token, value) for token, value in given.items())


def _bias(token: str, value: Any) -> TokenBias:
    if not (token.isascii() and token.isdecimal()) or len(token) > 10:
        raise RequestError("logit_bias must have token ids as its keys", param="logit_bias")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -BIAS_LIMIT <= value <= BIAS_LIMIT:
        detail = f"logit_bias must have values from {-BIAS_LIMIT:g} to {BIAS_LIMIT:g}"
        raise RequestError(detail, param="logit_bias")
    return TokenBias(int(token), float(value))


# -------------------------------------------------------------------- guides


def _of_format(given: Json | None) -> Guide | None:
    match (given or {"type": "text"}).get("type"):
        case "text":
            return None
        case "json_object":
            return Guide(GuideKind.JSON_SCHEMA, ANY_OBJECT)
        case "json_schema":
            described = (given or {}).get("json_schema")
            param = "response_format.json_schema.schema"
            if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
                raise RequestError(f"{param} must be an object", param=param)
            return _schema(described["schema"], param)
        case _:
            raise RequestError(
                "response_format.type must be 'text', 'json_object' or 'json_schema'",
                param="response_format.type",
            )


def _of_structured(given: Json | None) -> Guide | None:
    """vLLM's one object with one of several fields."""
    asked = {name: value for name, value in (given or {}).items() if value not in (None, False)}
    if not asked:
        return None
    found = []
    for name, value in asked.items():
        param = f"structured_outputs.{name}"
        make = _STRUCTURED.get(name)
        if make is None:
            raise unsupported(param)
        found.append(make(value, param))
    if len(found) > 1:
        detail = f"structured_outputs must have one of {', '.join(_STRUCTURED)}"
        raise RequestError(detail, param="structured_outputs")
    return found[0]


def _given(value: Any, param: str, make: Callable[[Any, str], Guide]) -> Guide | None:
    return None if value is None else make(value, param)


def _schema(value: Any, param: str) -> Guide:
    if isinstance(value, str):
        try:
            value = from_json(value, allow_inf_nan=False)
        except ValueError as error:
            raise RequestError(f"{param} is not valid JSON", param=param) from error
    if not isinstance(value, dict | bool):
        raise RequestError(f"{param} must be a JSON schema", param=param)
    return _bounded(GuideKind.JSON_SCHEMA, json.dumps(value), param)


def _regex(value: Any, param: str) -> Guide:
    return _bounded(GuideKind.REGEX, _text(value, param), param)


def _grammar(value: Any, param: str) -> Guide:
    return _bounded(GuideKind.LARK, _text(value, param), param)


def _choice(value: Any, param: str) -> Guide:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise RequestError(f"{param} must be an array of strings", param=param)
    if "" in value:
        raise RequestError(f"{param} must not have an empty string", param=param)
    options = " | ".join(json.dumps(option, ensure_ascii=False) for option in value)
    return _bounded(GuideKind.LARK, f"start: {options}", param)


def _any_object(value: Any, param: str) -> Guide:
    if value is not True:
        raise RequestError(f"{param} must be true or false", param=param)
    return Guide(GuideKind.JSON_SCHEMA, ANY_OBJECT)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{param} must be a string that is not empty", param=param)
    return value


def _bounded(kind: GuideKind, source: str, param: str) -> Guide:
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        raise RequestError(f"{param} must be valid Unicode text", param=param) from error
    if size > GUIDE_BYTES_MAX:
        raise RequestError(f"{param} must have at most {GUIDE_BYTES_MAX} bytes", param=param)
    return Guide(kind, source)


_STRUCTURED: dict[str, Callable[[Any, str], Guide]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _any_object,
}
