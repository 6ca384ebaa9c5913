"""`swarm map`: the panes of `map_scene` on a terminal, by Textual. No rules of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Input, Static

from swarm.gateway.map_layout import Bottom, Plan, plan
from swarm.gateway.map_look import title
from swarm.gateway.map_memory import MapMemory
from swarm.gateway.map_scene import (
    HELP,
    Choices,
    choose_next,
    key_line,
    scene,
    top_line,
)

Json = dict[str, Any]
Take = Callable[[str, Json], None]
Say = Callable[[str], None]
Feed = Callable[[Take, Say], Awaitable[None]]
"""Gives events to the first and the state of the connection, `live` or a reason, to the second."""

REDRAW_S = 0.1
PANES = ("nodes", "cover", "sessions", "links", "trace", "events")


class PaneView(Vertical):
    """A title and lines that scroll."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._title = Static(classes="title")
        self._body = Static(classes="body")

    def compose(self) -> ComposeResult:
        yield self._title
        with VerticalScroll():
            yield self._body

    def show(self, heading: Text, lines: list[Text]) -> None:
        self._title.update(heading)
        self._body.update(Text("\n").join(lines))


class MapApp(App[None]):
    """Draws at most every `REDRAW_S`, and only when something has changed."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #top, #keys { height: 1; }
    #panes { height: 1fr; grid-gutter: 0 1; }
    PaneView { height: 100%; }
    PaneView .title { height: 1; }
    PaneView .body { width: 100%; height: auto; }
    VerticalScroll { scrollbar-size: 0 0; background: ansi_default; }
    #help { display: none; height: 1fr; padding: 1 0; }
    Input { display: none; height: 1; border: none; background: ansi_default; padding: 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "help", "Help"),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
        Binding("S", "backwards", "Turn round"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "all", "Show all"),
        Binding("t", "bottom('trace')", "Trace"),
        Binding("l", "bottom('links')", "Links"),
        Binding("e", "bottom('events')", "Events"),
        Binding("up", "choose(-1)", "Choose", priority=True),
        Binding("down", "choose(1)", "Choose", priority=True),
    ]

    def __init__(self, feed: Feed, choices: Choices, clock: Callable[[], float]) -> None:
        super().__init__(ansi_color=True)
        self._feed = feed
        self._choices = choices
        self._clock = clock
        self._memory = MapMemory()
        self._link = "connecting"
        self._is_stale = True
        self._views = {name: PaneView(name) for name in PANES}

    def compose(self) -> ComposeResult:
        yield Static(id="top")
        with Grid(id="panes"):
            yield from self._views.values()
        yield Static(HELP, id="help", markup=False)
        yield Input(id="filter", placeholder="words to look for", select_on_focus=False)
        yield Static(id="keys")

    def on_mount(self) -> None:
        self.screen.set_focus(None)
        self.set_interval(REDRAW_S, self._tick)
        self.run_worker(self._feed(self._take, self._say), exit_on_error=True)

    def on_resize(self, _: Resize) -> None:
        self._draw()

    # ------------------------------------------------------------ what comes

    def _take(self, name: str, data: Json) -> None:
        self._memory.take(name, data, self._clock())
        self._is_stale = True

    def _say(self, link: str) -> None:
        self._is_stale = self._is_stale or link != self._link
        self._link = link

    def _tick(self) -> None:
        if self._memory.forget_past(self._clock()):
            self._is_stale = True
        if self._is_stale and not self._choices.paused:
            self._draw()

    # ------------------------------------------------------------ what is drawn

    def _draw(self) -> None:
        self._is_stale = False
        size = self.size
        self.query_one("#top", Static).update(
            top_line(self._memory, self._choices, self._link, size.width)
        )
        self.query_one("#keys", Static).update(key_line(self._choices, size.width))
        self._draw_panes(size.width, self.query_one("#panes").size.height or size.height - 2)

    def _draw_panes(self, width: int, height: int) -> None:
        panes = scene(self._memory, self._choices, width)
        wants = {name: len(pane.lines) for name, pane in panes.items()}
        laid = plan(width, height, wants, self._choices.bottom)
        self._arrange(laid)
        for name, place in laid.places.items():
            pane = panes[name]
            heading = title(pane.name, pane.said, place.width, self._choices.glyphs)
            self._views[name].show(heading, pane.lines)

    def _arrange(self, laid: Plan) -> None:
        grid = self.query_one("#panes", Grid)
        grid.styles.grid_size_columns = laid.columns
        sizes = [(place.width, place.height) for place in laid.places.values()]
        if laid.columns == 1:
            grid.styles.grid_columns = "1fr"
            heights = [height for _, height in sizes]
        else:
            grid.styles.grid_columns = f"{sizes[2][0]} {sizes[3][0]}"
            heights = [height for _, height in (sizes[0], sizes[1], sizes[2], sizes[4])]
        grid.styles.grid_rows = " ".join(map(str, heights))
        for name, view in self._views.items():
            place = laid.places.get(name)
            view.display = place is not None
            if place is not None:
                view.styles.column_span = laid.columns if place.is_whole else 1

    def _choose(self, choices: Choices) -> None:
        self._choices = choices
        self._draw()

    # ------------------------------------------------------------ keys

    def action_help(self) -> None:
        is_shown = not self.query_one("#help").display
        self.query_one("#help").display = is_shown
        self.query_one("#panes").display = not is_shown
        self._draw()

    def action_pause(self) -> None:
        self._choose(replace(self._choices, paused=not self._choices.paused))

    def action_sort(self) -> None:
        self._choose(replace(self._choices, sort=self._choices.sort.next))

    def action_backwards(self) -> None:
        self._choose(replace(self._choices, backwards=not self._choices.backwards))

    def action_bottom(self, name: str) -> None:
        self._choose(replace(self._choices, bottom=Bottom(name)))

    def action_choose(self, step: int) -> None:
        self._choose(choose_next(self._memory, self._choices, step))

    def action_filter(self) -> None:
        line = self.query_one(Input)
        line.display = True
        line.value = self._choices.wanted
        line.focus()

    def action_all(self) -> None:
        self._end_filter("")
        if self.query_one("#help").display:
            self.action_help()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._choose(replace(self._choices, wanted=event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._end_filter(event.value)

    def _end_filter(self, wanted: str) -> None:
        line = self.query_one(Input)
        line.display = False
        self.screen.set_focus(None)
        self._choose(replace(self._choices, wanted=wanted))
