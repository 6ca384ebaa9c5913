"""A running node's notes as lines: which of them, and in what form. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from swarm.errors import ConfigError
from swarm.notes import Level, Note, as_text, json_text, note

Json = dict[str, Any]
LEVELS = [level.name.lower() for level in Level if level >= Level.INFO]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`patterns`: names of events, with `*`; none means all."""

    level: Level
    patterns: tuple[str, ...]

    @staticmethod
    def of(level: str, patterns: Sequence[str]) -> Wanted:
        """Raises ConfigError for a level that is none. `link` means `link.*` too."""
        if level.lower() not in LEVELS:
            raise ConfigError(f"{level!r} is not a level; use {', '.join(LEVELS)}")
        return Wanted(Level[level.upper()], tuple(patterns))

    def takes(self, entry: Json) -> bool:
        name = str(entry.get("event", ""))
        if _level(entry) < self.level:
            return False
        return not self.patterns or any(
            fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")
            for pattern in self.patterns
        )


def as_line(entry: Json, zone: datetime.tzinfo) -> str:
    """As `swarm join` writes it: the time, the level, the event and its fields."""
    fields = {k: v for k, v in entry.items() if k not in ("at", "event", "level")}
    told = Note(str(entry.get("event", "?")), _level(entry), tuple(fields.items()))
    when = _time(entry, zone).isoformat(timespec="milliseconds")
    return f"{when} {told.level.name:<7} {as_text(told)}"


def as_json_line(entry: Json) -> str:
    return json_text(entry)


def lost_entry(count: int, at: float) -> Json:
    """What stands where this reader lagged."""
    told = note("logs.lost", Level.WARNING, events=count)
    return {"at": at, "event": told.event, "level": told.level.name, **dict(told.fields)}


def _level(entry: Json) -> Level:
    name = str(entry.get("level", ""))
    return Level[name] if name in Level.__members__ else Level.INFO


def _time(entry: Json, zone: datetime.tzinfo) -> datetime.datetime:
    at = entry.get("at")
    try:
        return datetime.datetime.fromtimestamp(float(at or 0.0), zone)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.datetime.fromtimestamp(0.0, zone)
