"""Waiting for one of several things, and for the end of a task. No task is left behind."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(task: asyncio.Task[None]) -> None:
    """Cancel it and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(event.wait()) for event in events]

    def end_all(_: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()

    for task in tasks:
        task.add_done_callback(end_all)
    await asyncio.gather(*tasks, return_exceptions=True)
