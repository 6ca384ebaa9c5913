"""A run as a short story: what was done to the swarm and what it did, told while it runs."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from sims.phrases import Chorus, Event, Words
from sims.runner import Spectator
from sims.world import LogLine, World

WHO_WIDTH = 8
LINES_MAX = 400
"""Lines told of one run; hours of it are for the summary."""


class Story(Spectator):
    """`whole_log`: every line as it was written."""

    def __init__(self, console: Console, *, whole_log: bool = False) -> None:
        self._console = console
        self._whole_log = whole_log
        self._chorus = Chorus(self._tell)
        self._told = 0
        self._words: Words | None = None

    def begins(self, world: World) -> None:
        self._words = Words(world)
        world.listeners.append(self._heard)

    def ends(self) -> None:
        """Tell what is still held back."""
        self._chorus.flush()
        if self._told > LINES_MAX:
            more = self._told - LINES_MAX
            self._console.print(f"… and {more:,} more lines; --log prints everything", style="dim")

    def _heard(self, line: LogLine) -> None:
        if self._whole_log:
            self._console.print(Text(str(line)), soft_wrap=True)
            return
        assert self._words is not None
        event = self._words.of(line)
        if event is not None:
            self._chorus.add(event)

    def _tell(self, event: Event) -> None:
        self._told += 1
        if self._told <= LINES_MAX:
            self._console.print(told(event), soft_wrap=True)


def told(event: Event) -> Text:
    """One line; what was done to the swarm stands out from what it did."""
    style = "yellow" if event.is_fault else ""
    text = Text(f"{event.at_s:11.3f}  ", style="dim")
    text.append(f"{event.names:<{WHO_WIDTH}}  ", style=f"bold {style}".strip())
    text.append(event.what, style=style)
    return text
