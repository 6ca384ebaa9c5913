"""What a listener lets in, and the figures of a link."""

from __future__ import annotations

import pytest

from swarm.config import LinkConfig
from swarm.link.admission import (
    REPLAY_CACHE_MAX,
    REPLAY_CACHE_S,
    Admission,
    HandshakeGate,
    NoteBudget,
    ReplayCache,
)
from swarm.link.quality import GoodputEstimator, RttEstimator, Upkeep
from swarm.messages import GoodputEcho, GoodputProbe, Ping, Pong


def test_a_flood_is_cut_at_the_rate_and_time_restores_it() -> None:
    gate = HandshakeGate(half_open_max=1000, handshakes_per_second=50)
    admitted = [gate.admit(number, 0.0).admitted for number in range(200)]
    assert sum(admitted) == 50
    later = [gate.admit(number, 1.0).admitted for number in range(200, 400)]
    assert sum(later) == 50


def test_members_do_not_use_up_the_rate() -> None:
    gate = HandshakeGate(half_open_max=4, handshakes_per_second=5)
    for number in range(100):
        assert gate.admit(number, 0.0).admitted
        gate.proven(number, 0.0)
        gate.authenticated(number)
        gate.gone(number)
    assert gate.half_open == 0


def test_the_oldest_stranger_makes_room_and_members_under_way_do_not() -> None:
    gate = HandshakeGate(half_open_max=2, handshakes_per_second=100)
    gate.admit(1, 0.0)
    gate.admit(2, 0.0)
    gate.proven(1, 0.0)
    assert gate.admit(3, 0.0) == Admission(admitted=True, evicted=2)
    gate.proven(3, 0.0)
    assert gate.admit(4, 0.0) == Admission(admitted=False)
    gate.gone(1)
    assert gate.admit(5, 0.0) == Admission(admitted=True)


def test_a_member_that_comes_by_many_addresses_costs_strangers_nothing() -> None:
    """All but one of its connections end half-way."""
    gate = HandshakeGate(half_open_max=4, handshakes_per_second=5)
    for number in range(50):
        assert gate.admit(number, 0.0).admitted
        gate.proven(number, 0.0)
        gate.gone(number)
    assert not gate.admit(50, 0.0).admitted, "but not without end"
    assert gate.admit(51, 1.0).admitted


def test_only_a_failed_handshake_costs() -> None:
    gate = HandshakeGate(half_open_max=10, handshakes_per_second=2)
    for number in range(2):
        gate.admit(number, 0.0)
        gate.gone(number)
    assert not gate.admit(3, 0.0).admitted
    assert gate.half_open == 0


def test_replays_are_known_while_they_are_kept() -> None:
    cache = ReplayCache()
    assert cache.is_fresh(b"one", 0.0)
    assert not cache.is_fresh(b"one", REPLAY_CACHE_S)
    assert cache.is_fresh(b"one", REPLAY_CACHE_S + 1)
    for number in range(REPLAY_CACHE_MAX + 10):
        assert cache.is_fresh(str(number).encode(), 200.0)
    assert not cache.is_fresh(str(REPLAY_CACHE_MAX).encode(), 200.0)
    assert cache.is_fresh(b"0", 200.0)


def test_notes_are_bounded_and_the_rest_is_counted() -> None:
    budget = NoteBudget(rate=1.0, burst=2.0)
    assert [budget.take(0.0) for _ in range(5)] == [0, 0, None, None, None]
    assert budget.take(1.0) == 3
    assert budget.take(2.0) == 0


def test_rtt_is_a_low_quantile_that_one_bad_sample_cannot_spoil() -> None:
    rtt = RttEstimator()
    assert rtt.value_s(0.0) is None
    rtt.sample(3.0, 0.0)
    assert rtt.value_s(0.0) == 3.0
    for number in range(10):
        rtt.sample(0.001 + number * 1e-5, 1.0 + number)
    assert rtt.value_s(11.0) == pytest.approx(0.001, rel=0.1)


def test_old_rtt_samples_give_way_but_the_last_one_stays() -> None:
    rtt = RttEstimator()
    rtt.sample(0.001, 0.0)
    rtt.sample(0.050, 100.0)
    assert rtt.value_s(100.0) == 0.050
    assert rtt.value_s(1000.0) == 0.050


def test_goodput_takes_the_round_trip_off_and_stays_finite() -> None:
    goodput = GoodputEstimator()
    assert goodput.value_bytes_s() is None
    goodput.sample(1_000_000, 1.1, 0.1)
    assert goodput.value_bytes_s() == pytest.approx(1e6)
    for elapsed in (0.0, 0.05, 0.1):
        goodput.sample(1_000_000, elapsed, 0.1)
    assert 1e6 < (goodput.value_bytes_s() or 0) <= 1e12


CONFIG = LinkConfig(goodput_probe_bytes=1000, goodput_probe_interval_s=60.0)


def test_upkeep_pings_then_probes_then_rests() -> None:
    upkeep = Upkeep(CONFIG, 0.0)
    assert upkeep.tick(0.0, data_idle=True) == [Ping(1)]
    assert upkeep.received(Pong(1), 0.01, data_idle=True) == [GoodputProbe(2, bytes(1000))]
    assert upkeep.rtt_s(0.01) == pytest.approx(0.01)
    assert upkeep.received(GoodputEcho(2), 0.03, data_idle=True) == []
    assert upkeep.goodput_bytes_s() == pytest.approx(1000 / 0.01)
    assert upkeep.tick(2.0, data_idle=True) == [Ping(3)]
    assert upkeep.received(Pong(3), 2.01, data_idle=True) == []
    assert [type(m) for m in upkeep.tick(61.0, data_idle=True)] == [Ping, GoodputProbe]


def test_a_path_that_is_known_is_pinged_seldom() -> None:
    upkeep = Upkeep(LinkConfig(goodput_probe_bytes=0), 0.0)
    moments = []
    for second in range(0, 120, 2):
        for ping in upkeep.tick(float(second), data_idle=True):
            assert isinstance(ping, Ping)
            moments.append(second)
            upkeep.received(Pong(ping.stamp), second + 0.001, data_idle=True)
    assert moments[:9] == list(range(0, 18, 2))
    assert {later - earlier for earlier, later in zip(moments[8:], moments[9:], strict=False)} == {
        10
    }
    assert upkeep.rtt_s(120.0) == pytest.approx(0.001)


def test_a_busy_data_lane_is_not_probed() -> None:
    upkeep = Upkeep(CONFIG, 0.0)
    upkeep.tick(0.0, data_idle=False)
    assert upkeep.received(Pong(1), 0.01, data_idle=False) == []
    assert [type(m) for m in upkeep.tick(2.0, data_idle=True)] == [Ping, GoodputProbe]


def test_upkeep_answers_and_ignores_stamps_it_never_sent() -> None:
    upkeep = Upkeep(CONFIG, 0.0)
    assert upkeep.received(Ping(77), 0.0, data_idle=True) == [Pong(77)]
    assert upkeep.received(GoodputProbe(78, b"x"), 0.0, data_idle=True) == [GoodputEcho(78)]
    assert upkeep.received(Pong(5), 0.0, data_idle=True) == []
    assert upkeep.received(GoodputEcho(5), 0.0, data_idle=True) == []
    assert upkeep.rtt_s(0.0) is None
    assert upkeep.goodput_bytes_s() is None


def test_pings_that_are_never_answered_are_forgotten() -> None:
    upkeep = Upkeep(CONFIG, 0.0)
    for number in range(100):
        upkeep.tick(float(number), data_idle=True)
    upkeep.received(Pong(1), 100.0, data_idle=True)
    assert upkeep.rtt_s(100.0) is None
