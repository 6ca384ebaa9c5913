"""What befalls simulated connections: kills, power cuts, cuts, clogs, sleep, moves."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from sim_streams import PORT, Pair, Recorder

from sims.wire import WAN


def _user_timeout(pair: Pair, protocol: Recorder, timeout_ms: int) -> None:
    pair.option(protocol, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def _write(pair: Pair, number: int, protocol: Any, data: bytes) -> None:
    pair.do(pair.processes[number], lambda: protocol.transport.write(data))


def _kill(pair: Pair, number: int) -> None:
    pair.loop.kill(pair.processes[number])
    pair.net.process_ended(pair.processes[number])


# ---------------------------------------------------------------- kill


def test_a_killed_process_shows_as_eof_after_its_last_bytes() -> None:
    pair = Pair()
    client, served = pair.connect()
    _write(pair, 1, served, b"last words")
    killed_s = pair.now_s
    _kill(pair, 1)
    pair.wait(lambda: client.has("lost"))
    assert client.data == b"last words"
    assert client.has("eof")
    assert client.error is None
    assert pair.now_s - killed_s <= 0.001
    assert not served.has("lost")
    task = pair.dial()
    pair.wait(task.done)
    assert isinstance(task.exception(), ConnectionRefusedError)


def test_a_process_killed_over_unread_bytes_shows_as_a_reset() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.loop.stall(pair.processes[1], 60.0)
    _write(pair, 0, client, b"unread")
    pair.rest(1.0)
    _kill(pair, 1)
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, ConnectionResetError)


def test_bytes_under_way_to_a_killed_process_bring_a_reset() -> None:
    pair = Pair()
    pair.net.profile = WAN.lossy(0.0)
    client, _ = pair.connect()
    client.keeps_open = True
    _write(pair, 0, client, b"under way")
    pair.rest(0.001)
    _kill(pair, 1)
    pair.wait(lambda: client.has("lost"))
    assert client.has("eof")
    assert isinstance(client.error, ConnectionResetError)


def test_a_killed_dialler_leaves_nothing() -> None:
    pair = Pair()
    pair.serve()
    pair.dial()
    pair.rest(0.00005)
    _kill(pair, 0)
    pair.rest(1.0)
    assert all(served.has("lost") for served in pair.accepted)
    pair.check()


def test_the_last_words_of_a_killed_process_survive_loss() -> None:
    pair = Pair()
    client, served = pair.connect()
    pair.net.cut(pair.a, pair.b)
    _write(pair, 1, served, b"last words")
    _kill(pair, 1)
    pair.rest(1.0)
    pair.net.heal(pair.a, pair.b)
    pair.wait(lambda: client.has("lost"))
    assert client.data == b"last words"
    assert client.has("eof")


# ---------------------------------------------------------------- power cut


@pytest.mark.parametrize("timeout_ms", [100, 300, 1000, 2000])
def test_user_timeout_ends_a_silent_connection(timeout_ms: int) -> None:
    pair = Pair()
    client, _ = pair.connect()
    _user_timeout(pair, client, timeout_ms)
    pair.net.machine_vanished(pair.b)
    start_s = pair.now_s
    for _ in range(60):
        if not client.has("lost"):
            _write(pair, 0, client, b"x")
        pair.rest(0.05)
    assert isinstance(client.error, TimeoutError)
    assert client.times("lost")[0] - start_s == pytest.approx(timeout_ms / 1000 + 0.22, abs=0.001)


@pytest.mark.parametrize("timeout_ms", [300, 2000])
def test_user_timeout_comes_later_for_a_single_write(timeout_ms: int) -> None:
    pair = Pair()
    client, _ = pair.connect()
    _user_timeout(pair, client, timeout_ms)
    pair.net.machine_vanished(pair.b)
    start_s = pair.now_s
    _write(pair, 0, client, b"x")
    pair.wait(lambda: client.has("lost"))
    assert pair.now_s - start_s == pytest.approx(timeout_ms / 1000 + 0.43, abs=0.001)


def test_an_idle_connection_notices_nothing_without_keepalive() -> None:
    pair = Pair()
    client, _ = pair.connect()
    _user_timeout(pair, client, 300)
    pair.net.machine_vanished(pair.b)
    pair.rest(3600.0)
    assert not client.has("lost")


def test_keepalive_reaps_an_idle_connection_in_eleven_seconds() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.keep_alive(client)
    _write(pair, 0, client, b"x")
    pair.rest(0.01)
    start_s = pair.now_s - 0.01
    pair.net.machine_vanished(pair.b)
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, TimeoutError)
    assert pair.now_s - start_s == pytest.approx(11.0, abs=0.01)


def test_a_user_timeout_counts_instead_of_the_number_of_probes() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.keep_alive(client)
    _user_timeout(pair, client, 2000)
    pair.net.machine_vanished(pair.b)
    took_s = pair.wait(lambda: client.has("lost"))
    assert took_s == pytest.approx(7.0, abs=0.01)


def test_keepalive_counts_from_the_last_sign_of_life() -> None:
    pair = Pair()
    client, served = pair.connect()
    pair.keep_alive(client)
    pair.rest(100.0)
    _write(pair, 1, served, b"x")
    pair.rest(0.01)
    start_s = pair.now_s - 0.01
    pair.rest(1.0)
    pair.net.cut(pair.a, pair.b)
    pair.wait(lambda: client.has("lost"))
    assert pair.now_s - start_s == pytest.approx(11.0, abs=0.01)
    assert not served.has("lost")


def test_without_options_it_takes_a_quarter_of_an_hour() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.net.machine_vanished(pair.b)
    _write(pair, 0, client, b"x")
    took_s = pair.wait(lambda: client.has("lost"), 2000.0)
    assert took_s == pytest.approx(924.6, abs=1.0)
    assert isinstance(client.error, TimeoutError)


def test_a_machine_that_is_back_knows_nothing_of_its_connections() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.net.machine_vanished(pair.b)
    pair.loop.kill(pair.processes[1])
    pair.rest(3.0)
    pair.b.is_powered = True
    start_s = pair.now_s
    _write(pair, 0, client, b"x")
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, ConnectionResetError)
    assert pair.now_s - start_s <= 0.001


def test_an_idle_connection_to_a_machine_that_is_back_is_reset_by_keepalive() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.keep_alive(client)
    pair.net.machine_vanished(pair.b)
    pair.rest(1.0)
    pair.b.is_powered = True
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, ConnectionResetError)


def test_bytes_on_the_wire_outlive_their_machine_others_do_not() -> None:
    pair = Pair()
    pair.net.profile = WAN.lossy(0.0)
    client, served = pair.connect()
    _write(pair, 1, served, b"on the wire")
    pair.rest(0.001)
    pair.net.machine_vanished(pair.b)
    pair.wait(lambda: client.data == b"on the wire")
    pair.rest(10.0)
    assert not client.has("lost")


# ---------------------------------------------------------------- cuts


RETRIES = [(0.1, 0.1, 5), (0.3, 0.6, 5), (1.0, 1.4, 5), (1.5, 3.0, 5)]
RETRIES += [(0.1, 0.2, 1), (0.3, 0.4, 1), (1.0, 1.6, 1), (2.0, 3.2, 1)]


@pytest.mark.parametrize(("healed_s", "heard_s", "count"), RETRIES)
def test_after_a_heal_the_next_retry_brings_all_in_order(
    healed_s: float, heard_s: float, count: int
) -> None:
    """One segment alone is tried at other times than several."""
    pair = Pair()
    client, served = pair.connect()
    pair.net.cut(pair.a, pair.b)
    start_s = pair.now_s
    for number in range(count):
        _write(pair, 0, client, bytes([number]))
        pair.rest(0.01)
    pair.rest(healed_s - 0.01 * count)
    assert served.data == b""
    pair.net.heal(pair.a, pair.b)
    if count > 1:
        _write(pair, 0, client, bytes([count]))
    pair.wait(lambda: len(served.data) >= count)
    assert pair.now_s - start_s == pytest.approx(heard_s, abs=0.002)
    _write(pair, 0, client, b"x")
    assert pair.wait(lambda: served.data.endswith(b"x")) < 0.001
    assert served.data == bytes(range(len(served.data) - 1)) + b"x"


def test_in_a_one_way_cut_the_acknowledgements_are_lost_too() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    _user_timeout(pair, served, 2000)
    pair.net.cut(pair.b, pair.a, one_way=True)
    start_s = pair.now_s
    _write(pair, 0, client, b"heard")
    pair.wait(lambda: served.data == b"heard")
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, TimeoutError)
    assert pair.now_s - start_s == pytest.approx(2.43, abs=0.01)
    assert not served.has("lost")


def test_a_one_way_cut_that_heals_in_time_costs_nothing() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    pair.net.cut(pair.b, pair.a, one_way=True)
    _write(pair, 0, client, b"heard")
    pair.rest(1.0)
    _write(pair, 0, client, b" late")
    pair.net.heal(pair.b, pair.a)
    pair.rest(10.0)
    assert served.data == b"heard late"
    assert not client.has("lost")


def test_a_partition_cuts_between_groups_only() -> None:
    pair = Pair()
    pair.net.partition([[pair.a, pair.c], [pair.b]])
    net = pair.net
    assert not net.path(pair.a, pair.b).is_passable
    assert not net.path(pair.b, pair.c).is_passable
    assert net.path(pair.a, pair.c).is_passable
    pair.net.heal_all()
    assert net.path(pair.a, pair.b).is_passable
    assert not net.path(pair.a, pair.b).is_troubled


def test_a_peer_that_gave_up_in_a_cut_answers_with_a_reset() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 300)
    pair.net.cut(pair.a, pair.b)
    _write(pair, 0, client, b"x")
    pair.wait(lambda: client.has("lost"))
    pair.net.heal(pair.a, pair.b)
    _write(pair, 1, served, b"are you there")
    pair.wait(lambda: served.has("lost"))
    assert isinstance(served.error, ConnectionResetError)


def test_reset_kills_both_ends_at_once() -> None:
    pair = Pair()
    client, served = pair.connect()
    pair.net.reset(pair.b, pair.a)
    pair.wait(lambda: client.has("lost") and served.has("lost"))
    assert isinstance(client.error, ConnectionResetError)
    assert isinstance(served.error, ConnectionResetError)
    pair.net.reset(pair.a, pair.b)


# ---------------------------------------------------------------- loss and clogs


def _lose_next(pair: Pair) -> None:
    pair.net.path(pair.a, pair.b).until_loss = 0


def test_a_lost_segment_comes_after_the_retransmission_timeout() -> None:
    pair = Pair()
    client, served = pair.connect()
    _lose_next(pair)
    start_s = pair.now_s
    _write(pair, 0, client, b"lost")
    pair.wait(lambda: served.data == b"lost")
    assert pair.now_s - start_s == pytest.approx(0.2, abs=0.001)


def test_a_lost_segment_comes_a_round_trip_later_when_others_follow() -> None:
    pair = Pair()
    pair.net.profile = WAN.lossy(0.0)
    client, served = pair.connect()
    _lose_next(pair)
    start_s = pair.now_s
    _write(pair, 0, client, b"lost ")
    pair.rest(0.005)
    _write(pair, 0, client, b"followed")
    pair.wait(lambda: served.has("data"))
    assert 0.06 <= pair.now_s - start_s <= 0.1
    assert served.data.startswith(b"lost ")
    pair.wait(lambda: served.data == b"lost followed")


def test_a_clog_holds_bytes_and_releases_them() -> None:
    pair = Pair()
    client, served = pair.connect()
    pair.net.clog(pair.a, pair.b, 5.0)
    start_s = pair.now_s
    _write(pair, 0, client, b"held")
    pair.rest(1.0)
    _write(pair, 0, client, b" too")
    pair.wait(lambda: served.data == b"held")
    assert pair.now_s - start_s == pytest.approx(5.0, abs=0.002)
    pair.wait(lambda: served.data == b"held too")
    assert pair.now_s - start_s == pytest.approx(6.0, abs=0.002)
    _write(pair, 0, client, b", released")
    pair.net.unclog(pair.a, pair.b)
    assert pair.wait(lambda: served.data == b"held too, released") < 0.002
    _write(pair, 0, client, b"!")
    assert pair.wait(lambda: served.data.endswith(b"!")) < 0.002


@pytest.mark.parametrize(("clog_s", "dies"), [(1.0, False), (3.0, True)])
def test_a_clog_longer_than_the_user_timeout_ends_a_connection(clog_s: float, dies: bool) -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    pair.net.clog(pair.a, pair.b, clog_s, one_way=True)
    _write(pair, 0, client, b"held")
    pair.rest(10.0)
    assert client.has("lost") == dies
    assert served.data == b"held"


def test_a_window_that_stays_shut_counts_for_the_user_timeout() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    served.transport.pause_reading()
    start_s = pair.now_s
    _write(pair, 0, client, bytes(2_000_000))
    pair.wait(lambda: client.has("lost"))
    assert isinstance(client.error, TimeoutError)
    assert pair.now_s - start_s == pytest.approx(2.33, abs=0.01)


# ---------------------------------------------------------------- machines that stand still


def test_a_stalled_process_is_acknowledged_for_and_gets_all_at_once() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 300)
    pair.loop.stall(pair.processes[1], 5.0)
    for _ in range(20):
        _write(pair, 0, client, b"x" * 100)
        pair.rest(0.1)
    assert served.data == b""
    pair.wait(lambda: served.has("data"))
    assert len(served.data) == 2000
    assert not client.has("lost")


def test_a_machine_that_sleeps_a_little_gets_what_it_missed() -> None:
    pair = Pair()
    client, served = pair.connect()
    pair.loop.sleep_machine(pair.b)
    start_s = pair.now_s
    _write(pair, 0, client, b"missed")
    pair.rest(1.0)
    pair.loop.wake_machine(pair.b, [pair.processes[1]])
    pair.rest(0.1)
    assert served.data == b""
    pair.wait(lambda: served.data == b"missed")
    assert pair.now_s - start_s == pytest.approx(1.6, abs=0.01)


def test_a_machine_that_slept_long_is_told_by_a_reset() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    pair.loop.sleep_machine(pair.b)
    _write(pair, 0, client, b"missed")
    pair.rest(60.0)
    assert client.has("lost")
    assert not served.has("lost")
    pair.loop.wake_machine(pair.b, [pair.processes[1]])
    _write(pair, 1, served, b"good morning")
    pair.wait(lambda: served.has("lost"))
    assert isinstance(served.error, ConnectionResetError)
    assert served.data == b""


def test_what_was_under_way_when_the_lid_closed_comes_again() -> None:
    pair = Pair()
    pair.net.profile = WAN.lossy(0.0)
    client, served = pair.connect()
    _write(pair, 0, client, b"under way")
    pair.rest(0.005)
    pair.loop.sleep_machine(pair.b)
    pair.rest(0.1)
    pair.loop.wake_machine(pair.b, [pair.processes[1]])
    assert served.data == b""
    pair.wait(lambda: served.data == b"under way")


def test_the_timers_of_a_sleeping_kernel_stand_still() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    pair.net.cut(pair.a, pair.b)
    _write(pair, 0, client, b"x")
    pair.rest(1.0)
    pair.loop.sleep_machine(pair.a)
    pair.rest(100.0)
    pair.net.heal(pair.a, pair.b)
    pair.loop.wake_machine(pair.a, [pair.processes[0]])
    pair.wait(lambda: served.data == b"x")
    assert not client.has("lost")


def test_a_process_killed_on_a_sleeping_machine_is_missed_when_it_wakes() -> None:
    pair = Pair()
    client, _ = pair.connect()
    pair.loop.sleep_machine(pair.b)
    _kill(pair, 1)
    pair.rest(60.0)
    assert not client.has("eof")
    pair.loop.wake_machine(pair.b, [])
    pair.wait(lambda: client.has("eof"))


def test_an_address_that_is_gone_leaves_its_connections_silent() -> None:
    pair = Pair()
    client, served = pair.connect()
    _user_timeout(pair, client, 2000)
    pair.keep_alive(served)
    pair.net.move(pair.a, ("10.0.1.1",))
    start_s = pair.now_s
    _write(pair, 0, client, b"x")
    pair.wait(lambda: client.has("lost"))
    assert pair.now_s - start_s == pytest.approx(2.43, abs=0.01)
    pair.wait(lambda: served.has("lost"))
    assert isinstance(served.error, TimeoutError)
    assert served.data == b""
    pair.serve(pair.processes[0], port=PORT)
    found = pair.dial(pair.processes[1], host="10.0.1.1")
    gone = pair.dial(pair.processes[1], host="10.0.0.1")
    pair.rest(1.0)
    assert found.result().has("made")
    assert not gone.done()
