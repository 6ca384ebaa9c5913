"""The simulated network: dialling, listening, refusals and silence."""

from __future__ import annotations

import asyncio
import errno

import pytest
from sim_streams import PORT, Pair

from sims import wire
from sims.wire import LOOPBACK, WAN


def test_a_connection_takes_one_round_trip() -> None:
    pair = Pair()
    pair.serve()
    start_s = pair.now_s
    client, served = pair.connect()
    assert 0.00018 <= client.times("made")[0] - start_s <= 0.0012
    assert client.times("made")[0] < served.times("made")[0] < client.times("made")[0] + 0.0006
    assert client.transport.get_extra_info("peername") == ("10.0.0.2", PORT)
    assert served.transport.get_extra_info("sockname") == ("10.0.0.2", PORT)
    own = client.transport.get_extra_info("sockname")
    assert own[0] == "10.0.0.1"
    assert served.transport.get_extra_info("peername") == own
    assert client.transport.get_extra_info("socket").getpeername() == ("10.0.0.2", PORT)
    assert client.transport.get_extra_info("sslcontext", "none") == "none"


def test_nobody_listens_refused_after_a_round_trip() -> None:
    pair = Pair()
    pair.net.profile = WAN
    start_s = pair.now_s
    task = pair.dial()
    pair.wait(task.done)
    assert isinstance(task.exception(), ConnectionRefusedError)
    assert 0.038 <= pair.now_s - start_s <= 0.08


def _cut(pair: Pair) -> None:
    pair.net.cut(pair.a, pair.b)


def _cut_there(pair: Pair) -> None:
    pair.net.cut(pair.a, pair.b, one_way=True)


def _cut_back(pair: Pair) -> None:
    pair.net.cut(pair.b, pair.a, one_way=True)


def _forbidden(pair: Pair) -> None:
    pair.net.forbid_dial(pair.a, pair.b)


def _vanished(pair: Pair) -> None:
    pair.net.machine_vanished(pair.b)


def _asleep(pair: Pair) -> None:
    pair.loop.sleep_machine(pair.b)


@pytest.mark.parametrize("fault", [_cut, _cut_there, _cut_back, _forbidden, _vanished, _asleep])
def test_silence_lasts_until_the_caller_gives_up(fault) -> None:
    pair = Pair()
    pair.serve()
    fault(pair)

    async def dial() -> float:
        try:
            async with asyncio.timeout(3.0):
                await pair.loop.create_connection(pair.recorder, "10.0.0.2", PORT)
        except TimeoutError:
            return pair.now_s
        raise AssertionError

    start_s = pair.now_s
    assert pair.run(pair.processes[0], dial()) == pytest.approx(start_s + 3.0)
    assert pair.accepted == []


def test_no_such_host_times_out_after_two_minutes() -> None:
    pair = Pair()
    start_s = pair.now_s
    task = pair.dial(host="10.9.9.9")
    pair.wait(task.done, 200.0)
    assert isinstance(task.exception(), TimeoutError)
    assert pair.now_s - start_s == pytest.approx(127.0)


def test_a_dial_into_a_cut_connects_at_a_retry_after_the_heal() -> None:
    pair = Pair()
    pair.serve()
    pair.net.cut(pair.a, pair.b)
    start_s = pair.now_s
    task = pair.dial()
    pair.rest(4.0)
    pair.net.heal(pair.a, pair.b)
    pair.wait(task.done)
    assert 7.0 <= pair.now_s - start_s <= 7.01


@pytest.mark.parametrize("after_s", [0.00001, 0.0002, 0.00035])
def test_a_dial_that_is_cancelled_leaves_nothing(after_s: float) -> None:
    pair = Pair()
    pair.serve()
    task = pair.dial()
    pair.rest(after_s)
    task.cancel()
    pair.rest(1.0)
    assert task.cancelled() or task.result().has("made")
    for served in pair.accepted:
        assert served.has("lost") or not task.cancelled()
    pair.check()


def test_port_zero_finds_a_free_one_and_a_taken_one_is_refused() -> None:
    pair = Pair()
    pair.serve(port=0)
    assert pair.server is not None
    host, port = pair.server.sockets[0].getsockname()
    assert host == "0.0.0.0"
    assert port > 0
    with pytest.raises(OSError) as caught:
        pair.serve(port=port)
    assert caught.value.errno == errno.EADDRINUSE
    pair.serve(port=0)
    assert pair.server.sockets[0].getsockname()[1] != port


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    pair = Pair()
    with pytest.raises(OSError) as caught:
        pair.serve(host="10.0.0.3")
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_one_address_does_not_answer_for_another() -> None:
    pair = Pair()
    pair.serve(host="127.0.0.1")
    task = pair.dial()
    pair.wait(task.done)
    assert isinstance(task.exception(), ConnectionRefusedError)
    inside = pair.dial(pair.processes[1], host="127.0.0.1")
    pair.wait(inside.done)
    assert inside.result().transport.get_extra_info("peername") == ("127.0.0.1", PORT)


def test_loopback_is_fast() -> None:
    pair = Pair()
    pair.serve()
    start_s = pair.now_s
    task = pair.dial(pair.processes[1], host="127.0.0.1")
    pair.wait(task.done)
    assert pair.now_s - start_s <= 2 * LOOPBACK.latency[-1][1]


def test_a_closed_server_refuses_and_frees_its_port() -> None:
    pair = Pair()
    client, served = pair.connect()
    assert pair.server is not None
    pair.server.close()
    assert pair.server.sockets == ()
    pair.run(pair.processes[1], pair.server.wait_closed())
    task = pair.dial()
    pair.wait(task.done)
    assert isinstance(task.exception(), ConnectionRefusedError)
    client.transport.write(b"still")
    pair.wait(lambda: served.data == b"still")
    pair.serve()


def test_a_forbidden_direction_carries_what_the_other_dialled() -> None:
    pair = Pair()
    pair.net.forbid_dial(pair.a, pair.b)
    pair.serve(pair.processes[0])
    task = pair.dial(pair.processes[1], host="10.0.0.1")
    pair.wait(task.done)
    client = task.result()
    pair.wait(lambda: len(pair.accepted) == 1 and pair.accepted[0].has("made"))
    client.transport.write(b"there")
    pair.accepted[0].transport.write(b"back")
    pair.wait(lambda: client.data == b"back" and pair.accepted[0].data == b"there")
    pair.net.allow_dial(pair.a, pair.b)
    pair.serve()
    again = pair.dial()
    pair.wait(again.done)
    assert again.result().has("made")


def test_a_kernel_shakes_hands_while_its_process_stands_still() -> None:
    pair = Pair()
    pair.serve()
    pair.loop.stall(pair.processes[1], 2.0)
    task = pair.dial()
    assert pair.wait(task.done) < 0.01
    task.result().transport.write(b"early")
    assert pair.accepted == []
    pair.wait(lambda: bool(pair.accepted) and pair.accepted[0].data == b"early")
    pair.check()


def test_what_was_not_accepted_is_reset_when_the_server_closes() -> None:
    pair = Pair()
    pair.serve()
    task = pair.dial()
    pair.loop.run_until(task.done)
    pair.server.close()  # type: ignore[union-attr]
    pair.wait(lambda: task.result().has("lost"))
    assert isinstance(task.result().error, ConnectionResetError)
    assert pair.accepted == []


def test_profiles_of_pairs_machines_and_all() -> None:
    pair = Pair()
    net = pair.net
    net.set_access(pair.a, wire.FAST_ETHERNET)
    net.set_profile(pair.b, pair.c, wire.WAN)
    assert net.path(pair.a, pair.b).profile is wire.FAST_ETHERNET
    assert net.path(pair.a, pair.b).line is net.path(pair.a, pair.c).line
    assert net.path(pair.b, pair.a).line is net.path(pair.c, pair.a).line
    assert net.path(pair.a, pair.b).line is not net.path(pair.b, pair.a).line
    assert net.path(pair.b, pair.c).profile is wire.WAN
    assert net.path(pair.c, pair.b).profile is wire.WAN
    net.set_access(pair.b, wire.WIFI)
    both = net.path(pair.a, pair.b).profile
    assert both.bandwidth_bytes_s == wire.WIFI.bandwidth_bytes_s
    assert both.loss == pytest.approx(wire.WIFI.loss)
    assert len(net.path(pair.a, pair.b).radios) == 1
    assert net.path(pair.b, pair.c).profile is wire.WAN
    net.profile = wire.WIRED.lossy(0.5)
    assert net.path(pair.a, pair.b).profile is both
    net.loss = 0.5
    assert net.path(pair.a, pair.b).loss == pytest.approx(1 - 0.5 * (1 - wire.WIFI.loss))


def test_a_profile_for_all_changes_paths_that_exist() -> None:
    pair = Pair()
    pair.net.path(pair.a, pair.b)
    pair.net.profile = wire.WIRED.lossy(0.5)
    assert pair.net.path(pair.a, pair.b).loss == 0.5


def test_the_world_itself_can_dial() -> None:
    pair = Pair()
    pair.serve()
    task = pair.dial(pair.loop.world)
    pair.wait(task.done)
    assert task.result().has("made")


def test_a_connection_reset_before_its_program_has_it_is_an_error() -> None:
    pair = Pair()
    pair.serve()
    task = pair.dial()
    pair.rest(0.0001)
    pair.loop.stall(pair.processes[0], 1.0)
    pair.rest(0.5)
    pair.net.reset(pair.a, pair.b)
    pair.wait(task.done)
    assert isinstance(task.exception(), ConnectionResetError)
    pair.check()
