"""Structured notes: what a core wants known. Shells turn them into log lines, metrics and events.

A note names an event (`peer.suspect`) and carries fields. Never prompts, weights, keys or text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

FieldValue = str | int | float | bool | None


class Level(IntEnum):
    """DEBUG per step, INFO per state change, WARNING handled trouble, ERROR a person must look."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Note:
    event: str
    level: Level
    fields: tuple[tuple[str, FieldValue], ...]

    def get(self, name: str) -> FieldValue:
        return dict(self.fields).get(name)


NoteSink = Callable[[Note], None]


def note(event: str, level: Level = Level.INFO, **fields: FieldValue) -> Note:
    return Note(event, level, tuple(fields.items()))


def as_text(entry: Note) -> str:
    """One `event key=value` line; strings with blanks or unprintable letters are quoted."""
    return " ".join([entry.event, *(f"{key}={_text(value)}" for key, value in entry.fields)])


def as_json(entry: Note, *, wall_time: str, monotonic_s: float) -> str:
    """`monotonic_s` tells apart what a wall clock blurs; comparable within one machine."""
    row: dict[str, FieldValue] = {
        "time": wall_time,
        "monotonic_s": round(monotonic_s, 6),
        "level": entry.level.name,
        "event": entry.event,
    }
    return json_text(row | dict(entry.fields))


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON that a terminal takes for text: escapes and direction marks in it are spelled out."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if all(map(str.isprintable, text.split("\n"))):
        return text
    return json.dumps(value, indent=indent, ensure_ascii=True)


def printable(text: str) -> str:
    """Text from elsewhere, fit for one line of a terminal: a blank for each unprintable letter."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _text(value: FieldValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    plain = text.isprintable() and not set(text) & set(" \"'=")
    return text if text and plain else json_text(text)
