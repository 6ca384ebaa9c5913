"""How good a link is: round trip time and goodput from few samples. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

_RTT_SAMPLES = 16
_RTT_AGE_S = 60.0
_RTT_QUANTILE = 0.2
_GOODPUT_SAMPLES = 5
_MIN_TRANSFER_FRACTION = 0.1


class RttEstimator:
    """Low quantile over a window with an age limit, so that one bad sample excludes nobody.

    Queues and busy loops only ever add to a round trip: the low end is the path itself.
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_RTT_SAMPLES)

    def sample(self, rtt_s: float, now: float) -> None:
        self._samples.append((now, max(0.0, rtt_s)))

    def value_s(self, now: float) -> float | None:
        """None until measured. Samples beyond the age limit count only when nothing newer is."""
        if not self._samples:
            return None
        recent = sorted(rtt for at, rtt in self._samples if now - at <= _RTT_AGE_S)
        if not recent:
            return self._samples[-1][1]
        return recent[int((len(recent) - 1) * _RTT_QUANTILE)]


class GoodputEstimator:
    """Median rate of the recent bulk probes in one direction."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_GOODPUT_SAMPLES)

    def sample(self, byte_count: int, elapsed_s: float, rtt_s: float | None) -> None:
        """`elapsed_s`: from sending the bulk until its echo; one round trip of it is no transfer.

        On fast links the round trip is most of it; the floor keeps the figure finite.
        """
        transfer_s = max(elapsed_s - (rtt_s or 0.0), elapsed_s * _MIN_TRANSFER_FRACTION, 1e-6)
        self._samples.append(byte_count / transfer_s)

    def value_bytes_s(self) -> float | None:
        return median(self._samples) if self._samples else None
