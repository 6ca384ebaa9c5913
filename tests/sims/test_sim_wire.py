"""Path profiles: their samples have the figures they state."""

from __future__ import annotations

from itertools import groupby
from random import Random
from statistics import median

import pytest
from sim_streams import Pair

from sims import wire
from sims.machine import SECOND_NS
from sims.path import Path
from sims.wire import FAST_ETHERNET, LOOPBACK, PACKET_BYTES, WAN, WIFI, WIRED, Profile, Radio

ALL = (LOOPBACK, WIRED, FAST_ETHERNET, WIFI, WAN)


def _pings(there: Path, back: Path, minutes: float, every_s: float = 0.05) -> list[float | None]:
    """Round trips of pings sent at regular times, in seconds; None: lost."""
    result: list[float | None] = []
    start_ns = int(1000 * SECOND_NS)
    for number in range(int(minutes * 60 / every_s)):
        sent_ns = start_ns + int(number * every_s * SECOND_NS)
        if there.loses(64) or back.loses(64):
            result.append(None)
            continue
        result.append((back.arrival_ns(there.arrival_ns(sent_ns)) - sent_ns) / SECOND_NS)
    return result


def _share(times: list[float], share: float) -> float:
    return sorted(times)[int(share * len(times))]


def test_wifi_has_the_figures_of_the_published_trace() -> None:
    pair = Pair()
    pair.net.set_access(pair.a, WIFI)
    minutes = 400
    there, back = pair.net.path(pair.a, pair.b), pair.net.path(pair.b, pair.a)
    pings = _pings(there, back, minutes)
    times = [t for t in pings if t is not None]
    assert median(times) == pytest.approx(0.0040, abs=0.0002)
    assert 0.006 <= _share(times, 0.95) <= 0.008
    assert _share(times, 0.99) == pytest.approx(0.0507, abs=0.004)
    lost = pings.count(None) / len(pings) / 2
    assert lost == pytest.approx(0.0012, abs=0.0002)
    runs = [max(run) for above, run in _runs(times) if above]
    assert len(runs) / minutes == pytest.approx(1.8, abs=0.3)
    long = sum(peak > 0.2 for peak in runs) / len(runs)
    assert long == pytest.approx(12 / 18, abs=0.1)


def _runs(times: list[float]) -> list[tuple[bool, list[float]]]:
    return [(above, list(run)) for above, run in groupby(times, lambda t: t > 0.1)]


@pytest.mark.parametrize(
    ("profile", "low_s", "high_s"),
    [(WIRED, 0.0002, 0.0005), (WAN, 0.039, 0.045), (LOOPBACK, 0.00003, 0.0001)],
    ids=lambda p: p.name if isinstance(p, Profile) else "",
)
def test_round_trips(profile: Profile, low_s: float, high_s: float) -> None:
    pair = Pair()
    pair.net.profile = profile.lossy(0.0)
    pings = _pings(pair.net.path(pair.a, pair.b), pair.net.path(pair.b, pair.a), 5.0)
    times = [t for t in pings if t is not None]
    assert len(times) == len(pings)
    assert low_s <= median(times) <= high_s
    assert low_s * 0.9 <= _share(times, 0.05)
    assert _share(times, 0.95) <= high_s


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_loss_is_the_share_of_packets(share: float) -> None:
    pair = Pair()
    pair.net.profile = WIRED.lossy(share)
    path = pair.net.path(pair.a, pair.b)
    count = 20_000
    lost = sum(path.loses(100) for _ in range(count)) / count
    assert lost == pytest.approx(share, rel=0.15)
    big = sum(path.loses(9 * PACKET_BYTES) for _ in range(count)) / count
    assert big == pytest.approx(1 - (1 - share) ** 10, rel=0.15)


def test_no_loss_is_none_at_all() -> None:
    assert wire.packets_until_loss(0.0, Random(1).random) == wire.NEVER_LOST
    assert WIRED.lossy(0.05).loss == 0.05
    assert WIRED.lossy(0.05).latency == WIRED.latency


@pytest.mark.parametrize("profile", ALL, ids=lambda p: p.name)
def test_latency_tables_rise_and_have_their_quantiles(profile: Profile) -> None:
    table = wire.delays_ns(profile)
    assert len(table) == wire.TABLE_SIZE
    assert list(table) == sorted(table)
    for share, seconds in profile.latency[1:-1]:
        index = int(share * wire.TABLE_SIZE)
        assert table[index - 1] <= seconds * SECOND_NS + 1
        assert table[index + 1] >= seconds * SECOND_NS - 1
    assert PACKET_BYTES <= profile.segment_bytes <= wire.SEGMENT_BYTES_MAX


def test_two_access_links_in_a_row_add_up() -> None:
    both = wire.in_a_row(WIFI, WAN)
    table, first, second = (wire.delays_ns(p) for p in (both, WIFI, WAN))
    assert sum(table) == pytest.approx(sum(first) + sum(second), rel=0.001)
    assert both.loss == pytest.approx(0.0012 + 0.005, rel=0.01)
    assert both.bandwidth_bytes_s == WAN.bandwidth_bytes_s


def test_a_spike_holds_everything_and_then_lets_it_drain() -> None:
    radio = Radio(WIFI, Random(3).random, 0)
    begin_ns = radio.next_ns
    assert radio.held_until(begin_ns - 1) == begin_ns - 1
    end_ns = radio.held_until(begin_ns)
    assert 0.1 <= (end_ns - begin_ns) / SECOND_NS <= 0.4
    assert radio.held_until((begin_ns + end_ns) // 2) == end_ns
    assert radio.held_until(end_ns) == end_ns
    assert radio.next_ns > end_ns


def test_a_spike_is_of_the_radio_and_not_of_the_path() -> None:
    pair = Pair()
    pair.net.set_access(pair.a, WIFI)
    paths = [
        pair.net.path(*ends)
        for ends in ((pair.a, pair.b), (pair.b, pair.a), (pair.a, pair.c), (pair.c, pair.a))
    ]
    radio = paths[0].radios[0]
    assert all(path.radios == (radio,) for path in paths)
    begin_ns = radio.next_ns
    arrivals = [path.arrival_ns(begin_ns) for path in paths]
    assert min(arrivals) >= begin_ns + 0.1 * SECOND_NS


def test_streams_over_wifi_stall_and_drain_in_order() -> None:
    pair = Pair()
    pair.net.set_access(pair.a, WIFI.lossy(0.0))
    client, served = pair.connect()
    begin_ns = pair.net.path(pair.a, pair.b).radios[0].next_ns
    pair.rest((begin_ns - pair.loop.now_ns) / SECOND_NS + 0.001)
    for number in range(5):
        pair.do(pair.processes[0], lambda n=number: client.transport.write(bytes([n])))
        pair.rest(0.01)
    assert served.data == b""
    pair.wait(lambda: len(served.data) == 5)
    times = served.times("data")
    assert times[-1] - times[0] < 0.06
    assert served.data == bytes(range(5))
