"""A run as a short story: the lines of its log that matter, in words."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from sims.runner import Spectator
from sims.world import LogLine, World


class Story(Spectator):
    """Prints while the run goes on. `whole_log`: every line as it was written."""

    def __init__(self, console: Console, *, whole_log: bool = False) -> None:
        self._console = console
        self._whole_log = whole_log

    def begins(self, world: World) -> None:
        world.listeners.append(self._heard)

    def _heard(self, line: LogLine) -> None:
        self._console.print(Text(str(line)))
