"""The fields of a request body, read and checked; every refusal is one sentence of our own. Pure.

A field that this server does not carry out is refused by name when its value would change the
answer, and accepted when it asks for nothing. Fields that nobody here knows are ignored, as the
extensions of other servers and of tomorrow's clients are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json

from swarm.errors import RequestError

Json = dict[str, Any]

MESSAGE_SHOWN_CHARS = 300

_Kind = TypeVar("_Kind", bound="Body")
_PLACE = re.compile(r"line (\d+) column (\d+)")


class Body(BaseModel):
    """A request's fields. Null means the default, and a string is no number."""

    model_config = ConfigDict(strict=True, extra="allow")


def json_object(body: bytes) -> Json:
    """The JSON object of a body. Raises RequestError."""
    try:
        values = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        place = _PLACE.search(str(error))
        where = f" (line {place[1]}, column {place[2]})" if place else ""
        raise RequestError(f"the body is not valid JSON{where}") from error
    if not isinstance(values, dict):
        raise RequestError("the body must be a JSON object")
    return values


def refuse_unsupported(
    values: Mapping[str, Any],
    neutral: Mapping[str, tuple[Any, ...]],
    prefix: str = "",
    instead: Mapping[str, str] | None = None,
) -> None:
    """`neutral`: fields that are not carried out, with the values that ask for nothing.

    `instead`: what to do, where leaving the field out is not all there is to say.
    """
    for name, harmless in neutral.items():
        value = values.get(name)
        if value is not None and value not in harmless:
            raise unsupported(prefix + name, (instead or {}).get(name, "leave it out"))


def unsupported(name: str, why: str = "leave it out") -> RequestError:
    return RequestError(
        f"{name} is not supported here; {why}", param=name, code="unsupported_field"
    )


def validated(kind: type[_Kind], values: Mapping[str, Any]) -> _Kind:
    """The fields as `kind` has them. Raises RequestError naming the first that does not fit."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)) from error


def _refusal(details: Sequence[ErrorDetails]) -> RequestError:
    path = _path(details[0])
    if details[0]["type"] == "missing":
        return RequestError(f"{path} is required", param=path)
    wanted = dict.fromkeys(_wanted(detail) for detail in details if _path(detail) == path)
    return RequestError(
        f"{path} {' or '.join(wanted).replace(' or must be', ' or')}"[:MESSAGE_SHOWN_CHARS],
        param=path,
    )


def _path(detail: ErrorDetails) -> str:
    parts = [part for part in detail["loc"] if not _is_union_branch(part)]
    return ".".join(str(part)[:MESSAGE_SHOWN_CHARS] for part in parts)


def _is_union_branch(part: int | str) -> bool:
    """Pydantic names the member of a union that did not fit: `stop.str`, `stop.list[str]`."""
    return isinstance(part, str) and (
        part in {"str", "int", "bool", "float"} or "[" in part or part[:1].isupper()
    )


_WANTED = {
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode text",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "missing": "lacks a field",
    "none_required": "must be null",
}


def _wanted(detail: ErrorDetails) -> str:
    sentence = _WANTED.get(detail["type"], "has a value that does not fit")
    return sentence.format(**{name: _plain(value) for name, value in detail.get("ctx", {}).items()})


def _plain(value: Any) -> Any:
    """A limit as people write it: 2, not 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
