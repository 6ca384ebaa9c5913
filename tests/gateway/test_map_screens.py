"""`swarm map` at three sizes, as text beside what it was when somebody looked at it.

After a change that is meant: `REFRESH_CAPTURES=1 pytest tests/gateway/test_map_screens.py`, and
look at the difference that git shows.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import map_states
import pytest
from rich.console import Console
from textual.pilot import Pilot

from swarm.gateway.map_look import PLAIN, PRETTY, Glyphs
from swarm.gateway.map_scene import Choices
from swarm.gateway.map_tui import MapApp, Say, Take

CAPTURES = Path(__file__).parent / "map_captures"
SIZES = [(80, 24), (120, 40), (200, 60)]
Play = Callable[["Screen"], Awaitable[None]]


class Screen:
    """A map without a gateway: what the test says is what comes; time moves when it says so."""

    def __init__(self, glyphs: Glyphs = PRETTY) -> None:
        self.now = 0.0
        self.app = MapApp(self._feed, Choices(glyphs=glyphs), lambda: self.now)
        self._listening = asyncio.Event()
        self.pilot: Pilot[None] | None = None

    async def _feed(self, take: Take, say: Say) -> None:
        self.take, self.say = take, say
        self._listening.set()

    async def begin(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        await self._listening.wait()

    async def play(self, *events: tuple[str, map_states.Json]) -> None:
        for name, data in events:
            self.take(name, data)
        await self.drawn()

    async def drawn(self) -> None:
        assert self.pilot is not None
        self.app._tick()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        assert self.pilot is not None
        await self.pilot.press(*keys)
        await self.drawn()

    def text(self) -> str:
        """What is on the screen, without blanks at the ends of lines."""
        size = self.app.size
        console = Console(
            width=size.width, height=size.height, file=io.StringIO(), record=True,
            force_terminal=True, legacy_windows=False,
        )  # fmt: skip
        console.print(self.app.screen._compositor.render_update(full=True))
        lines = console.export_text().splitlines()
        return "\n".join(line.rstrip() for line in lines[: size.height]) + "\n"


def show(size: tuple[int, int], play: Play, glyphs: Glyphs = PRETTY) -> str:
    async def run() -> str:
        screen = Screen(glyphs)
        async with screen.app.run_test(size=size) as pilot:
            await screen.begin(pilot)
            await play(screen)
            return screen.text()

    return asyncio.run(run())


async def quiet(screen: Screen) -> None:
    screen.say("live")
    await screen.play(("snapshot", map_states.whole()))


async def loss(screen: Screen) -> None:
    screen.now = 1.0
    await screen.play(*map_states.loss())


async def recovery(screen: Screen) -> None:
    screen.now = 2.0
    await screen.play(*map_states.recovery())


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_map_looks_as_when_somebody_looked_at_it(size: tuple[int, int]) -> None:
    async def story(screen: Screen) -> None:
        for part in (quiet, loss, recovery):
            await part(screen)
            seen[part.__name__] = screen.text()

    seen: dict[str, str] = {}
    show(size, story)
    for name, text in seen.items():
        same_as(f"{name}-{size[0]}x{size[1]}", text)


def test_plain_letters_are_enough() -> None:
    async def story(screen: Screen) -> None:
        for part in (quiet, loss, recovery):
            await part(screen)

    text = show((80, 24), story, PLAIN)
    same_as("plain-80x24", text)
    assert text.isascii()


def test_keys_change_what_is_shown() -> None:
    async def story(screen: Screen) -> None:
        for part in (quiet, loss, recovery):
            await part(screen)
        await screen.press("down")
        for name, key in (("trace", "t"), ("links", "l"), ("help", "question_mark")):
            await screen.press(key)
            same_as(f"{name}-80x24", screen.text())
        await screen.press("escape", "s", "s")
        text = screen.text()
        assert "by speed" in text and text.index(" dora ") > text.index(" bert ")
        await screen.press("S")
        text = screen.text()
        assert text.index(" dora ") < text.index(" bert ")
        await screen.press("slash", *"bert", "enter", "e")
        text = screen.text()
        assert "1 of 4" in text and "filter:bert" in text
        assert "hop_failed" in text and "recovered" not in text
        await screen.press("escape", "t")
        assert f"{map_states.RUNNING[:8]} smollm2" in screen.text().split("trace")[1]

    show((80, 24), story)


def test_a_paused_map_stands_still_and_then_catches_up() -> None:
    async def story(screen: Screen) -> None:
        await quiet(screen)
        await screen.press("p")
        before = screen.text()
        await screen.play(*map_states.loss())
        assert "PAUSED" in before and screen.text() == before
        await screen.press("p")
        after = screen.text()
        assert "opening" in after and "PAUSED" not in after

    show((80, 24), story)


def test_a_lost_gateway_is_told_and_the_last_picture_stays() -> None:
    async def lost(screen: Screen) -> None:
        await quiet(screen)
        screen.say("no answer from 127.0.0.1:8000: refused, trying again")
        await screen.drawn()

    text = show((80, 24), lost)
    assert "no answer from 127.0.0.1:8000" in text.splitlines()[0]
    assert "bert" in text


def test_names_of_others_cannot_steer_the_terminal() -> None:
    async def hostile(screen: Screen) -> None:
        state = map_states.whole()
        state["nodes"][1]["name"] = "[red]\x1b[2J\nbert[/]"
        state["models"][1]["name"] = "\x1b]0;x\x07smol"
        entry = {"at": 0, "event": "peer.\x1b[31m", "level": "INFO", "detail": "\x1b[0m\u202e"}
        await screen.play(("snapshot", state), ("note", entry))

    for size in SIZES:
        text = show(size, hostile)
        assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
        assert "[red]" in text, "markup is shown as what it is"


def same_as(name: str, text: str) -> None:
    file = CAPTURES / f"{name}.txt"
    if os.environ.get("REFRESH_CAPTURES"):
        CAPTURES.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"{file} shows something else; see the head of this file"
