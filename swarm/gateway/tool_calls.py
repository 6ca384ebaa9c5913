"""Tool calls in what a model writes: found while the text comes, told apart from words. Pure.

Each family of models writes its calls in its own way, which its chat template shows. Where a call
is one JSON object its arguments are passed on as they come; elsewhere the call is told whole.
Sources: the chat templates of the families themselves, and the formats as vLLM's documentation of
its tool parsers names them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swarm.gateway.json_calls import CallDelta, JsonCalls
from swarm.gateway.tool_forms import Form, family_named, shows_special

CALLS_MAX = 128
"""Calls in one answer; what a model writes beyond is words."""


@dataclass(frozen=True, slots=True)
class Read:
    """What some more text adds: words for the reader, and parts of calls."""

    text: str = ""
    calls: tuple[CallDelta, ...] = ()


class ToolReader:
    """Reads one answer. Words pass through; what could still become a call's mark is held back."""

    def __init__(self, family: str, names: Collection[str], *, parallel: bool = True) -> None:
        """`names`: of the tools on offer. `parallel`: more than one call may come."""
        self._name = family
        self._family = family_named(family)
        self._names = frozenset(names)
        self._limit = CALLS_MAX if parallel else 1
        self._held = ""
        self._call: _OpenCall | None = None
        self._said = False
        self.count = 0
        """Calls begun so far."""
        self.is_complete = False
        """The one call that may come is whole: nothing that follows matters."""

    @property
    def shows_special(self) -> bool:
        """The marks of calls are special tokens: the text must come with those."""
        return shows_special(self._name)

    def push(self, text: str) -> Read:
        self._held += text
        words: list[str] = []
        calls: list[CallDelta] = []
        while not self.is_complete and self._advance(words, calls):
            pass
        return Read("".join(words), tuple(calls))

    def flush(self) -> Read:
        """At the end of the answer: a call that was not closed is told as far as it makes sense."""
        words: list[str] = []
        calls: list[CallDelta] = []
        if self.is_complete:
            return Read()
        if self._call is not None:
            self._close(self._call, words, calls)
        words.append(self._worded(self._held))
        self._held = ""
        return Read("".join(words), tuple(calls))

    def _advance(self, words: list[str], calls: list[CallDelta]) -> bool:
        """Take what is certain from the held text; True while there may be more."""
        if self._call is not None:
            return self._inside(self._call, words, calls)
        found = self._opening()
        if found is None:
            keep = self._could_open()
            certain = self._held[: len(self._held) - keep]
            self._held = self._held[len(certain) :]
            words.append(self._worded(certain))
            return False
        form, begin, end = found
        before = self._held[:begin]
        words.append(self._worded(before.rstrip()))
        blank = before[len(before.rstrip()) :]
        self._call = _OpenCall(form, blank, self._held[begin:end], self._json_calls(form))
        self._held = self._held[end:]
        return True

    def _json_calls(self, form: Form) -> JsonCalls | None:
        known = self._names if form.is_guess else None
        return JsonCalls(self.count, self._limit, known) if form.read_whole is None else None

    def _worded(self, text: str) -> str:
        """Blanks between calls and before the first word are no words."""
        if self.count and not self._said:
            text = text.lstrip()
        if not text.strip() and (self.count or not text):
            return ""
        self._said = bool(text.strip()) or self._said
        return text

    def _opening(self) -> tuple[Form, int, int] | None:
        """The first mark that opens a call: its form and place."""
        found = []
        for form in self._family:
            if form.is_guess:
                blank = len(self._held) - len(self._held.lstrip())
                if not self._said and self._held[blank:].startswith(form.opening):
                    found.append((blank, blank, form))
            elif (at := self._held.find(form.opening)) >= 0:
                found.append((at, at + len(form.opening), form))
        if not found:
            return None
        begin, end, form = min(found, key=lambda entry: (entry[0], -entry[1]))
        return form, begin, end

    def _could_open(self) -> int:
        """Length of the held text's end that may yet become a mark, blanks before it included."""
        held = self._held
        best = 0
        for form in self._family:
            for size in range(min(len(form.opening) - 1, len(held)), 0, -1):
                if form.opening.startswith(held[-size:]):
                    best = max(best, size)
                    break
        words = held[: len(held) - best]
        return best + len(words) - len(words.rstrip())

    def _inside(self, call: _OpenCall, words: list[str], calls: list[CallDelta]) -> bool:
        """Text of an open call: to the scanner, or kept until its closing mark."""
        if call.scanner is None:
            return self._keep(call, words, calls)
        used, deltas = call.scanner.push(self._held)
        call.text += self._held[:used]
        self._held = self._held[used:]
        self._tell(call, deltas, calls)
        if self.is_complete:
            return False
        if call.scanner.failed and not call.told:
            self._give_back(call, words)
            return True
        closing = call.form.closing
        if call.scanner.is_between and self._held:
            if not call.told:
                self._give_back(call, words)
                return True
            if closing and closing.startswith(self._held[: len(closing)]):
                if len(self._held) < len(closing):
                    return False
                self._held = self._held[len(closing) :]
            self._call = None
            return True
        return call.scanner.failed and self._drop(call)

    def _drop(self, call: _OpenCall) -> bool:
        """What cannot be read after a call was begun belongs to nobody: skip to its end."""
        closing = call.form.closing
        at = self._held.find(closing) if closing else -1
        if at < 0:
            self._held = self._held[len(self._held) - _overlap(self._held, closing) :]
            return False
        self._held = self._held[at + len(closing) :]
        self._call = None
        return True

    def _keep(self, call: _OpenCall, words: list[str], calls: list[CallDelta]) -> bool:
        closing = call.form.closing
        at = self._held.find(closing) if closing else -1
        if at < 0:
            keep = _overlap(self._held, closing)
            call.text += self._held[: len(self._held) - keep]
            self._held = self._held[len(self._held) - keep :]
            return False
        call.text += self._held[:at]
        self._held = self._held[at + len(closing) :]
        self._whole(call, words, calls)
        return True

    def _close(self, call: _OpenCall, words: list[str], calls: list[CallDelta]) -> None:
        if call.scanner is None:
            call.text += self._held
            self._held = ""
            self._whole(call, words, calls)
            return
        if not call.told:
            self._give_back(call, words)
        self._call = None

    def _whole(self, call: _OpenCall, words: list[str], calls: list[CallDelta]) -> None:
        """A call, or several, of a form that is read when it is complete."""
        assert call.form.read_whole is not None
        found = call.form.read_whole(call.text[len(call.form.opening) :])
        if not found:
            self._give_back(call, words, call.form.closing)
            return
        deltas = [
            CallDelta(self.count + index, name, arguments)
            for index, (name, arguments) in enumerate(found[: self._limit - self.count])
        ]
        self._tell(call, deltas, calls)
        self.is_complete = self._limit == 1 and bool(deltas)
        self._call = None

    def _tell(self, call: _OpenCall, deltas: Sequence[CallDelta], calls: list[CallDelta]) -> None:
        for delta in deltas:
            calls.append(delta)
            call.told = True
            self.count = max(self.count, delta.index + 1)
        if call.scanner is not None and self._limit == 1 and call.scanner.completed:
            self.is_complete = True

    def _give_back(self, call: _OpenCall, words: list[str], closing: str = "") -> None:
        """It was no call after all: its text is words."""
        self._call = None
        self._said = True
        words.append(call.blank + call.text + closing)


@dataclass(slots=True)
class _OpenCall:
    form: Form
    blank: str
    """What stood before it, which counts if it is no call."""
    text: str
    """As written so far, its opening mark included."""
    scanner: JsonCalls | None
    told: bool = False


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that `mark` begins with."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
