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
    """One `event key=value` line; strings with blanks are quoted."""
    return " ".join([entry.event, *(f"{key}={_text(value)}" for key, value in entry.fields)])


def as_json(entry: Note, *, wall_time: str, monotonic_s: float) -> str:
    """`monotonic_s` tells apart what a wall clock blurs; comparable within one machine."""
    row: dict[str, FieldValue] = {
        "time": wall_time,
        "monotonic_s": round(monotonic_s, 6),
        "level": entry.level.name,
        "event": entry.event,
    }
    return json.dumps(row | dict(entry.fields), ensure_ascii=False)


def _text(value: FieldValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(" \"'=\n") else text
