"""What a running node writes: plain sentences for the person who started it, notes for the log.

A thread of its own does the writing, so that a reader that stalls (`swarm join | less`) does not
stop the node. What waits for it is bounded: the oldest log lines go, and their number is told.
"""

from __future__ import annotations

import datetime
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from swarm.notes import FieldValue, Level, Note, as_json, as_text, note, printable
from swarm.status_line import Progress

LINES_MAX = 2000
"""Lines that wait for a reader; a few hundred kilobytes."""
COLUMNS = 80
"""Of a terminal that does not say."""
ERASE = "\r\x1b[K"
FLUSH_S = 2.0
"""How long a node that stops waits for its reader."""


@dataclass(slots=True)
class _Target:
    """Where lines go. Its file descriptor is written to directly: a buffered stream that is
    stuck in a write could not be closed when the process ends."""

    stream: TextIO
    descriptor: int | None
    is_gone: bool = False

    @staticmethod
    def of(stream: TextIO) -> _Target:
        try:
            return _Target(stream, stream.fileno())
        except (OSError, ValueError):  # it is no file
            return _Target(stream, None)

    @property
    def is_terminal(self) -> bool:
        """One that can erase a line."""
        return self.stream.isatty() and os.name != "nt" and os.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        try:
            return os.get_terminal_size(self.descriptor or 1).columns or COLUMNS
        except OSError:
            return COLUMNS

    def write(self, text: str) -> None:
        """A reader that went away must not stop the node."""
        if self.is_gone:
            return
        try:
            if self.descriptor is None:
                self.stream.write(text)
                self.stream.flush()
            else:
                _write_all(self.descriptor, text.encode(errors="replace"))
        except (OSError, ValueError):
            self.is_gone = True


@dataclass(frozen=True, slots=True)
class _Line:
    target: _Target
    text: str
    is_log: bool


class _Writer:
    """A bounded queue of lines and the thread that writes them, above a footer that stays last."""

    def __init__(
        self, lines_max: int, notice: Callable[[int], _Line], footer_target: _Target | None
    ) -> None:
        """`notice` makes the line that tells how many were dropped."""
        self._lines_max = lines_max
        self._notice = notice
        self._footer_target = footer_target
        self._footer = self._drawn = ""
        self._lines: deque[_Line] = deque()
        self._dropped = 0
        self._writing = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: _Line) -> None:
        with self._changed:
            if self._closed:
                return
            if len(self._lines) >= self._lines_max:
                oldest = next((i for i, old in enumerate(self._lines) if old.is_log), 0)
                del self._lines[oldest]
                self._dropped += 1
            self._lines.append(line)
            self._wake()

    def set_footer(self, text: str) -> None:
        """What stands below all lines from now on; the last of several counts."""
        with self._changed:
            if not self._closed and self._footer_target is not None:
                self._footer = text
                self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="console", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False where the reader did not take it in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._writing and not self._has_work, timeout_s
            )

    def close(self) -> None:
        """Nothing more is taken; the thread ends with what waits."""
        with self._changed:
            self._closed = True
            self._footer = ""
            self._changed.notify_all()

    @property
    def _has_work(self) -> bool:
        return bool(self._lines) or self._footer != self._drawn

    def _run(self) -> None:
        while (work := self._next()) is not None:
            lines, shown, footer = work
            erase = ERASE if shown else ""
            for line in lines:
                line.target.write(f"{erase}{line.text}\n")
                erase = ""
            if self._footer_target is not None and (footer or shown):
                room = self._footer_target.columns - 1
                self._footer_target.write(f"{erase}{footer[:room]}")

    def _next(self) -> tuple[list[_Line], str, str] | None:
        """Lines, the footer that is shown now, and the one to be shown; None at the end."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_work or self._closed)
            if not self._has_work:
                return None
            self._writing = True
            shown, self._drawn = self._drawn, self._footer
            dropped, self._dropped = self._dropped, 0
            lines = [self._notice(dropped)] if dropped else []
            return [*lines, *([self._lines.popleft()] if self._lines else [])], shown, self._drawn


class Console:
    """Sentences on stdout, the log on stderr; as JSON, everything is a log line on stdout.

    Where both are one terminal, a note that has a sentence is shown by that alone.
    """

    def __init__(
        self,
        *,
        as_json_lines: bool,
        level: Level | None = None,
        out: TextIO | None = None,
        log: TextIO | None = None,
        lines_max: int = LINES_MAX,
    ) -> None:
        """`out`, `log`: instead of stdout and stderr.

        Without `level`, a terminal shows sentences and warnings; a file or a pipe gets every
        state change.
        """
        self._json = as_json_lines
        self._out = _Target.of(out or sys.stdout)
        self._log = self._out if as_json_lines else _Target.of(log or sys.stderr)
        self._one_terminal = self._out.stream.isatty() and self._log.stream.isatty()
        for_people = self._log.stream.isatty() and not as_json_lines
        self._level = level or (Level.WARNING if for_people else Level.INFO)
        is_watched = self._one_terminal and not as_json_lines and self._out.is_terminal
        self._writer = _Writer(lines_max, self._notice, self._out if is_watched else None)
        self._progress = Progress()
        self._status = ""
        self.shows_status = is_watched
        """Whether a person sees what `status` is told."""

    def status(self, text: str) -> None:
        """The line at the bottom of a terminal; a file or a pipe gets none."""
        self._status = text
        self._writer.set_footer(self._progress.text or text)

    def note(self, entry: Note) -> None:
        if self._progress.note(entry):
            self.status(self._status)
        sentence = None if self._json else _sentence(entry)
        is_logged = entry.level >= self._level
        if is_logged and (sentence is None or not self._one_terminal):
            self._writer.put(self._log_line(entry))
        if sentence is not None:
            self.say(sentence)

    def say(self, sentence: str) -> None:
        """One line for a person only: what a note says too, or what no log may hold.

        Names in it may come from peers: they cannot steer the terminal.
        """
        if not self._json:
            self._writer.put(_Line(self._out, printable(sentence), is_log=False))

    def flush(self) -> None:
        """Before something else writes to the terminal."""
        self._writer.flush(FLUSH_S)

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Write what waits, as far as the reader takes it."""
        self._writer.close()
        self._writer.flush(timeout_s)

    def _log_line(self, entry: Note) -> _Line:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        if self._json:
            text = as_json(entry, wall_time=now, monotonic_s=time.monotonic())
        else:
            text = f"{now} {entry.level.name:<7} {as_text(entry)}"
        return _Line(self._log, text, is_log=True)

    def _notice(self, count: int) -> _Line:
        return self._log_line(note("console.dropped", Level.WARNING, lines=count))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody made the terminal non-blocking
            select.select([], [descriptor], [])


# -------------------------------------------------------------------- sentences


def _sentence(entry: Note) -> str | None:
    """What a note says to a person; None for what only a log needs."""
    said = {name: _spoken(value) for name, value in entry.fields}
    if entry.event == "model.uncovered" and not said.get("missing"):
        return f"{said.get('model')} is not complete: nobody serves its first or its last part."
    if entry.event == "node.leaving" and entry.get("sessions"):
        return f"Leaving the swarm: {said['sessions']} running answers move to other nodes first."
    if entry.event == "node.copied":
        return (YIELDING if entry.get("yields") else KEEPING).format_map(_Fields(said))
    template = SENTENCES.get(entry.event)
    return template.format_map(_Fields(said)) if template else None


def _spoken(value: FieldValue) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).rstrip(".")


class _Fields(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


YIELDING = (
    "This machine's identity is also in use at {address}: was its home folder, or its whole disk, "
    "copied? The other machine keeps it, and this one now takes a new identity."
)
KEEPING = (
    "A copy of this machine's identity was found at {address}: was its home folder, or its whole "
    "disk, copied? The other machine takes a new identity, and this one keeps its own."
)
SENTENCES = {
    "swarm.open": "This node joins the open swarm: anyone on this network may join it too, and "
    "nodes that serve layers can read what passes through them.",
    "swarm.heard": "Swarm {tag} is on this network (its node {node_name} was heard), but this "
    "machine has no key for it.",
    "swarm.foreign": "Another swarm is on this network (tag {tag}, node {node_name}). To join it, "
    "type swarm join --key KEY; `swarm key show` on one of its machines prints the KEY.",
    "key.made": "This machine has started a new swarm and made a key for it.",
    "node.listening": "Node {node} listens for other nodes on {address}.",
    "node.leaving": "Leaving the swarm.",
    "node.departs": "This machine leaves in {in_s} s; until then it serves on, and others prepare.",
    "node.stays": "This machine stays after all.",
    "node.gives_way": "The machine is needed for something else ({reason}): this node gives its "
    "layers up until it is left alone again.",
    "node.comes_back": "The machine is left alone again: this node takes layers again.",
    "node.renewed": "The new identity of this machine is {node}; its old key is kept in {kept}.",
    "node.copy_reported": "Another node says that this machine's identity is also in use at "
    "{address}. This node looks there.",
    "link.copied": "Two machines, {address} and {other}, use the identity of node {peer}, as after "
    "a copy of a home folder; both were told.",
    "gateway.listening": "The gateway is at {url}/v1: any OpenAI client can use it, and "
    "`swarm chat` talks to it.",
    "shard.intended": "This node is about to take layers {layers} of {model}.",
    "shard.fetch": "Fetching layers {layers} of {model} from the other nodes.",
    "shard.load": "Loading layers {layers} of {model}.",
    "shard.serving": "Serving layers {layers} of {model}.",
    "shard.failed": "{model} cannot be served here: {reason}.",
    "shard.last_copy": "Nobody else serves layers {layers} of {model}: answers that need them wait "
    "for another node, and fail where none comes.",
    "worker.lost": "The worker process ended ({reason}); it is started again in {restart_s} s.",
    "gateway.usage_damaged": "The counts of used tokens were damaged and begin anew; the old file "
    "is kept as {kept}.",
    "receipt.damaged": "The receipts between nodes were damaged and begin anew; the old file is "
    "kept as {kept}.",
    "model.covered": "{model} is ready: all its layers are served.",
    "model.uncovered": "{model} is not complete: nobody serves layers {missing}.",
    "mdns.unavailable": "Other nodes cannot be found by multicast ({cause}); name one with "
    "--peer HOST:PORT.",
}
