"""Tool calls that are JSON objects, read letter by letter: arguments are told as they come. Pure.

An object has its function under `name` and its arguments under `arguments` or `parameters`, in any
order; objects may stand in an array or follow each other after a comma or semicolon.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

ARGUMENTS = ("arguments", "parameters")
BETWEEN = " \t\r\n,;"
"""What may stand between two calls."""
NAME_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a tool call. The first delta of each index has the function's name."""

    index: int
    name: str | None
    arguments: str
    """A piece of JSON text; the pieces of a call join to one object."""


class JsonCalls:
    """The calls in a text. `push` until `is_between` and the text goes on in another way."""

    def __init__(self, first: int, limit: int, known: Collection[str] | None = None) -> None:
        """`first`: the index of the first call. `limit`: calls told in all, those before included.

        `known`: a call of any other function is no call (where nothing but its form tells it).
        """
        self._next = first
        self._limit = limit
        self._known = known
        self._in_array = False
        self._object: _Object | None = None
        self.completed = 0
        """Calls that are whole."""
        self.failed = False
        """What came is no call: nothing more is read."""

    @property
    def is_between(self) -> bool:
        """No call is open: what follows may be another, or something else."""
        return self._object is None and not self._in_array and not self.failed

    def push(self, text: str) -> tuple[int, list[CallDelta]]:
        """How many letters were taken, and what they add. Letters after the last call are left."""
        deltas: list[CallDelta] = []
        for at, letter in enumerate(text):
            if self.failed or self._next >= self._limit:
                return at, deltas
            if self._object is None:
                if not self._start(letter):
                    return at, deltas
                continue
            self._take(self._object, letter, deltas)
        _finish_piece(self._object, self._next, deltas)
        return len(text), deltas

    def _start(self, letter: str) -> bool:
        """Between calls: blanks and array marks are taken; False for what is no part of a call."""
        if letter == "{":
            self._object = _Object()
        elif letter == "[" and not self._in_array:
            self._in_array = True
        elif letter == "]" and self._in_array:
            self._in_array = False
        elif letter not in BETWEEN:
            if self._in_array:
                self.failed = True
            return False
        return True

    def _take(self, scanned: _Object, letter: str, deltas: list[CallDelta]) -> None:
        done = scanned.take(letter)
        if scanned.broken or (scanned.name and self._known is not None and not self._is_known()):
            self.failed = True
        if not done:
            return
        if scanned.name is None or (self._known is not None and not scanned.has_arguments):
            self.failed = not scanned.told
            self._object = None
            return
        _finish_piece(scanned, self._next, deltas, whole=True)
        self._object = None
        self._next += 1
        self.completed += 1

    def _is_known(self) -> bool:
        assert self._known is not None and self._object is not None
        return self._object.name in self._known


class _Object:
    """One object: its name, and its arguments' text as far as it is there."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_arguments = False
        self.told = False
        """A delta with the name went out."""
        self.broken = False
        self._pending: list[str] = []
        self._depth = 1
        self._string: list[str] | None = None
        """The string that is open at the object's own level, as written."""
        self._inner_string = False
        self._escaped = False
        self._key: str | None = None
        self._is_value = False

    def take(self, letter: str) -> bool:
        """One more letter; True with the object's last one."""
        if self._in_any_string:
            self._in_string(letter)
            return False
        if self._depth == 1:
            return self._at_top(letter)
        self._pass(letter)
        if letter == '"':
            self._inner_string = True
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1
        return False

    def piece(self) -> str:
        """Text of the arguments that was not given out before."""
        text = "".join(self._pending)
        self._pending.clear()
        return text

    @property
    def _in_any_string(self) -> bool:
        return self._string is not None or self._inner_string

    @property
    def _is_arguments(self) -> bool:
        return self._key in ARGUMENTS

    def _at_top(self, letter: str) -> bool:
        if letter == '"':
            self._string = []
        elif letter == ":":
            self.broken = self._key is None or self._is_value
            self._is_value = True
        elif letter == ",":
            self._end_value()
        elif letter == "}":
            self._end_value()
            return True
        elif letter in "{[":
            self.broken = not self._is_value
            self._depth += 1
            self._begin_value()
            self._pass(letter)
        elif not letter.isspace():
            self.broken = not self._is_value or self._is_arguments
        return False

    def _begin_value(self) -> None:
        self.has_arguments = self.has_arguments or self._is_arguments

    def _end_value(self) -> None:
        self._key, self._is_value = None, False

    def _pass(self, letter: str) -> None:
        if self._is_arguments and self._is_value:
            self._pending.append(letter)

    def _in_string(self, letter: str) -> None:
        if self._string is None:
            self._pass(letter)
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            if self._string is None:
                self._inner_string = False
            else:
                self._end_string("".join(self._string))
                self._string = None
            return
        if self._string is not None:
            self._string.append(letter)

    def _end_string(self, written: str) -> None:
        """A string at the object's own level: a key, the name, or arguments written as a text."""
        try:
            text = json.loads(f'"{written}"', strict=False)
            text.encode()  # raises for half a character, which no answer can carry
        except ValueError:
            self.broken = True
            return
        if not self._is_value:
            self._key = text
        elif self._key == "name" and self.name is None:
            self.broken = not text or len(text) > NAME_CHARS_MAX
            self.name = text
        elif self._is_arguments:
            self._begin_value()
            self._pending.append(text)


def _finish_piece(
    scanned: _Object | None, index: int, deltas: list[CallDelta], *, whole: bool = False
) -> None:
    """Tell what is there of a call: its name once its arguments begin, or it is whole."""
    if scanned is None or scanned.name is None or scanned.broken:
        return
    if not scanned.told and not (scanned.has_arguments or whole):
        return
    piece = scanned.piece()
    if whole and not scanned.has_arguments:
        piece = "{}"
    if scanned.told and not piece:
        return
    deltas.append(CallDelta(index, None if scanned.told else scanned.name, piece))
    scanned.told = True
