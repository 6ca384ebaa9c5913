"""The transports of simulated TCP connections: asyncio's interface over two pipes.

As with real ones, `abort` drops what the transport still holds and closes the socket: the kernel
delivers what it has taken and then says FIN, or RST where it holds bytes that nobody read.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from sims.machine import SECOND_NS
from sims.pipe import OUTSTANDING_BYTES_MAX, RST, Chunk, Pipe
from sims.sockets import End, Keepalive, SimSocket, error

if TYPE_CHECKING:
    from sims.loop import SimLoop
    from sims.machine import Process

SHUT_WINDOW_EXTRA_NS = 330_000_000
"""TCP_USER_TIMEOUT fires this much late where the other end does not read (measured)."""
HIGH_WATER_BYTES = 64 * 1024
"""asyncio's default for `set_write_buffer_limits`."""


class SimTransport(asyncio.Transport):
    """One end of a connection. `out` and `inp` are set right after it is made."""

    out: Pipe
    inp: Pipe

    def __init__(
        self, loop: SimLoop, process: Process, local: End, remote: End, forget: Callable[..., None]
    ) -> None:
        super().__init__()
        self.loop = loop
        self.process = process
        self.local = local
        self.remote = remote
        self.heard_ns = loop.now_ns
        """When something last came from the other end."""
        self.user_timeout_ns = 0
        self.keepalive = Keepalive(self)
        self.is_shut = False
        """Whether the kernel has closed the socket."""
        self.arrived: deque[tuple[bytes, int]] = deque()
        """What the kernel holds while the program does not read; then FIN or RST as a number."""
        self._end_arrived = 0
        self._forget = forget
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_buffered = False
        self._reads = False
        """Whether bytes go to the protocol as they come."""
        self._is_paused = False
        self._is_closing = False
        self._is_eof_written = False
        self._is_lost = False
        """Whether `connection_lost` was called or soon is."""
        self._unsent: deque[Chunk] = deque()
        self._unsent_size = 0
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._is_writing_paused = False

    def __repr__(self) -> str:
        return f"<connection {self.local} to {self.remote}>"

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """In its process: the program has the connection now."""
        self.set_protocol(protocol)
        self._reads = not self._is_paused
        protocol.connection_made(self)
        if self.arrived or self._end_arrived:
            self.loop.call_soon(self._drain)

    # ------------------------------------------------------------ asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "peername":
                return self.remote
            case "sockname":
                return self.local
            case "socket":
                return SimSocket(self.local, self.remote, self)
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_closing and not self._is_paused

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._is_paused = True
            self._reads = False

    def resume_reading(self) -> None:
        if self._is_closing or not self._is_paused:
            return
        self._is_paused = False
        self._reads = True
        if self.arrived or self._end_arrived:
            self.loop.call_soon(self._drain)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if type(data) is not bytes:
            if not isinstance(data, bytes | bytearray | memoryview):
                raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
            data = bytes(data)
        if self._is_eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        size = len(data)
        if not size or self._is_closing:
            return
        out = self.out
        if self._unsent_size or out.outstanding + size > OUTSTANDING_BYTES_MAX:
            self._hold(data, size)
        else:
            out.send(data, size)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low
        self._pause_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent_size

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._is_closing or self._is_eof_written:
            return
        self._is_eof_written = True
        if not self._unsent_size:
            self.out.finish()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._reads = False
        if not self._unsent_size:
            self._lose(None)

    def abort(self) -> None:
        self._force_close(None)

    # ------------------------------------------------------------ writing

    def _hold(self, data: bytes, size: int) -> None:
        """The kernel takes a part, or nothing; the rest stays here."""
        room = 0 if self._unsent_size else OUTSTANDING_BYTES_MAX - self.out.outstanding
        chunk: Chunk = data
        if room > 0:
            view = memoryview(data)
            self.out.send(view[:room], room)
            chunk, size = view[room:], size - room
        self._unsent.append(chunk)
        self._unsent_size += size
        if len(self._unsent) == 1:
            self._fear_shut_window()
        self._pause_if_full()

    @property
    def has_unsent(self) -> bool:
        return self._unsent_size > 0

    def flush(self) -> None:
        """In its process: the kernel has room again."""
        out, unsent = self.out, self._unsent
        if self.is_shut:
            return
        while unsent and (room := OUTSTANDING_BYTES_MAX - out.outstanding) > 0:
            chunk = unsent.popleft()
            if len(chunk) > room:
                view = memoryview(chunk)
                chunk = view[:room]
                unsent.appendleft(view[room:])
            self._unsent_size -= len(chunk)
            out.send(chunk, len(chunk))
        if self._is_writing_paused and self._unsent_size <= self._low and not self._is_lost:
            self._is_writing_paused = False
            self.get_protocol().resume_writing()
        if not self._unsent_size:
            if self._is_closing:
                self._lose(None)
            elif self._is_eof_written:
                out.finish()

    def _pause_if_full(self) -> None:
        if self._unsent_size > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self.get_protocol().pause_writing()

    def _fear_shut_window(self) -> None:
        """TCP_USER_TIMEOUT also counts time in which the other end does not read."""
        if self.user_timeout_ns:
            self.out.room_ns = self.loop.now_ns
            self._watch_window()

    def _watch_window(self) -> None:
        if self.is_shut or not self._unsent_size:
            return
        due_ns = self.out.room_ns + self.user_timeout_ns + SHUT_WINDOW_EXTRA_NS
        if due_ns <= self.loop.now_ns:
            self.out.give_up()
        else:
            self.loop.post(due_ns, self.loop.world, self._watch_window)

    # ------------------------------------------------------------ what arrives

    def take(self, data: Chunk, size: int) -> None:
        """In its process: bytes have come."""
        if self._reads and not self.arrived:
            self._feed(data, size)
        elif not self.is_shut:
            self.arrived.append((bytes(data), size))

    def take_end(self, kind: int) -> None:
        """In its process: FIN or RST has come."""
        if self.is_shut:
            return
        if self._is_closing and kind == RST:
            self._break(error(errno.ECONNRESET))
        elif self._reads and not self.arrived:
            self._feed_end(kind)
        else:
            self._end_arrived = max(kind, self._end_arrived)

    def _drain(self) -> None:
        while self.arrived and self._reads:
            self._feed(*self.arrived.popleft())
        if self._reads and not self.arrived and self._end_arrived:
            kind, self._end_arrived = self._end_arrived, 0
            self._feed_end(kind)

    def _feed(self, data: Chunk, size: int) -> None:
        self.inp.read(size)
        try:
            if self._is_buffered:
                self._feed_buffers(data, size)
            else:
                whole = data if type(data) is bytes else bytes(data)
                cast(asyncio.Protocol, self._protocol).data_received(whole)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as fault:  # noqa: BLE001 - a faulty protocol costs its connection
            self._fatal(fault)

    def _feed_buffers(self, data: Chunk, size: int) -> None:
        protocol: asyncio.BufferedProtocol = self._protocol  # type: ignore[assignment]
        buffer: memoryview = protocol.get_buffer(-1)  # type: ignore[assignment]
        if len(buffer) >= size:
            buffer[:size] = data
            protocol.buffer_updated(size)
            return
        done = 0
        while done < size:
            if not self._reads:
                self.arrived.appendleft((bytes(data[done:]), size - done))
                self.inp.outstanding += size - done
                return
            buffer = cast(memoryview, protocol.get_buffer(-1))
            count = min(len(buffer), size - done)
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:count] = data if count == size else data[done : done + count]
            protocol.buffer_updated(count)
            done += count

    def _feed_end(self, kind: int) -> None:
        if kind == RST:
            self._break(error(errno.ECONNRESET))
            return
        try:
            keeps_open = cast(asyncio.Protocol, self._protocol).eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as fault:  # noqa: BLE001 - a faulty protocol costs its connection
            self._fatal(fault)
            return
        if not keeps_open:
            self.close()

    def _fatal(self, fault: BaseException) -> None:
        self.loop.call_exception_handler(
            {"message": "Fatal error in a protocol", "exception": fault, "transport": self}
        )
        self._force_close(fault)

    # ------------------------------------------------------------ the end

    def _force_close(self, fault: BaseException | None) -> None:
        self._unsent.clear()
        self._unsent_size = 0
        self._is_closing = True
        self._reads = False
        self._lose(fault)

    def _lose(self, fault: BaseException | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.loop.call_soon(self._tell_lost, fault)

    def _tell_lost(self, fault: BaseException | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(cast("Exception | None", fault))
        finally:
            self.shut()
            self._protocol = None

    def _break(self, fault: OSError) -> None:
        """In its process: the connection is no more."""
        self._end(False)
        self._force_close(fault)

    def break_with(self, number: int) -> None:
        """From outside, now: an error ends it, and nothing is sent any more."""
        if not self.is_shut:
            self._end(False)
            loop = self.loop
            loop.post(loop.now_ns, self.process, self._force_close, error(number))

    def time_out(self) -> None:
        """The kernel gives up; the other end is told nothing."""
        if not self.is_shut:
            self.break_with(errno.ETIMEDOUT)
            self.inp.sender.keepalive.watch()

    def shut(self, *, rudely: bool = False) -> None:
        """The kernel closes the socket. `rudely`: by RST, whatever was read."""
        if self.is_shut:
            return
        if rudely or self.arrived or self.inp.has_unread:
            self.out.reset()
        else:
            self.out.finish()
        self._end(True)

    def vanish(self) -> None:
        """Its machine has lost power."""
        if not self.is_shut:
            self._end(False, vanished=True)
            self.inp.sender.keepalive.watch()

    def _end(self, is_orderly: bool, *, vanished: bool = False) -> None:
        """The kernel forgets the socket."""
        if self.is_shut:
            return
        self.is_shut = True
        self.keepalive.cancel()
        self.arrived.clear()
        if not self.process.is_alive:
            self._protocol = None
        if not is_orderly:
            self.out.drop()
        if vanished:
            self.inp.vanish()
        else:
            self.inp.refuse()
        self._forget(self)

    # ------------------------------------------------------------ the kernel's view

    @property
    def alive_ns(self) -> int:
        """When the other end last gave a sign of life, acknowledgements included."""
        out = self.out
        return self.heard_ns if out.recovery.unacked_ns >= 0 else max(self.heard_ns, out.sent_ns)

    def set_option(self, level: int, option: int, value: int) -> None:
        keepalive = self.keepalive
        if level == socket.SOL_SOCKET:
            if option == socket.SO_KEEPALIVE:
                keepalive.is_on = bool(value)
                if self.out.path.is_troubled:
                    keepalive.watch()
            return
        if level != socket.IPPROTO_TCP:
            return
        if option == socket.TCP_USER_TIMEOUT:
            self.user_timeout_ns = value * 1_000_000
            self.out.recovery.rearm()
        elif option == socket.TCP_KEEPIDLE:
            keepalive.idle_ns = value * SECOND_NS
        elif option == socket.TCP_KEEPINTVL:
            keepalive.interval_ns = value * SECOND_NS
        elif option == socket.TCP_KEEPCNT:
            keepalive.count = value
