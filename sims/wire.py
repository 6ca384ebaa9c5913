"""What a path between two machines is like: latency, bandwidth, loss, spikes.

Profiles are plain figures; `Radio` and `Line` are the states that paths share: when a wireless
link stalls next, and how far ahead a wire is booked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from sims.machine import SECOND_NS

TABLE_SIZE = 4096
"""Latencies drawn by an index into a table: the rarest figure has a share of 1 in this many."""
PACKET_BYTES = 1448
"""Payload of one TCP segment on Ethernet; loss counts these."""
SEGMENT_BYTES_MAX = 64 * 1024
SEGMENT_S_MAX = 0.002
"""One turn on a busy line: what others wait for behind each connection that has bulk to send."""
NEVER_LOST = 1 << 60
"""A count of packets that no run sends."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Profile:
    """One direction of a path. Figures are one-way; a round trip draws twice."""

    name: str
    latency: tuple[tuple[float, float], ...]
    """(share, seconds): so many of the packets take at most so long, straight lines between."""
    bandwidth_bytes_s: float
    loss: float = 0.0
    """Share of packets that are lost, each for itself."""
    spikes_per_minute: float = 0.0
    """How often nothing passes for a while; what waited then drains in order."""
    spike_s: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest spike, evenly spread."""
    duplicates: float = 0.0
    """Share of datagrams that arrive twice."""

    def lossy(self, share: float) -> Profile:
        """The same path with this loss."""
        return replace(self, name=f"{self.name}, {share:.1%} lost", loss=share)

    @property
    def segment_bytes(self) -> int:
        """What a connection may send in one turn when the line is busy."""
        share = int(self.bandwidth_bytes_s * SEGMENT_S_MAX)
        return max(PACKET_BYTES, min(SEGMENT_BYTES_MAX, share))


LOOPBACK = Profile("loopback", ((0.0, 15e-6), (0.5, 20e-6), (0.99, 50e-6), (1.0, 200e-6)), 4e9)
WIRED = Profile(
    "wired", ((0.0, 90e-6), (0.5, 130e-6), (0.95, 200e-6), (0.999, 300e-6), (1.0, 600e-6)), 125e6
)
"""A gigabit switch: round trips of 0.2 to 0.5 ms."""
FAST_ETHERNET = Profile(
    "fast ethernet", ((0.0, 150e-6), (0.5, 200e-6), (0.95, 350e-6), (1.0, 1e-3)), 12.5e6
)
WIFI = Profile(
    "wifi",
    ((0.0, 1.0e-3), (0.5, 2.0e-3), (0.9, 2.7e-3), (0.98, 4.5e-3), (0.997, 53e-3), (1.0, 80e-3)),
    12.5e6,
    loss=0.0012,
    spikes_per_minute=1.8,
    spike_s=(0.1, 0.4),
    duplicates=0.001,
)
"""A published trace over office Wi-Fi (privateoctopus.com, 2023-05-18): round trips of median
4.0 ms, p95 below 8, p99 50.7 ms; 0.12 % lost; in ten minutes 18 spikes above 100 ms of which 12
above 200 ms. Bandwidth and duplicates are assumed."""
WAN = Profile(
    "wan",
    ((0.0, 19e-3), (0.5, 20e-3), (0.95, 21e-3), (0.99, 25e-3), (1.0, 40e-3)),
    2.5e6,
    loss=0.005,
)
"""Round trips of 40 ms, 20 Mb/s."""


@lru_cache(maxsize=256)
def delays_ns(profile: Profile) -> tuple[int, ...]:
    """`TABLE_SIZE` one-way latencies, rising; an even draw from them has the distribution."""
    points = list(profile.latency)
    table, at = [], 0
    for index in range(TABLE_SIZE):
        share = (index + 0.5) / TABLE_SIZE
        while points[at + 1][0] < share:
            at += 1
        (low, low_s), (high, high_s) = points[at], points[at + 1]
        seconds = low_s + (high_s - low_s) * (share - low) / (high - low)
        table.append(int(seconds * SECOND_NS))
    return tuple(table)


@lru_cache(maxsize=256)
def in_a_row(first: Profile, second: Profile) -> Profile:
    """The path over two access links: latencies add up, the narrower one counts.

    Spikes are not in it: each link has its own `Radio`.
    """
    later = list(delays_ns(second))
    Random(0).shuffle(later)
    sums = sorted(a + b for a, b in zip(delays_ns(first), later, strict=True))
    last = TABLE_SIZE - 1
    points = tuple((i / last, sums[i] / SECOND_NS) for i in range(TABLE_SIZE))
    return Profile(
        f"{first.name} and {second.name}",
        points,
        min(first.bandwidth_bytes_s, second.bandwidth_bytes_s),
        loss=1.0 - (1.0 - first.loss) * (1.0 - second.loss),
        duplicates=max(first.duplicates, second.duplicates),
    )


def packets_until_loss(share: float, random: Callable[[], float]) -> int:
    """How many packets pass before the next is lost."""
    if share <= 0.0:
        return NEVER_LOST
    if share >= 1.0:
        return 0
    return int(math.log(1.0 - random()) / math.log(1.0 - share))


class Radio:
    """When a wireless link stalls. Both directions and all paths over it stall together."""

    __slots__ = ("_end_ns", "_per_minute", "_random", "_spike_s", "next_ns")

    def __init__(self, profile: Profile, random: Callable[[], float], now_ns: int) -> None:
        self._random = random
        self._per_minute = profile.spikes_per_minute
        self._spike_s = profile.spike_s
        self._end_ns = now_ns
        self.next_ns = now_ns
        """Nothing is held before this time."""
        self._plan()

    def held_until(self, at_ns: int) -> int:
        """When what is sent at `at_ns` (times only rise, roughly) gets through."""
        while at_ns >= self._end_ns:
            self._plan()
        return self._end_ns if at_ns >= self.next_ns else at_ns

    def _plan(self) -> None:
        """The next spike, after the last one."""
        pause_s = -math.log(1.0 - self._random()) * MINUTE_S / self._per_minute
        low_s, high_s = self._spike_s
        spike_s = low_s + (high_s - low_s) * self._random()
        self.next_ns = self._end_ns + int(pause_s * SECOND_NS)
        self._end_ns = self.next_ns + int(spike_s * SECOND_NS)
