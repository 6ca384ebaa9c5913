"""Steps of a worker that fail cost that step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from swarm.messages import Message, Unload
from swarm.terms import ModelId
from swarm.worker_desk_io import WorkerDesk


class Port:
    """Its next steps end with these, the first one first; None: well."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.sent: list[Message] = []
        self.steps: list[str] = []

    async def start(self) -> None:
        self._step("start")

    async def stop(self) -> None:
        self._step("stop")

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def _step(self, what: str) -> None:
        self.steps.append(what)
        if (end := self.ends.pop(0) if self.ends else None) is not None:
            raise end


def played(port: Port, *acts: Callable[[WorkerDesk], None]) -> list[str]:
    """What was told of losses."""
    lost: list[str] = []

    async def scene() -> None:
        desk = WorkerDesk(asyncio.get_running_loop(), port, lost.append)
        for act in acts:
            act(desk)
            if desk._task is not None:
                await asyncio.wait((desk._task,))

    asyncio.run(scene())
    return lost


@pytest.mark.parametrize("end", [OSError("no processes left"), ValueError("no processes left")])
def test_a_start_that_fails_is_told_and_the_next_one_works(end: Exception) -> None:
    port = Port(end)
    lost = played(
        port,
        WorkerDesk.start,
        WorkerDesk.ended,
        WorkerDesk.start,
        lambda desk: desk.send(Unload(ModelId("m"))),
    )
    assert lost == ["it could not be started: no processes left"]
    assert port.steps == ["start", "start"] and len(port.sent) == 1


def test_an_end_that_fails_keeps_no_start_from_it() -> None:
    port = Port(None, RuntimeError())
    lost = played(port, WorkerDesk.start, WorkerDesk.stop, WorkerDesk.start)
    assert lost == ["it could not be ended: RuntimeError"]
    assert port.steps == ["start", "stop", "start"]
