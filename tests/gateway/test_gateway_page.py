"""The page at `/`: one document that loads nothing else, and what it does in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path

import aiohttp
import browser
import map_states
import pytest
from fake_node import FakeNode, Served, generated, rerouted, saying, serving, spoken, started

from swarm.gateway.page import assembled, policy

FOLDER = resources.files("swarm.gateway") / "page"
HTML, CSS, JS = ((FOLDER / name).read_text() for name in ("index.html", "page.css", "page.js"))
needs_browser = pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine")

# ---------------------------------------------------------------- the document


def test_style_and_script_stand_in_the_document_and_only_they_may_run() -> None:
    whole = assembled(HTML, CSS, JS)
    assert CSS in whole and JS in whole
    said = policy(CSS, JS)
    assert "default-src 'none'" in said and "unsafe" not in said
    assert said != policy(CSS, JS + " ")


@pytest.mark.parametrize(
    ("html", "js"), [("<style>/*css*/</style>", ""), (HTML, "'</script>'")], ids=["mark", "end"]
)
def test_a_page_that_would_break_is_refused(html: str, js: str) -> None:
    with pytest.raises(ValueError, match="no place"):
        assembled(html, CSS, js)


def test_nothing_is_loaded_from_elsewhere_and_texts_never_become_markup() -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(", HTML.replace('"data:,"', "") + CSS)
    assert "://" not in JS
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", JS)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["card", "paper"])
def test_texts_have_the_contrast_that_wcag_asks_for(theme: int, ground: str) -> None:
    block = CSS.split(":root {")[theme + 1].split("}")[0]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
    for name in ("ink", "faint", "good", "slow", "bad", "accent"):
        pair = sorted((luminance(colours[name]), luminance(colours[ground])))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.3, f"{name} on {ground}"


# ---------------------------------------------------------------- in a browser


def test_it_is_served_with_its_policy() -> None:
    async def run() -> None:
        async with (
            serving(FakeNode()) as served,
            aiohttp.ClientSession(served.url) as client,
            client.get("/") as response,
        ):
            assert response.status == 200 and response.content_type == "text/html"
            assert response.headers["Content-Security-Policy"] == policy(CSS, JS)
            assert "<title>swarm</title>" in await response.text()

    asyncio.run(run())


def browse(
    node: FakeNode, folder: Path, visit: Callable[[Served, browser.Page], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with serving(node) as served, browser.browsing(folder) as page:
            await page.look(1280, 900)
            await page.open(f"{served.url}/")
            await page.until("state !== null && $('model').value")
            await visit(served, page)

    asyncio.run(run())


async def show(page: browser.Page, *events: tuple[str, map_states.Json]) -> None:
    for name, data in events:
        await page.value(f"take({json.dumps(name)}, {json.dumps(data)})")
    await page.value("draw()")


@needs_browser
def test_the_page_shows_the_map(tmp_path: Path) -> None:
    async def visit(served: Served, page: browser.Page) -> None:
        assert await page.value("$('link').textContent") == "live"
        hostile = map_states.whole()
        hostile["nodes"][1]["name"] = "<img src=x onerror=alert(1)>bert"
        await show(page, ("snapshot", hostile), *map_states.loss())
        text = await page.value("document.body.innerText")
        assert "<img src=x" in text, "a name is text, whatever it looks like"
        assert "not covered: layers 48:80 missing" in text
        assert "session.hop_failed" in text
        assert await page.value("document.querySelectorAll('.hop.lost').length") == 1
        assert await page.value("document.querySelectorAll('.hole').length") == 2
        await show(page, *map_states.recovery())
        assert await page.value("document.querySelector('.hop.fresh').textContent") == "dora10:20"
        assert await page.value("document.querySelector('.before .lost') !== null")
        await page.value(f"choose('{map_states.RUNNING}')")
        text = await page.value("$('answers').innerText")
        assert "1 reroute, paused 212 ms" in text and "on the wire" in text
        for width, dark in ((390, True), (390, False), (1280, True)):
            await page.look(width, 800, dark=dark)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.value(wide) <= 0, f"it scrolls sideways at {width} columns"
        assert page.errors == []
        assert {url.removeprefix(served.url) for url in page.requested} == {"/", "/swarm/events"}

    browse(FakeNode(), tmp_path, visit)


@needs_browser
def test_the_page_chats_tells_the_route_and_stops(tmp_path: Path) -> None:
    first = rerouted(spoken("Once there was"), spoken(" a light."))
    node = FakeNode(scripts=[])

    async def visit(_: Served, page: browser.Page) -> None:
        node.scripts += [
            first,
            [started("a", "b"), *spoken("Then"), asyncio.Event(), *generated([5])],
        ]
        await page.value("$('question').value = 'Hello'; $('ask').requestSubmit()")
        await page.until("$('talk').innerText.includes('a light.') && !answering")
        text = await page.value("$('talk').innerText")
        assert "Hello" in text and "1 reroute, paused 125 ms, the same tokens" in text
        await page.value("$('question').value = 'More'; $('ask').requestSubmit()")
        await page.until("$('talk').innerText.includes('Then')")
        assert await page.value("document.activeElement.id") == "stop"
        await page.value("$('stop').click()")
        await page.until("$('talk').innerText.includes('stopped') && !$('send').hidden")
        await node.generations[1].cancelled.wait()
        assert [message["role"] for message in await page.value("talk")] == [
            "user", "assistant", "user", "assistant"
        ]  # fmt: skip

    browse(node, tmp_path, visit)


@needs_browser
def test_the_page_says_when_the_node_is_gone_and_why_a_question_failed(tmp_path: Path) -> None:
    node = FakeNode(scripts=[saying("x")])

    async def visit(served: Served, page: browser.Page) -> None:
        node.views = ()
        await page.value("$('question').value = 'Hello'; $('ask').requestSubmit()")
        await page.until("$('talk').querySelector('.fault') !== null")
        await served.gateway.stop()
        await page.until("$('link').dataset.state === 'lost'")
        assert await page.value("$('seen').textContent") != "", "the last picture stays"

    browse(node, tmp_path, visit)
