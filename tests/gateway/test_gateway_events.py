"""`/swarm/events`: the whole state first, then what changes, for readers that keep up or do not."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from fake_node import FakeNode, Served, saying, serving, snapshot
from hypothesis import given
from hypothesis import strategies as st

from swarm.config import GatewayConfig
from swarm.gateway import map_io
from swarm.gateway.changes import LISTS, apply, difference
from swarm.gateway.client_io import GatewayClient
from swarm.gateway.events_io import Reader
from swarm.gateway.view import state_json
from swarm.notes import Level, note
from swarm.terms import SessionId

Json = dict[str, Any]
SOON = GatewayConfig(event_interval_s=0.001, keepalive_s=0.01)

# ---------------------------------------------------------------- changes


def state(**lists: list[Json]) -> Json:
    return {"name": "anna", "kv_used_bytes": 1, **{name: [] for name in LISTS}, **lists}


ONE = {"id": "1", "position": 5, "phase": "running"}


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (state(), state(), None),
        (state(sessions=[ONE]), state(sessions=[dict(ONE)]), None),
        (state(), state() | {"kv_used_bytes": 2}, {"values": {"kv_used_bytes": 2}}),
        (state(), state(sessions=[ONE]), {"changed": {"sessions": [ONE]}}),
        (
            state(sessions=[ONE]),
            state(sessions=[ONE | {"position": 6}]),
            {"changed": {"sessions": [{"id": "1", "position": 6}]}},
        ),
        (state(sessions=[ONE]), state(), {"gone": {"sessions": [{"id": "1"}]}}),
        (
            state(links=[{"node": "a", "peer": "b", "rtt_ms": 1.0}]),
            state(links=[{"node": "a", "peer": "b", "rtt_ms": 2.0}]),
            {"changed": {"links": [{"node": "a", "peer": "b", "rtt_ms": 2.0}]}},
        ),
        (
            state(models=[{"id": "m", "probe_age_s": 1.0}]),
            state(models=[{"id": "m", "probe_age_s": 9.0}]),
            None,
        ),
    ],
)
def test_a_change_names_what_moved_and_nothing_else(old: Json, new: Json, change: Json) -> None:
    assert difference(old, new) == change


entries = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("abcd"), "position": st.integers(0, 3)}),
    max_size=4,
    unique_by=lambda entry: entry["id"],
)


def by_id(entry: Json) -> str:
    return str(entry["id"])


@given(entries, entries, st.integers(0, 2))
def test_a_reader_that_applies_changes_sees_the_state(
    old: list[Json], new: list[Json], used: int
) -> None:
    before, after = state(sessions=old), state(nodes=new, sessions=new) | {"kv_used_bytes": used}
    kept = copy.deepcopy(before)
    change = difference(before, after)
    seen = before if change is None else apply(before, change)
    for name in LISTS:
        assert sorted(seen[name], key=by_id) == sorted(after[name], key=by_id)
    assert seen["kv_used_bytes"] == used
    assert before == kept, "a state is never changed in place"
    if change is not None:
        assert apply(seen, change) == seen, "a change that comes twice does no harm"


def test_the_real_state_has_all_lists() -> None:
    whole = state_json(snapshot((), SessionId("0" * 16)))
    assert difference(whole, whole) is None
    assert difference(dict.fromkeys(LISTS, []), whole) is not None


# ---------------------------------------------------------------- one reader


def test_a_reader_that_lags_loses_what_waits_and_knows_how_much() -> None:
    reader = Reader(10)
    for event in (b"12345", b"12345"):
        reader.push(event)
    assert (reader.lost, reader.take()) == (0, b"1234512345")
    for event in (b"12345", b"12345", b"1", b"2"):
        reader.push(event)
    assert (reader.lost, reader.take()) == (4, b"")


# ---------------------------------------------------------------- over HTTP


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Json]]:
    name = ""
    async for line in response.content:
        if line.startswith(b"event: "):
            name = line.removeprefix(b"event: ").decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line.removeprefix(b"data: "))


def talk(
    node: FakeNode,
    conversation: Callable[[Served, aiohttp.ClientSession], Awaitable[None]],
    config: GatewayConfig = SOON,
) -> None:
    async def run() -> None:
        async with serving(node, config) as served, aiohttp.ClientSession(served.url) as client:
            async with asyncio.timeout(60):
                await conversation(served, client)

    asyncio.run(run())


def test_the_state_comes_first_then_notes_and_changes() -> None:
    node = FakeNode(scripts=[saying("hello"), saying("hello")])

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        async with client.get("/swarm/events") as response:
            assert response.content_type == "text/event-stream"
            stream = events(response)
            name, seen = await anext(stream)
            assert (name, seen["name"]) == ("snapshot", "anna")
            assert [session["id"] for session in seen["sessions"]] == ["0" * 16]
            node.notes.put_nowait(note("peer.noise", Level.DEBUG))
            node.notes.put_nowait(note("peer.dead", peer="b"))
            name, told = await anext(stream)
            assert (name, told["event"], told["peer"]) == ("note", "peer.dead", "b")
            assert told["at"] == 1_700_000_000.0
            body = {"model": "tiny", "prompt": "x", "max_tokens": 5}
            for _ in range(2):
                await (await client.post("/v1/completions", json=body)).read()
            name, change = await anext(stream)
            assert name == "change"
            seen = apply(seen, change)
            assert [session["id"] for session in seen["sessions"]] == [f"{1:016x}"]

    talk(node, conversation)


def test_a_reader_that_lags_is_given_the_state_anew() -> None:
    node = FakeNode()

    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        async with client.get("/swarm/events") as response:
            stream = events(response)
            assert (await anext(stream))[0] == "snapshot"
            node.notes.put_nowait(note("peer.dead", peer="b"))
            name, told = await anext(stream)
            assert (name, told["events"] >= 1) == ("lost", True)
            name, seen = await anext(stream)
            assert (name, seen["name"]) == ("snapshot", "anna")

    talk(node, conversation, GatewayConfig(event_backlog_bytes_max=1))


def test_readers_are_bounded_and_the_next_one_may_come_when_one_has_gone() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        async with client.get("/swarm/events") as first:
            assert (await anext(events(first)))[0] == "snapshot"
            async with client.get("/swarm/events") as second:
                assert second.status == 429
        while True:
            async with client.get("/swarm/events") as third:
                if third.status == 200:
                    assert (await anext(events(third)))[0] == "snapshot"
                    return

    talk(FakeNode(), conversation, GatewayConfig(event_streams_max=1))


def test_a_quiet_stream_is_kept_alive() -> None:
    async def conversation(_: Served, client: aiohttp.ClientSession) -> None:
        async with client.get("/swarm/events") as response:
            async for line in response.content:
                if line.startswith(b": "):
                    return

    talk(FakeNode(), conversation)


def test_a_failure_inside_ends_the_streams_and_is_told() -> None:
    class Broken(FakeNode):
        async def subscribe(self, limit: int) -> Any:
            raise RuntimeError("no notes")
            yield

    async def conversation(served: Served, client: aiohttp.ClientSession) -> None:
        async with client.get("/swarm/events") as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert [entry.event for entry in served.notes] == ["gateway.bug"]

    talk(Broken(), conversation)


# ---------------------------------------------------------------- who follows them


def test_a_map_follows_a_gateway_through_its_end_and_its_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(map_io, "RETRY_S", 0.0)
    said: asyncio.Queue[str] = asyncio.Queue()
    taken: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
    urls = ["http://127.0.0.1:9"]

    def take(name: str, data: Json) -> None:
        taken.put_nowait((name, data))

    async def say_until(wanted: str) -> None:
        while wanted not in await said.get():
            pass

    async def run() -> None:
        follower = map_io.Follower(lambda: GatewayClient(urls[-1]), take, said.put_nowait)
        task = asyncio.create_task(follower.run())
        await say_until("no answer from 127.0.0.1:9: ")
        for _ in range(2):
            node = FakeNode()
            async with serving(node, SOON) as served:
                urls.append(served.url)
                await say_until("live")
                assert (await taken.get())[0] == "snapshot"
                node.notes.put_nowait(note("peer.dead", peer="b"))
                assert (await taken.get())[1]["event"] == "peer.dead"
            await say_until("trying again")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 60))
