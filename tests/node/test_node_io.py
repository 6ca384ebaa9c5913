"""The shell of a node: effects carried out, one timer, sessions and notes handed on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import cast

import pytest
from nacl.signing import SigningKey
from node_world import MODEL, StubWorker, WorldNode, oracle, order_of, quick_config

from swarm.asks import LoadModel
from swarm.config import MIB
from swarm.effects import Finished, Generated, Started, StartWorker, StopWorker, ToWorker
from swarm.errors import ConfigError, NoRoute
from swarm.gossip.sealing import Signer
from swarm.hosting import Budget, Hosting, Wish
from swarm.link.identity import node_id_of
from swarm.link.link_io import LinkStats, Peer
from swarm.link.traffic import TrafficCounts
from swarm.messages import End, Inspect, Message
from swarm.node import About, NodeCore
from swarm.node_io import NodeIo, NoteStream, Parts
from swarm.notes import Note, note
from swarm.snapshot import Snapshot
from swarm.terms import Address, Incarnation, LayerRange, ModelId, NodeId, SessionId

KEY = SigningKey(hashlib.sha256(b"node").digest())
ME = node_id_of(bytes(KEY.verify_key))


class NoLinks:
    """Nobody is out there."""

    def __init__(self) -> None:
        self.dialled: list[tuple[Address, ...]] = []

    async def listen(self, host: str, port: int) -> Address:
        return Address(host, port)

    def dial(self, addresses: Sequence[Address], expected: NodeId | None) -> None:
        self.dialled.append(tuple(addresses))

    def send(self, peer: NodeId, message: Message) -> bool:
        return False

    def traffic(self) -> TrafficCounts:
        return TrafficCounts()

    def data_lane_busy(self, peer: NodeId) -> bool:
        return True

    def open_bulk(self, peer: NodeId) -> None: ...

    def bulk_has_room(self, peer: NodeId) -> bool:
        return False

    def close(self, peer: NodeId, reason: str) -> None: ...

    def stats(self, peer: NodeId) -> LinkStats | None:
        return None

    def peers(self) -> tuple[Peer, ...]:
        return ()

    async def close_all(self, reason: str) -> None: ...


class LoopWorker:
    """The hashing worker of the small world, on a real event loop and without its delays."""

    def __init__(self, layers: LayerRange) -> None:
        self.starts = 0
        self.received: list[Message] = []
        self.events: NodeIo | None = None
        self._layers = layers
        self._stub = self._fresh()

    def _fresh(self) -> StubWorker:
        worker = self

        class World:
            now = 0.0

            def after(self, delay: float, act: Callable[[], None]) -> None:
                asyncio.get_running_loop().call_soon(act)

        class Node:
            world, alive = World(), True

            @property
            def worker(self) -> StubWorker:
                return worker._stub

            def put(self, act: Callable[[object, float], object]) -> None:
                act(Tap(), 0.0)

        class Tap:
            def worker_message(self, message: Message, now: float) -> None:
                assert worker.events is not None
                worker.events.worker_message(message)

        return StubWorker(cast(WorldNode, Node()), self._layers)

    async def start(self) -> None:
        self.starts += 1
        self._stub = self._fresh()

    def send(self, message: Message) -> None:
        self.received.append(message)
        self._stub.handle(message)

    async def stop(self) -> None: ...


class Memory:
    def __init__(self) -> None:
        self.peers: list[tuple[Address, ...]] = []

    def save_incarnation(self, incarnation: int) -> None: ...

    def save_peers(self, addresses: tuple[Address, ...]) -> None:
        self.peers.append(addresses)

    def save_stays(self, data: bytes) -> None: ...

    async def read(self, model_id: ModelId, name: str) -> bytes | None:
        return b"text" if name == "tokenizer.json" else None

    async def read_piece(
        self, model_id: ModelId, name: str, offset: int, count: int
    ) -> tuple[int, bytes] | None:
        return None


class Bench:
    """One node on the running loop."""

    def __init__(self) -> None:
        layers = LayerRange(0, 12)
        config = quick_config()
        self.notes: list[Note] = []
        self.links, self.worker, self.memory = NoLinks(), LoopWorker(layers), Memory()
        wishes = [Wish("stub", "stub", layers)]
        hosting = Hosting(ME, wishes, Budget(MIB, MIB), config.shard, "")
        about = About(ME, "n", "0", "tag", False, 0, ())
        signer = Signer(
            b"tag", bytes(KEY.verify_key), lambda data: KEY.sign(data).signature,
            lambda key, data, signature: True, node_id_of,
        )  # fmt: skip
        core = NodeCore(about, config, signer, Incarnation(1), hosting, Random(1))
        loop = asyncio.get_running_loop()
        parts = Parts(
            loop, loop.time, lambda count: bytes(count), self.worker, self.memory, self.memory,
            self.notes.append,
        )  # fmt: skip
        self.core, self.io = core, NodeIo(core, parts)
        self.worker.events = self.io
        self.io.attach(self.links)

    async def until(self, ready: Callable[[Snapshot], bool]) -> None:
        async with asyncio.timeout(20):
            while not ready(self.io.snapshot()):
                await asyncio.sleep(0)


def run(body: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        bench.io.start((Address("10.0.0.9", 1),), ())
        await bench.until(lambda s: bool(s.models) and s.models[0].covered)
        try:
            await body(bench)
        finally:
            await bench.io.stop()

    asyncio.run(main())


def test_an_answer_from_the_nodes_own_worker() -> None:
    async def body(bench: Bench) -> None:
        order = order_of(20, 10)
        events = [event async for event in bench.io.generate(order)]
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        tokens = [e.token.token_id for e in events if isinstance(e, Generated)]
        assert tokens == oracle(order)
        assert not bench.io.snapshot().sessions
        assert bench.io.models()[0].probe_age_s is not None
        await bench.until(lambda snapshot: bool(bench.links.dialled))
        assert bench.links.dialled == [(Address("10.0.0.9", 1),)]

    run(body)


def test_cancel_ends_the_reader_and_frees_everything() -> None:
    async def body(bench: Bench) -> None:
        generation = bench.io.generate(order_of(20, 500))
        seen = 0
        async for event in generation:
            seen += isinstance(event, Generated)
            if seen == 3:
                generation.cancel()
                generation.cancel()
        snapshot = bench.io.snapshot()
        assert not snapshot.sessions
        assert not snapshot.hops
        assert snapshot.kv_used_bytes == 0

    run(body)


def test_a_lost_worker_is_started_again_and_serves_again() -> None:
    async def body(bench: Bench) -> None:
        bench.io.worker_lost("it crashed")
        assert not bench.io.models()[0].covered
        with pytest.raises(NoRoute, match="0:12"):
            bench.io.generate(order_of(3, 3))
        await bench.until(lambda s: s.models[0].covered)
        assert bench.worker.starts == 2

    run(body)


def test_a_model_that_comes_later_does_not_start_the_worker_again() -> None:
    """The real one refuses that, and would then never be started after a loss."""

    async def body(bench: Bench) -> None:
        bench.io.asked(LoadModel("other", "other", None))
        await bench.until(lambda s: Inspect("other", "other", "") in bench.worker.received)
        assert bench.worker.starts == 1
        bench.io.worker_lost("it crashed")
        await bench.until(lambda s: s.models[0].covered)
        assert bench.worker.starts == 2

    run(body)


def test_a_worker_that_is_lost_while_it_starts_is_not_taken_for_one_that_runs() -> None:
    async def body(bench: Bench) -> None:
        start = bench.worker.start

        async def lost_at_once() -> None:
            bench.worker.start = start  # type: ignore[method-assign]
            bench.io.worker_lost("it died at its start")

        bench.worker.start = lost_at_once  # type: ignore[method-assign]
        bench.io.worker_lost("it crashed")
        await bench.until(lambda s: s.models[0].covered)
        assert bench.worker.starts == 2

    run(body)


def test_leave_waits_for_running_answers_and_then_goes() -> None:
    async def body(bench: Bench) -> None:
        generation = bench.io.generate(order_of(20, 30))
        leaving = asyncio.ensure_future(bench.io.leave(20.0))
        events = [event async for event in generation]
        assert isinstance(events[-1], Finished)
        await leaving
        assert bench.io.left.is_set()
        assert not bench.io.models()[0].covered

    run(body)


def test_text_files_come_from_the_own_checkpoint() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.io.model_file(MODEL.model_id, "tokenizer.json") == b"text"

    run(body)


def test_a_slow_reader_of_notes_loses_the_oldest() -> None:
    async def body() -> None:
        stream = NoteStream(3)
        for number in range(10):
            stream.push(note("n", number=number))
        reader = stream.read()
        assert [(await anext(reader)).get("number") for _ in range(3)] == [7, 8, 9]
        await reader.aclose()  # type: ignore[attr-defined]

    asyncio.run(body())


def test_a_late_timer_is_told_as_our_own_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    lags: list[float] = []

    async def body() -> None:
        bench = Bench()
        monkeypatch.setattr(bench.core, "loop_lag", lambda lag_s, now: lags.append(lag_s))
        bench.io.start((), ())
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.5
        while loop.time() < end:
            pass
        async with asyncio.timeout(20):
            while not lags:
                await asyncio.sleep(0)
        await bench.io.stop()

    asyncio.run(body())
    assert max(lags) > 0.5


def test_a_disk_that_is_full_is_a_note_and_not_the_end() -> None:
    async def body(bench: Bench) -> None:
        def full(*_: object) -> None:
            raise ConfigError("cannot write peers.json: no space left on device")

        bench.memory.save_peers = full  # type: ignore[method-assign]
        bench.memory.save_incarnation = full  # type: ignore[method-assign]
        peer = Peer(NodeId("p" * 32), b"", Incarnation(1), Address("10.0.0.9", 1), 1, True)
        bench.io.link_up(peer)
        assert [n.event for n in bench.notes].count("home.not_saved") == 1
        assert any(node.node == peer.node for node in bench.io.snapshot().nodes)

    run(body)


def test_bytes_that_arrive_after_our_own_stall_are_not_taken_for_a_gap() -> None:
    """The sockets speak before the overdue timer: the first input tells of the lag, once."""
    lags: list[float] = []

    async def body(bench: Bench) -> None:
        bench.core.loop_lag = lambda lag_s, now: lags.append(lag_s)  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.3
        while loop.time() < end:
            pass
        bench.io.heard(NodeId("p" * 32))
        bench.io.heard(NodeId("p" * 32))
        assert len(lags) == 1

    run(body)


def test_a_worker_that_is_given_up_has_ended_before_the_next_one_starts() -> None:
    async def body(bench: Bench) -> None:
        calls: list[str] = []
        may_end = asyncio.Event()
        start, send = bench.worker.start, bench.worker.send

        async def stop() -> None:
            calls.append("stop")
            await may_end.wait()
            calls.append("stopped")

        async def started() -> None:
            calls.append("start")
            await start()

        def sent(message: Message) -> None:
            calls.append(type(message).__name__)
            send(message)

        bench.worker.stop = stop  # type: ignore[method-assign]
        bench.worker.start = started  # type: ignore[method-assign]
        bench.worker.send = sent  # type: ignore[method-assign]
        order = Inspect("stub", "stub", "")
        for effect in (StopWorker(), ToWorker(End(SessionId("a"))), StartWorker(), ToWorker(order)):
            bench.io._do(effect)
        async with asyncio.timeout(20):
            while not calls:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert calls == ["stop"]
            may_end.set()
            while "Inspect" not in calls:
                await asyncio.sleep(0)
        assert calls[:4] == ["stop", "stopped", "start", "Inspect"]

    run(body)
