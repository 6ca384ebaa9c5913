"""The pictures in docs/images: four nodes on this machine hold SmolLM2 in parts, one is asked on
its web page, the node in the middle of the route is killed, and the answer goes on. The page in
both themes and the terminal map are caught while the change of route is in sight.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
from datetime import UTC
from pathlib import Path

from rig import ROOT, console, end_orderly
import browser
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

from swarm.gateway.client_io import GatewayClient
from swarm.gateway.map_io import Follower
from swarm.gateway.map_scene import Choices
from swarm.gateway.map_tui import MapApp

HOLDERS = {"anna": "0:10", "bert": "10:20", "cleo": "20:30", "dora": "10:20"}
QUESTION = "Tell me a short story about a lighthouse keeper and a storm."
BYTES_MAX = 300_000
PAGE = (1280, 1000)
PHONE = (390, 900)
TERMINAL = (120, 34)


def main() -> int:
    end_orderly()
    options = _options()
    if browser.find() is None:
        console.print("[bold red]there is no Chromium here, and the page needs one[/]")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swarm-shots-") as folder, Swarm(Path(folder)) as swarm:
        with console.status("starting four nodes"):
            for name, cut in HOLDERS.items():
                swarm.start(NodePlan(name, SMOLLM2, cut, extra=("--quantization", "int8")))
            swarm.await_ready(options.patience)
        asyncio.run(_pictures(swarm, swarm.nodes["anna"], options))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/shots", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder")
    parser.add_argument("--kill-at", type=int, default=40, help="kill when this many tokens came")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for the start")
    return parser.parse_args()


async def _pictures(swarm: Swarm, origin: Node, options: argparse.Namespace) -> None:
    client = GatewayClient(origin.gateway.url)
    app = MapApp(
        lambda take, say: Follower(lambda: client, take, say).run(),
        Choices(zone=UTC),
        time.monotonic,
    )
    with tempfile.TemporaryDirectory(prefix="swarm-browser-") as profile:
        async with browser.browsing(Path(profile)) as page, app.run_test(size=TERMINAL) as pilot:
            await page.look(*PAGE)
            await page.open(f"{origin.gateway.url}/")
            await page.until("state !== null && $('model').value")
            await page.value(f"$('question').value = {QUESTION!r}; $('ask').requestSubmit()")
            await page.until(f"state.sessions.some((s) => generated(s) >= {options.kill_at})")
            victim = (await asyncio.to_thread(swarm.hops, origin, ""))[1]
            console.print(f"kill -9 {victim.name}")
            victim.kill()
            await page.until("document.querySelector('.before .lost') && !answering?.stalled")
            _keep(options.out / "web-light.png", await page.picture())
            await page.look(*PAGE, dark=True)
            _keep(options.out / "web-dark.png", await page.picture())
            await pilot.pause()
            _keep(options.out / "map.svg", _svg(app))
            await page.look(*PHONE)
            _keep(options.out / "web-phone.png", await page.picture())
            await page.value("$('stop').click()")
            await page.until("!answering")
            console.print(await page.value("$('talk').innerText"))


def _svg(app: MapApp) -> bytes:
    """The terminal, without the fonts that the picture would load from elsewhere."""
    text = app.export_screenshot(title="swarm map")
    text = re.sub(r"@font-face\s*{[^}]*}", "", text)
    return text.replace("Fira Code", "ui-monospace, Menlo, DejaVu Sans Mono").encode()


def _keep(file: Path, data: bytes) -> None:
    if len(data) > BYTES_MAX:
        raise SystemExit(f"{file.name} has {len(data)} bytes, more than {BYTES_MAX}")
    file.write_bytes(data)
    console.print(f"{file} {len(data) / 1000:.0f} kB")


if __name__ == "__main__":
    raise SystemExit(main())
