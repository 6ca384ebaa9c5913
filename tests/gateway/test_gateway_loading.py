"""Models that a running node is given and loses: the endpoints, and the commands over them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_node import TOKEN, FakeNode, Served, serving

from swarm.cli import main

CONTROL = {"X-Swarm-Control": TOKEN}
Talk = Callable[[Served, aiohttp.ClientSession], Awaitable[None]]


def talk(conversation: Talk) -> None:
    async def run() -> None:
        async with serving(FakeNode()) as served, aiohttp.ClientSession(served.url) as client:
            await conversation(served, client)

    asyncio.run(run())


async def ask(
    client: aiohttp.ClientSession, what: str, headers: dict[str, str], **body: Any
) -> tuple[int, list[Any]]:
    async with client.post(f"/swarm/{what}", json=body, headers=headers) as response:
        lines = (await response.text()).splitlines()
        return response.status, [json.loads(line) for line in lines if line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    return tmp_path / "other"


def test_what_comes_of_a_model_is_told_to_the_end(folder: Path) -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        order = {"path": str(folder), "name": "other", "layers": "0:2"}
        status, told = await ask(client, "load", CONTROL, **order)
        assert status == 200
        assert [(line["event"], line["model"]) for line in told] == [
            ("shard.load", "other"), ("shard.serving", "other"),
        ]  # fmt: skip
        assert told[0]["layers"] == "0:2"
        status, told = await ask(client, "load", CONTROL, path=str(folder), name="bad")
        assert status == 200 and told[-1]["event"] == "shard.failed"
        status, told = await ask(client, "load", CONTROL, path=str(folder), name="gone")
        assert status == 200 and told[-1]["event"] == "shard.unloaded", "before it was served"
        status, told = await ask(client, "unload", CONTROL, model="tiny")
        assert status == 200 and [line["event"] for line in told] == ["shard.unloaded"]

    talk(conversation)


@pytest.mark.parametrize("headers", [{}, {"X-Swarm-Control": "wrong"}])
@pytest.mark.parametrize("what", ["load", "unload"])
def test_models_change_for_the_owner_alone(what: str, headers: dict[str, str]) -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        status, (told,) = await ask(client, what, headers, model="tiny")
        assert status == 403 and "control token" in told["error"]["message"]

    talk(conversation)


@pytest.mark.parametrize(
    ("what", "body", "status", "said"),
    [
        ("load", {}, 400, "path is missing"),
        ("load", {"path": 3, "name": "x"}, 400, "path is missing"),
        ("load", {"path": "FOLDER"}, 400, "name is missing"),
        ("load", {"path": "/nowhere", "name": "x"}, 400, "there is no model at /nowhere"),
        ("load", {"path": "FOLDER", "name": "x", "layers": "2:1"}, 400, "layers are given as A:B"),
        ("load", {"path": "FOLDER", "name": "tiny"}, 409, "tiny is served already"),
        ("unload", {}, 400, "model is missing"),
        ("unload", {"model": "x"}, 404, "x is not served here"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    folder: Path, what: str, body: dict[str, Any], status: int, said: str
) -> None:
    body = {key: str(folder) if value == "FOLDER" else value for key, value in body.items()}

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        answered, (told,) = await ask(client, what, CONTROL, **body)
        assert answered == status and said in told["error"]["message"]

    talk(conversation)


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(tmp_path)]

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, *home])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    async def conversation(served: Served, _: aiohttp.ClientSession) -> None:
        known = {"url": served.url, "pid": os.getpid(), "control_token": TOKEN}
        (tmp_path / "gateway.json").write_text(json.dumps(known))
        code, out, _err = await asyncio.to_thread(run, "load", str(folder), "--layers", "0:2")
        assert (code, out) == (
            0, "other: layers 0:2 are being loaded\nother: layers 0:2 are served\n",
        )  # fmt: skip
        code, out, err = await asyncio.to_thread(
            run, "load", str(folder), "--served-model-name", "bad"
        )
        assert code == 1 and "bad cannot be served: no room" in err
        code, out, _err = await asyncio.to_thread(run, "unload", "tiny")
        assert (code, out) == (0, "tiny is served here no more\n")
        code, _out, err = await asyncio.to_thread(run, "unload", "other")
        assert code == 1 and "other is not served here" in err

    talk(conversation)
