"""A headless Chromium over its DevTools protocol: opens pages, looks, types, takes pictures."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

Json = dict[str, Any]
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
START_S = 60.0
WAIT_S = 60.0


def find() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `errors`: what its console complained about, refused loads among it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Json]] = {}
        self.errors: list[str] = []
        self.requested: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def send(self, method: str, **params: Any) -> Json:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(answer, WAIT_S)

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.send(f"{domain}.enable")
        await self.send("Page.navigate", url=url)

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window's size and theme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def value(self, expression: str) -> Any:
        """What an expression of the page is; a promise is awaited."""
        told = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true; looked at after every picture that the page draws."""
        look = (
            "new Promise((done) => { const look = () => { let value;"
            f" try {{ value = {expression}; }} catch (error) {{ value = null; }}"
            " value ? done(value) : setTimeout(look, 50); }; look(); })"
        )
        return await self.value(look)

    async def picture(self) -> bytes:
        told = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(told["data"])

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        async for entry in self._socket:
            message = json.loads(entry.data)
            if "id" in message:
                answer = self._answers.pop(message["id"])
                if not answer.done():
                    answer.set_result(message.get("result", {"error": message.get("error")}))
            elif message["method"] == "Log.entryAdded":
                self.errors.append(message["params"]["entry"]["text"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            elif message["method"] == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """A tab of a browser that keeps its profile in `folder`, which should be empty."""
    program = find()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program, *FLAGS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        port = await asyncio.wait_for(_port(process), START_S)
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json") as response:
                tabs = await response.json()
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with client.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                try:
                    yield page
                finally:
                    await page.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        if b"DevTools listening on" in line:
            return int(line.split(b"127.0.0.1:")[1].split(b"/")[0])
    raise AssertionError("the browser ended without a word")
