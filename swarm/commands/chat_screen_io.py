"""Where a chat is typed and shown: a terminal with Markdown and history, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text as Line

from swarm.commands.chat_text import COMMANDS, clean, split_finished, tail

FRAMES_PER_S = 12
LIVE_MARGIN = 4
"""Lines of the terminal that an unfinished paragraph leaves free."""


class Screen(Protocol):
    def ask(self) -> str:
        """A line from the person. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def begin(self) -> None:
        """An answer comes."""

    def text(self, text: str) -> None: ...

    def remark(self, text: str) -> None:
        """Something happened to the answer that comes."""

    def end(self) -> None:
        """The answer is over, in whatever way. Idempotent."""

    def dim(self, text: str) -> None: ...

    def trouble(self, text: str) -> None: ...


class PlainScreen:
    """Text as it comes. For pipes, and for terminals that cannot move their cursor."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_text = False

    def ask(self) -> str:
        """Ctrl-C ends the chat here: whoever pipes lines in does not type at a prompt."""
        try:
            return self._console.input("[bold]> [/]")
        except (EOFError, KeyboardInterrupt):
            self._console.print()
            raise EOFError from None

    def begin(self) -> None:
        self._has_text = False

    def text(self, text: str) -> None:
        self._has_text = True
        self._console.print(Line(clean(text)), end="", soft_wrap=True)

    def remark(self, text: str) -> None:
        self._console.print(Line(f" [{text}] ", style="yellow"), end="")

    def end(self) -> None:
        if self._has_text:
            self._console.print()
        self._has_text = False

    def dim(self, text: str) -> None:
        self._console.print(Line(text, style="dim"))

    def trouble(self, text: str) -> None:
        self._console.print(Line(text, style="red"))


class LiveScreen(PlainScreen):
    """Markdown while it comes: what is finished scrolls up, the last paragraph is drawn anew."""

    def __init__(self, console: Console, ask: Callable[[], str]) -> None:
        super().__init__(console)
        self._ask = ask
        self._pending = ""
        self._live: Live | None = None

    def ask(self) -> str:
        return self._ask()

    def begin(self) -> None:
        self._pending = ""
        self._live = Live(
            console=self._console, transient=True, refresh_per_second=FRAMES_PER_S,
            vertical_overflow="crop",
        )  # fmt: skip
        self._live.start()

    def text(self, text: str) -> None:
        finished, self._pending = split_finished(self._pending + clean(text))
        if finished.strip():
            self._console.print(_markdown(finished))
            self._console.print()
        if self._live is not None:
            lines = max(2, self._console.height - LIVE_MARGIN)
            self._live.update(_markdown(tail(self._pending, lines)))

    def remark(self, text: str) -> None:
        self._console.print(Line(text, style="yellow"))

    def end(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        live.stop()
        if self._pending.strip():
            self._console.print(_markdown(self._pending))
        self._pending = ""


def _markdown(text: str) -> Markdown:
    """Links are spelled out: a name that hides where it leads would be somebody else's choice."""
    return Markdown(text, hyperlinks=False)


def screen_for(console: Console) -> Screen:
    """With line editing and a history that ends with the chat, where a person is there."""
    if not console.is_terminal or console.is_dumb_terminal or not sys.stdin.isatty():
        return PlainScreen(console)
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import InMemoryHistory

    completer = WordCompleter(list(COMMANDS), sentence=True)
    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(), completer=completer, complete_while_typing=False
    )
    return LiveScreen(console, lambda: session.prompt("> "))
