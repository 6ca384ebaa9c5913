"""The lanes of one channel as transports of the event loop: what a connection takes for a socket.

A pipe is a wire that stands, with a transport for each lane. Its end at either side is that of its
lanes; while one lives it says so, and listens for the other side to do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swarm.errors import RemoteProtocolError
from swarm.link.channel_frames import Incoming, Kind, Outgoing, Pulse, Turns, parse
from swarm.link.channel_port import LANES, Wire, WireEvents

TICK_S = 0.5
SILENT_TICKS_MAX = 4
"""Two seconds without a sound end a channel: as long as TCP may wait for an acknowledgement."""
_LINGER_S = 1.0
"""How long an end may wait for the other end's lanes to close as well."""
_BUFFER_BYTES = 64 * 1024
"""Of a lane, waiting for its turn, before its owner is asked to hold back; owners choose theirs."""


@dataclass(frozen=True, slots=True)
class PipeEvents:
    """`arrives`: takes the lane that the other end has begun. `gone`: told once, at its end."""

    arrives: Callable[[LaneTransport], None]
    gone: Callable[[Pipe], None]


class Pipe:
    """Both ends of its life are told: `open` begins it, `PipeEvents.gone` ends it."""

    def __init__(self, wire: Wire, events: PipeEvents) -> None:
        self.wire = wire
        self._events = events
        self._turns = Turns(LANES)
        self._pulse = Pulse(SILENT_TICKS_MAX)
        self._lanes = [
            LaneTransport(self, number, self._turns.out[number], self._turns.into[number])
            for number in range(LANES)
        ]
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pumping: asyncio.Handle | None = None
        self.is_over = False

    @property
    def wire_events(self) -> WireEvents:
        return WireEvents(self._arrived, self.pump_soon, self.end)

    def open(self, wait_s: float) -> None:
        """The wire stands. `wait_s`: how long the first lane may take to begin."""
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._loop.call_later(wait_s, self._expect_use)
        self.pump_soon()

    def lane(self, number: int) -> LaneTransport:
        return self._lanes[number]

    def pump_soon(self) -> None:
        """Several writes in one turn of the loop become one frame."""
        if self._pumping is None and not self.is_over:
            self._pumping = self._loop.call_soon(self._pump)

    def lane_ended(self) -> None:
        """A lane is done here: when all are, the pipe ends as soon as the other side is done."""
        begun = [lane for lane in self._lanes if lane.is_begun]
        if self.is_over or not all(lane.is_over for lane in begun):
            return
        if all(self._turns.into[lane.number].is_ended for lane in begun):
            self._loop.call_soon(self.end, "both ends have closed it")
        else:
            self._loop.call_later(_LINGER_S, self.end, "this end has closed it")

    def end(self, cause: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        for handle in (self._timer, self._pumping):
            if handle is not None:
                handle.cancel()
        for lane in self._lanes:
            lane.lost(OSError(cause))
        self._events.gone(self)

    def _pump(self) -> None:
        self._pumping = None
        while not self.is_over:
            found = self._turns.next_frame(self.wire.outstanding_bytes)
            if found is None:
                break
            self._pulse.sent()
            self.wire.send(*found)
        for lane in self._lanes:
            lane.left()

    def _arrived(self, number: int, data: bytes) -> None:
        if self.is_over:
            return
        self._pulse.heard()
        lane = self._lanes[number]
        try:
            frame = parse(data)
            match frame.kind:
                case Kind.BYTES:
                    if not lane.is_begun:
                        self._events.arrives(lane)
                    lane.arrived(frame.data)
                case Kind.GRANT:
                    self._turns.out[number].granted(frame.total)
                    self.pump_soon()
                case Kind.END | Kind.RESET:
                    lane.ended_there(is_reset=frame.kind is Kind.RESET)
                    self.lane_ended()
                case Kind.ALIVE:
                    pass
        except RemoteProtocolError as error:
            self.end(str(error))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        must_speak = self._pulse.tick()
        if must_speak is None:
            self.end("nothing comes through the channel any more")
        elif must_speak:
            self.wire.send(0, bytes((Kind.ALIVE,)))

    def _expect_use(self) -> None:
        if not any(lane.is_begun for lane in self._lanes):
            self.end("the channel was not used")


class LaneTransport(asyncio.Transport):
    """One lane. Like any transport it tells its protocol of its end once, and never at once."""

    def __init__(self, pipe: Pipe, number: int, out: Outgoing, into: Incoming) -> None:
        super().__init__()
        self.number = number
        self.is_begun = False
        self.is_over = False
        """Its protocol is told, or about to be told, that it has ended."""
        self._pipe = pipe
        self._out = out
        self._into = into
        self._protocol: asyncio.BufferedProtocol | None = None
        self._high_bytes = _BUFFER_BYTES
        self._is_full = False
        self._is_paused = False
        self._is_reading = False
        self._is_closing = False
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------ what a protocol may do

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self._protocol = protocol
        self.is_begun = True
        self._loop.call_soon(self._read)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """It has no socket of its own."""
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.is_over:
            return
        self._out.write(data)
        self._pipe.pump_soon()
        if self._out.waiting_bytes > self._high_bytes and not self._is_full:
            self._is_full = True
            self.get_protocol().pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._out.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _BUFFER_BYTES if high is None else high

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._read)

    def is_closing(self) -> bool:
        return self._is_closing or self.is_over

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self._out.end()
            self._pipe.pump_soon()

    def abort(self) -> None:
        if not self.is_over:
            self._out.reset()
            self._over(None)

    # ------------------------------------------------------------ what the pipe tells

    def arrived(self, data: bytes | memoryview) -> None:
        self._into.arrived(data)
        self._read()

    def ended_there(self, *, is_reset: bool) -> None:
        self._into.is_ended = True
        if is_reset:
            self._out.reset()
            self._over(ConnectionResetError("connection reset"))
        else:
            self._read()

    def left(self) -> None:
        """Some of what was written may have left."""
        if self._is_full and self._out.waiting_bytes <= self._high_bytes // 4 and not self.is_over:
            self._is_full = False
            self.get_protocol().resume_writing()
        if self._is_closing and self._out.is_over:
            self._over(None)

    def lost(self, error: Exception | None) -> None:
        """The pipe has ended, or this lane of it."""
        if not self.is_over:
            self.is_over = True
            if self._protocol is not None:
                self._loop.call_soon(self._protocol.connection_lost, error)

    # ------------------------------------------------------------ inside

    def _read(self) -> None:
        """Hand on what has come, as long as it is taken."""
        protocol = self._protocol
        if protocol is None or self._is_reading:
            return
        self._is_reading = True
        while self._into.waiting_bytes and not (self._is_paused or self.is_over):
            space = memoryview(protocol.get_buffer(self._into.waiting_bytes))
            data = self._into.read(len(space))
            space[: len(data)] = data
            protocol.buffer_updated(len(data))
        self._is_reading = False
        if self.is_over:
            return
        self._pipe.pump_soon()
        if self._into.is_ended and not self._into.waiting_bytes:
            protocol.eof_received()
            self._out.end()
            self._over(None)

    def _over(self, error: Exception | None) -> None:
        """Done here; what this side still has to say leaves."""
        self._pipe.pump_soon()
        if not self.is_over:
            self.lost(error)
            self._pipe.lane_ended()
