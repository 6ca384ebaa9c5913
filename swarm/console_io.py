"""What a running node writes: plain sentences for the person who started it, notes for the log."""

from __future__ import annotations

import datetime
import sys
import time
from typing import TextIO

from swarm.notes import Level, Note, as_json, as_text, printable

QUIET_EVENTS = frozenset({"link.up", "link.down"})
"""Shown in the log, not as sentences."""


class Console:
    """Sentences on stdout, the log on stderr; as JSON, everything is a log line on stdout."""

    def __init__(self, *, as_json_lines: bool, level: Level = Level.INFO) -> None:
        self._json = as_json_lines
        self._level = level

    def note(self, entry: Note) -> None:
        if entry.level < self._level:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        if self._json:
            self._write(sys.stdout, as_json(entry, wall_time=now, monotonic_s=time.monotonic()))
            return
        self._write(sys.stderr, f"{now} {entry.level.name:<7} {as_text(entry)}")
        sentence = _sentence(entry)
        if sentence:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        """One line. Names in it may come from peers: they cannot steer the terminal."""
        if not self._json:
            self._write(sys.stdout, printable(sentence))

    def _write(self, stream: TextIO, line: str) -> None:
        """A reader that went away must not stop the node."""
        try:
            print(line, file=stream, flush=True)
        except (BrokenPipeError, ValueError):
            return


def _sentence(entry: Note) -> str | None:
    match entry.event:
        case "model.covered":
            return f"{entry.get('model')} is ready: all its layers are served."
        case "model.uncovered":
            return (
                f"{entry.get('model')} is not complete: layers {entry.get('missing')} are missing."
            )
        case "shard.failed":
            return f"{entry.get('model')} cannot be served here: {entry.get('reason')}"
        case "swarm.foreign":
            return (
                f"Another swarm is on this network (tag {entry.get('tag')}, node "
                f"{entry.get('node_name')}); to join it: swarm join --key KEY, "
                "where `swarm key show` on one of its machines prints KEY."
            )
        case _:
            return None
