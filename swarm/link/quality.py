"""How good a link is: what it sends to find out, and what a few samples say. Pure."""

from __future__ import annotations

import math
from collections import deque
from functools import lru_cache
from statistics import median

from swarm.config import LinkConfig
from swarm.messages import GoodputEcho, GoodputProbe, Message, Ping, Pong

_RTT_SAMPLES = 16
_RTT_AGE_S = 60.0
_RTT_QUANTILE = 0.2
_GOODPUT_SAMPLES = 5
_MIN_TRANSFER_FRACTION = 0.1
_OUTSTANDING_MAX = 16
_PINGS_TO_SETTLE = 8


@lru_cache(1)
def _bulk(size: int) -> bytes:
    """What a bulk probe carries; made once for all links."""
    return bytes(size)


class RttEstimator:
    """Low quantile over a window with an age limit, so that one bad sample excludes nobody.

    Queues and busy loops only ever add to a round trip: the low end is the path itself.
    """

    __slots__ = ("_good_until", "_samples", "_value_s")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_RTT_SAMPLES)
        self._value_s: float | None = None
        self._good_until = math.inf

    def sample(self, rtt_s: float, now: float) -> None:
        self._samples.append((now, max(0.0, rtt_s)))
        self._good_until = -math.inf

    @property
    def count(self) -> int:
        """Samples at hand."""
        return len(self._samples)

    def value_s(self, now: float) -> float | None:
        """None until measured. Samples beyond the age limit count only when nothing newer is."""
        if now > self._good_until:
            fresh = [(at, rtt) for at, rtt in self._samples if now - at <= _RTT_AGE_S]
            ranked = sorted(rtt for _, rtt in fresh) or [self._samples[-1][1]]
            self._value_s = ranked[int((len(ranked) - 1) * _RTT_QUANTILE)]
            self._good_until = fresh[0][0] + _RTT_AGE_S if fresh else math.inf
        return self._value_s


class GoodputEstimator:
    """Median rate of the recent bulk probes in one direction."""

    __slots__ = ("_samples", "_value_bytes_s")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_GOODPUT_SAMPLES)
        self._value_bytes_s: float | None = None

    def sample(self, byte_count: int, elapsed_s: float, rtt_s: float | None) -> None:
        """`elapsed_s`: from sending the bulk until its echo; one round trip of it is no transfer.

        On fast links the round trip is most of it; the floor keeps the figure finite.
        """
        transfer_s = max(elapsed_s - (rtt_s or 0.0), elapsed_s * _MIN_TRANSFER_FRACTION, 1e-6)
        self._samples.append(byte_count / transfer_s)
        self._value_bytes_s = median(self._samples)

    def value_bytes_s(self) -> float | None:
        return self._value_bytes_s


class Upkeep:
    """The messages that measure one link: Ping and Pong, bulk probe and echo.

    Facts in, messages to send out. A stamp that was never sent, or was answered before, is ignored.
    """

    def __init__(self, config: LinkConfig, now: float) -> None:
        self._config = config
        self._rtt = RttEstimator()
        self._goodput = GoodputEstimator()
        self._pings: dict[int, float] = {}
        self._probes: dict[int, float] = {}
        self._next_stamp = 1
        self._probe_due = now
        self._ping_due = now

    def tick(self, now: float, *, data_idle: bool) -> list[Message]:
        """Every `ping_interval_s`, the first time as the link comes up."""
        probe = self._probe(now, data_idle)
        if now < self._ping_due:
            return probe
        if self._rtt.count >= _PINGS_TO_SETTLE:
            self._ping_due = now + self._config.ping_settled_interval_s
        return [self.challenge(now), *probe]

    def received(self, message: Message, now: float, *, data_idle: bool) -> list[Message]:
        match message:
            case Ping(stamp):
                return [Pong(stamp)]
            case GoodputProbe(stamp):
                return [GoodputEcho(stamp)]
            case Pong(stamp):
                sent = self._pings.pop(stamp, None)
                if sent is not None:
                    self._rtt.sample(now - sent, now)
                return self._probe(now, data_idle)
            case GoodputEcho(stamp):
                sent = self._probes.pop(stamp, None)
                if sent is not None:
                    size = self._config.goodput_probe_bytes
                    self._goodput.sample(size, now - sent, self._rtt.value_s(now))
        return []

    def challenge(self, now: float) -> Ping:
        """One more ping, whose stamp its answer will carry."""
        return Ping(self._stamp(self._pings, now))

    def rtt_s(self, now: float) -> float | None:
        return self._rtt.value_s(now)

    def goodput_bytes_s(self) -> float | None:
        return self._goodput.value_bytes_s()

    def _probe(self, now: float, data_idle: bool) -> list[Message]:
        """A bulk probe when it is due, the round trip is known, and it would not queue."""
        size = self._config.goodput_probe_bytes
        if not size or not data_idle or now < self._probe_due or self._rtt.value_s(now) is None:
            return []
        self._probe_due = now + self._config.goodput_probe_interval_s
        return [GoodputProbe(self._stamp(self._probes, now), _bulk(size))]

    def _stamp(self, outstanding: dict[int, float], now: float) -> int:
        stamp = self._next_stamp
        self._next_stamp += 1
        outstanding[stamp] = now
        if len(outstanding) > _OUTSTANDING_MAX:
            del outstanding[next(iter(outstanding))]
        return stamp
