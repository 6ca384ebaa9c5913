"""From tokens to text while they come: whole characters only, and stop strings cut off.

Both live at the origin, so neither a stall nor a new route can touch what they hold.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from swarm.gateway.token_table import TokenTable

BROKEN = "\ufffd"
"""What decoders put where bytes make no character (yet)."""
CHARACTER_BYTES_MAX = 4
PENDING_TOKENS_MAX = 2 * CHARACTER_BYTES_MAX
"""Tokens that still make no character after this many never will."""
CONTEXT_TOKENS = 2 * CHARACTER_BYTES_MAX + 1
"""Tokens of the prompt that are decoded along, for prefix spaces and split characters."""


class Detokenizer(Protocol):
    """Text of a growing sequence, in pieces that join to the decoded whole."""

    def push(self, token_id: int) -> str:
        """The text that this token completes, often all of its own, sometimes none."""

    def flush(self) -> str:
        """What was withheld, at the end of the answer, without a half character."""


def detokenizer(table: TokenTable, prompt_ids: Sequence[int]) -> Detokenizer:
    """For an answer that follows `prompt_ids`."""
    tail = [i for i in prompt_ids[-CONTEXT_TOKENS:] if not table.is_silent(i)]
    return ByteDetokenizer(table, tail) if table.is_byte_level else WindowDetokenizer(table, tail)


class ByteDetokenizer:
    """For tokens that are plain bytes, which may begin and end anywhere in a character."""

    def __init__(self, table: TokenTable, tail: Sequence[int]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id in tail:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        if self._table.is_silent(token_id):
            return ""
        return self._decoder.decode(self._table.token_bytes(token_id))

    def flush(self) -> str:
        self._decoder.reset()
        return ""


class WindowDetokenizer:
    """For all other tokens, of which those that are single bytes make characters together.

    A window of the latest tokens is decoded with and without the new one; the difference is the
    new text (as in vLLM). A character that is not whole yet is withheld. The prompt's tail gives
    the context of the first token: "▁world" after a prompt is " world", not "world".
    """

    def __init__(self, table: TokenTable, tail: list[int]) -> None:
        self._table = table
        self._window: list[int] = []
        self._shown = 0
        self._shown_text = ""
        self._begin(tail)

    def push(self, token_id: int) -> str:
        if self._table.is_silent(token_id):
            return ""
        self._window.append(token_id)
        text = self._table.decode(self._window)
        pending = len(self._window) - self._shown
        if text.endswith(BROKEN) and pending < PENDING_TOKENS_MAX:
            return ""
        new = self._after_shown(text)
        if new or pending >= PENDING_TOKENS_MAX:
            self._advance()
        return new

    def flush(self) -> str:
        text = self._after_shown(self._table.decode(self._window)).rstrip(BROKEN)
        self._advance()
        return text

    def _advance(self) -> None:
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        self._shown_text = self._table.decode(self._window)

    def _begin(self, tail: list[int]) -> None:
        """Take the prompt's tail as the window, from where neither end cuts a character."""
        for skipped in [*range(min(CHARACTER_BYTES_MAX, len(tail) + 1)), 0]:
            self._window = tail[skipped:]
            self._shown = self._whole_characters()
            self._shown_text = self._table.decode(self._window[: self._shown])
            if BROKEN not in self._shown_text:
                return

    def _whole_characters(self) -> int:
        """How many tokens of the window to count as shown, so that no character is cut there."""
        count = len(self._window)
        for shown in range(count, max(-1, count - CHARACTER_BYTES_MAX), -1):
            if not self._table.decode(self._window[:shown]).endswith(BROKEN):
                return shown
        return count

    def _after_shown(self, text: str) -> str:
        if text.startswith(self._shown_text):
            return text[len(self._shown_text) :]
        # Some decoders spoil a run of byte tokens as a whole when one more byte does not fit.
        return self._table.decode(self._window[self._shown :])


class StopMatcher:
    """Passes text on until a stop string ends it; holds back what could still become one.

    The stop string that is complete first wins, whatever the pieces are that the text comes in.
    """

    def __init__(self, stops: tuple[str, ...], *, show: bool = False) -> None:
        """`show`: the stop string itself is passed on too."""
        self._stops = stops
        self._show = show
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    @property
    def stopped(self) -> bool:
        return self.found is not None

    def push(self, text: str) -> str:
        """The part of all text so far that is certain and was not passed on yet."""
        if self.stopped:
            return ""
        held = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            end, begin = min(found)
            self.found = held[begin:end]
            return held[: end if self._show else begin]
        keep = self._could_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back, when the answer ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _could_start(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
