"""One direction between two machines: what its packets meet, and whose turn it is to send.

A `Line` is a wire with a rate. Paths that share an access link share its line. While little is
booked ahead, segments pass at once; beyond that the connections with bulk take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sims.machine import SECOND_NS, Machine
from sims.wire import (
    PACKET_BYTES,
    TABLE_SIZE,
    Profile,
    Radio,
    delays_ns,
    packets_until_loss,
)

if TYPE_CHECKING:
    from sims.loop import SimLoop
    from sims.pipe import Pipe

BOOKED_AHEAD_NS = 2_000_000
"""A line booked further than this is busy: connections take turns. Below it the error of sending
in the order of asking is smaller than what a busy switch does anyway."""


class Line:
    """A wire in one direction, served in turns (round robin of segments) while it is busy."""

    __slots__ = ("_is_serving", "_loop", "_waiting", "free_ns", "ns_per_byte", "segment_bytes")

    def __init__(self, loop: SimLoop, profile: Profile) -> None:
        self._loop = loop
        self._waiting: deque[Pipe] = deque()
        self._is_serving = False
        self.free_ns = 0
        """Until when it is booked."""
        self.set_profile(profile)

    def set_profile(self, profile: Profile) -> None:
        self.ns_per_byte = SECOND_NS / profile.bandwidth_bytes_s
        self.segment_bytes = profile.segment_bytes

    def book(self, now_ns: int, size: int) -> int:
        """Send `size` bytes next; when the last of them has left."""
        start_ns = self.free_ns if self.free_ns > now_ns else now_ns
        self.free_ns = start_ns + int(size * self.ns_per_byte)
        return self.free_ns

    def join(self, pipe: Pipe) -> None:
        """`pipe` has queued something and is in no line yet."""
        self._waiting.append(pipe)
        pipe.is_waiting = True
        if not self._is_serving:
            self._serve()

    def _serve(self) -> None:
        now_ns = self._loop.now_ns
        waiting = self._waiting
        while waiting and self.free_ns <= now_ns + BOOKED_AHEAD_NS:
            pipe = waiting.popleft()
            if pipe.send_queued():
                waiting.append(pipe)
            else:
                pipe.is_waiting = False
        self._is_serving = bool(waiting)
        if waiting:
            next_ns = self.free_ns - BOOKED_AHEAD_NS // 2
            self._loop.post(next_ns, self._loop.world, self._serve)


class Path:
    """All that is common to what one machine sends to another."""

    __slots__ = (
        "back",
        "delays",
        "extra_ns",
        "is_cut",
        "is_dial_forbidden",
        "is_troubled",
        "line",
        "loss",
        "profile",
        "radios",
        "random",
        "source",
        "target",
        "until_loss",
    )

    back: Path

    def __init__(self, source: Machine, target: Machine, random: Callable[[], float]) -> None:
        self.source = source
        self.target = target
        self.random = random
        self.is_cut = False
        self.extra_ns = 0
        """What a clog adds to the latency."""
        self.is_dial_forbidden = False
        self.is_troubled = False
        """Whether anything about this path or the way back is out of the ordinary."""

    def configure(self, profile: Profile, line: Line, radios: tuple[Radio, ...]) -> None:
        self.profile = profile
        self.line = line
        self.radios = radios
        self.delays = delays_ns(profile)
        self.loss = profile.loss
        self.plan_loss()

    def changed(self) -> None:
        """Cuts or clogs have changed, here or on the way back."""
        for path in (self, self.back):
            both = (path, path.back)
            path.is_troubled = any(p.is_cut or p.extra_ns > 0 for p in both)

    @property
    def is_passable(self) -> bool:
        """Whether a packet sent now arrives, if it is not lost by chance."""
        return not self.is_cut and self.source.is_on_air and self.target.is_on_air

    @property
    def is_acknowledged(self) -> bool:
        """Whether news of what arrives comes back."""
        return self.back.is_passable

    def loses(self, size: int) -> bool:
        """Draw: is any packet of a segment lost?"""
        self.until_loss -= 1 + size // PACKET_BYTES
        if self.until_loss >= 0:
            return False
        self.plan_loss()
        return True

    def plan_loss(self) -> None:
        """Draw how many packets pass before the next is lost."""
        self.until_loss = packets_until_loss(self.loss, self.random)

    @property
    def typical_ns(self) -> int:
        """One way, without drawing."""
        return self.delays[TABLE_SIZE // 2] + self.extra_ns

    def arrival_ns(self, sent_ns: int) -> int:
        """When a packet that left at `sent_ns` arrives."""
        at_ns = sent_ns + self.delays[int(self.random() * TABLE_SIZE)] + self.extra_ns
        return self.held(sent_ns, at_ns) if self.radios else at_ns

    def held(self, sent_ns: int, at_ns: int) -> int:
        """The same, where a wireless link may stall on the way."""
        for radio in self.radios:
            if sent_ns >= radio.next_ns:
                at_ns = max(at_ns, radio.held_until(sent_ns))
        return at_ns
