"""A gateway over a scripted node in a thread, for the blocking clients of the command line."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fake_node import TOKEN, FakeNode, Served, serving

from swarm.config import GatewayConfig


@contextmanager
def gateway(
    make: Callable[[], FakeNode], config: GatewayConfig | None = None
) -> Iterator[tuple[FakeNode, Served]]:
    """`make` builds the node on the gateway's own event loop."""
    ready: queue.Queue[tuple[FakeNode, Served, Callable[[], None]] | BaseException] = queue.Queue()

    async def main() -> None:
        node, ended = make(), asyncio.Event()
        loop = asyncio.get_running_loop()
        async with serving(node, config) as served:
            ready.put((node, served, lambda: void(loop.call_soon_threadsafe(ended.set))))
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            ready.put(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    first = ready.get()
    if isinstance(first, BaseException):
        raise first
    node, served, end = first
    try:
        yield node, served
    finally:
        end()
        thread.join()


def void(_: object) -> None:
    return None


def save_gateway(home: Path, url: str, *, pid: int | None = None, token: str = TOKEN) -> None:
    home.mkdir(parents=True, exist_ok=True)
    row = {"url": url, "pid": os.getpid() if pid is None else pid, "control_token": token}
    (home / "gateway.json").write_text(json.dumps(row))
