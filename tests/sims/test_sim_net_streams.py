"""Simulated TCP streams: order, closing, flow control, bandwidth."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from sim_streams import Buffered, Pair

from sims.pipe import OUTSTANDING_BYTES_MAX
from sims.wire import FAST_ETHERNET, WAN, WIFI, WIRED, Profile

PROFILES = [WIRED, WIFI, WAN, WIRED.lossy(0.2), FAST_ETHERNET]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_and_in_order(profile: Profile, is_buffered: bool, seed: int) -> None:
    pair = Pair(seed)
    pair.net.profile = profile
    client, served = pair.connect(Buffered() if is_buffered else None)
    rng = Random(seed)
    sent = b""
    for _ in range(60):
        piece = rng.randbytes(rng.choice([1, 20, 500, 3000, 70_000]))
        sent += piece
        data = rng.choice([bytes, bytearray, memoryview])(piece)
        pair.do(pair.processes[1], partial(served.transport.write, data))
        pair.rest(rng.choice([0.0, 0.0001, 0.01]))
    pair.wait(lambda: len(client.data) >= len(sent), 1000.0)
    assert client.data == sent
    pair.check()


def test_delivery_times_rise_strictly() -> None:
    pair = Pair()
    pair.net.profile = WIFI
    client, served = pair.connect()
    for _ in range(300):
        pair.do(pair.processes[0], lambda: client.transport.write(b"x"))
        pair.rest(0.0005)
    pair.wait(lambda: len(served.data) == 300)
    times = served.times("data")
    assert all(before < after for before, after in pairwise(times))


def test_what_is_written_at_one_instant_arrives_together() -> None:
    pair = Pair()
    client, served = pair.connect()
    pair.do(pair.processes[0], lambda: client.transport.writelines([b"head", b"", b"body"]))
    pair.wait(lambda: served.has("data"))
    assert served.data == b"headbody"
    assert len(served.times("data")) == 1
    assert pair.net.counters(pair.a).segments_sent == 1
    assert pair.net.counters(pair.a).bytes_sent == 8


def test_a_buffer_changed_after_write_does_not_change_what_was_written() -> None:
    pair = Pair()
    client, served = pair.connect()
    buffer = bytearray(b"before")
    pair.do(pair.processes[0], lambda: client.transport.write(buffer))
    buffer[:] = b"after!"
    pair.wait(lambda: served.data == b"before")


def test_close_flushes_and_both_sides_end_orderly() -> None:
    pair = Pair()
    client, served = pair.connect()
    data = bytes(3_000_000)

    def write_and_close() -> None:
        client.transport.write(data)
        client.transport.close()
        client.transport.write(b"too late")

    pair.do(pair.processes[0], write_and_close)
    assert client.transport.is_closing()
    pair.wait(lambda: client.has("lost") and served.has("lost"))
    assert len(served.data) == len(data)
    assert served.has("eof")
    assert not client.has("eof")
    assert client.error is None
    assert served.error is None
    assert served.times("eof") == [served.times("lost")[0]]
    pair.check()


def test_abort_drops_what_the_transport_holds_and_delivers_what_the_kernel_took() -> None:
    pair = Pair()
    client, served = pair.connect()

    def write_and_abort() -> None:
        client.transport.write(bytes(3_000_000))
        client.transport.abort()

    pair.do(pair.processes[0], write_and_abort)
    pair.wait(lambda: served.has("lost"))
    assert len(served.data) == OUTSTANDING_BYTES_MAX
    assert served.has("eof")
    assert client.error is None


def test_a_socket_closed_over_unread_bytes_resets() -> None:
    pair = Pair()
    client, served = pair.connect()
    served.transport.pause_reading()
    pair.do(pair.processes[0], lambda: client.transport.write(b"unread"))
    pair.rest(0.01)
    pair.do(pair.processes[1], served.transport.abort)
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, ConnectionResetError)


def test_bytes_for_a_closed_socket_bring_a_reset_a_round_trip_later() -> None:
    pair = Pair()
    client, served = pair.connect()
    client.keeps_open = True
    pair.do(pair.processes[1], served.transport.close)
    pair.wait(lambda: client.has("eof"))
    assert not client.has("lost")
    start_s = pair.now_s
    pair.do(pair.processes[0], lambda: client.transport.write(b"for nobody"))
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, ConnectionResetError)
    assert 0.00018 <= pair.now_s - start_s <= 0.0012


def test_half_closed_streams_still_carry_the_other_way() -> None:
    pair = Pair()
    client, served = pair.connect()
    served.keeps_open = True
    assert client.transport.can_write_eof()

    def ask() -> None:
        client.transport.write(b"question")
        client.transport.write_eof()

    pair.do(pair.processes[0], ask)
    pair.wait(lambda: served.has("eof"))
    assert served.data == b"question"
    with pytest.raises(RuntimeError):
        client.transport.write(b"more")
    pair.do(pair.processes[1], lambda: served.transport.write(b"answer"))
    pair.wait(lambda: client.data == b"answer")
    pair.do(pair.processes[1], served.transport.close)
    pair.wait(lambda: client.has("lost") and served.has("lost"))
    assert client.error is None
    assert served.error is None


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    pair = Pair()
    client, served = pair.connect()
    served.transport.pause_reading()
    sent = 0

    def write() -> None:
        nonlocal sent
        while not client.has("pause"):
            client.transport.write(bytes(10_000))
            sent += 10_000

    pair.do(pair.processes[0], write)
    pair.rest(10.0)
    assert served.data == b""
    assert OUTSTANDING_BYTES_MAX <= sent <= OUTSTANDING_BYTES_MAX + 80_000
    assert client.transport.get_write_buffer_size() == sent - OUTSTANDING_BYTES_MAX
    assert not client.has("resume")
    pair.do(pair.processes[1], served.transport.resume_reading)
    pair.wait(lambda: len(served.data) == sent and client.has("resume"))
    assert client.transport.get_write_buffer_size() == 0


def test_write_buffer_limits() -> None:
    pair = Pair()
    client, _ = pair.connect()
    assert client.transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
    client.transport.set_write_buffer_limits(high=1_000_000)
    assert client.transport.get_write_buffer_limits() == (250_000, 1_000_000)
    client.transport.set_write_buffer_limits(low=10)
    assert client.transport.get_write_buffer_limits() == (10, 40)
    with pytest.raises(ValueError, match="must be >="):
        client.transport.set_write_buffer_limits(high=1, low=2)


def test_pausing_in_the_middle_of_a_delivery_keeps_the_rest() -> None:
    pair = Pair()

    class OneAtATime(Buffered):
        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            self.transport.pause_reading()

    client, served = pair.connect(OneAtATime(1000))
    pair.do(pair.processes[1], lambda: served.transport.write(bytes(range(250)) * 10))
    pair.rest(0.1)
    assert len(client.data) == 1000
    pair.do(pair.processes[0], client.transport.resume_reading)
    assert len(client.data) == 2000
    pair.do(pair.processes[0], client.transport.resume_reading)
    assert client.data == bytes(range(250)) * 10


def test_eof_waits_for_a_paused_reader() -> None:
    pair = Pair()
    client, served = pair.connect()
    client.transport.pause_reading()

    def say_all() -> None:
        served.transport.write(b"last words")
        served.transport.close()

    pair.do(pair.processes[1], say_all)
    pair.rest(1.0)
    assert not client.has("eof")
    pair.do(pair.processes[0], client.transport.resume_reading)
    pair.wait(lambda: client.has("lost"))
    assert client.data == b"last words"
    assert client.error is None


def test_a_faulty_protocol_costs_its_connection() -> None:
    pair = Pair()
    client, served = pair.connect()

    def fail(recorder: object, data: bytes) -> None:
        raise ValueError("a bug")

    served.on_data = fail
    pair.do(pair.processes[0], lambda: client.transport.write(b"x"))
    pair.wait(lambda: client.has("lost") and served.has("lost"))
    assert isinstance(served.error, ValueError)
    assert len(pair.loop.faults) == 1


def test_bandwidth() -> None:
    pair = Pair()
    pair.net.profile = FAST_ETHERNET
    client, served = pair.connect()
    start_s = pair.now_s
    pair.do(pair.processes[0], lambda: client.transport.write(bytes(12_500_000)))
    pair.wait(lambda: len(served.data) == 12_500_000)
    assert 1.0 <= pair.now_s - start_s <= 1.02


def test_bulk_shares_a_line_fairly() -> None:
    pair = Pair()
    pair.net.profile = FAST_ETHERNET
    first, first_served = pair.connect()
    second, second_served = pair.connect()
    start_s = pair.now_s

    def write() -> None:
        first.transport.write(bytes(5_000_000))
        second.transport.write(bytes(2_500_000))

    pair.do(pair.processes[0], write)
    pair.wait(lambda: len(second_served.data) == 2_500_000)
    assert 0.38 <= pair.now_s - start_s <= 0.44
    pair.wait(lambda: len(first_served.data) == 5_000_000)
    assert 0.6 <= pair.now_s - start_s <= 0.62


@pytest.mark.parametrize("profile", [FAST_ETHERNET, WAN], ids=lambda p: p.name)
def test_a_small_message_does_not_wait_behind_bulk(profile: Profile) -> None:
    pair = Pair()
    pair.net.profile = profile.lossy(0.0)
    bulk, _ = pair.connect()
    small, small_served = pair.connect()
    pair.do(pair.processes[0], lambda: bulk.transport.write(bytes(5_000_000)))
    pair.rest(0.3)
    start_s = pair.now_s
    pair.do(pair.processes[0], lambda: small.transport.write(b"heartbeat"))
    pair.wait(lambda: small_served.has("data"))
    assert pair.now_s - start_s <= profile.latency[-1][1] + 0.006


def test_machines_behind_one_access_link_share_it() -> None:
    pair = Pair()
    pair.net.set_access(pair.b, FAST_ETHERNET)
    pair.serve()
    tasks = [pair.dial(pair.processes[n]) for n in (0, 2)]
    pair.wait(lambda: all(task.done() for task in tasks) and len(pair.accepted) == 2)
    start_s = pair.now_s
    for number, task in zip((0, 2), tasks, strict=True):
        write = task.result().transport.write
        pair.do(pair.processes[number], lambda w=write: w(bytes(2_500_000)))
    pair.wait(lambda: all(len(served.data) == 2_500_000 for served in pair.accepted))
    assert 0.4 <= pair.now_s - start_s <= 0.42


def test_asyncio_streams_work() -> None:
    pair = Pair()

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in reader:
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def serve() -> None:
        await asyncio.start_server(shout, "0.0.0.0", 9000)

    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection("10.0.0.2", 9000)
        writer.write(b"one\ntwo\n")
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    pair.run(pair.processes[1], serve())
    assert pair.run(pair.processes[0], talk()) == b"ONE\nTWO\n"
    pair.rest(1.0)
    pair.check()


def _trace(seed: int) -> str:
    pair = Pair(seed)
    pair.net.profile = WIFI.lossy(0.05)
    client, served = pair.connect()
    served.on_data = lambda recorder, data: recorder.transport.write(data)
    for _ in range(100):
        pair.do(pair.processes[0], lambda: client.transport.write(b"x" * 100))
        pair.rest(0.01)
    pair.wait(lambda: len(client.data) == 10_000)
    return pair.loop.trace_hash


def test_one_seed_one_run() -> None:
    assert _trace(1) == _trace(1)
    assert _trace(1) != _trace(2)
