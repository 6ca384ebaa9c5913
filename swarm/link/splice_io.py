"""Two connections of a node in the middle made one: what comes in at one goes out at the other.

Neither is read faster than the other takes it, so that what waits here is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SplicePorts:
    """`passed`: told of bytes; answers how long to wait before more are read, seconds.

    `ended`: told once per half, when its connection is gone.
    """

    passed: Callable[[int], float]
    ended: Callable[[], None]


class Half(asyncio.BufferedProtocol):
    """One of the two. It reads nothing until it is joined to the other."""

    def __init__(
        self, transport: asyncio.Transport, rest: bytes, buffer_bytes: int, ports: SplicePorts
    ) -> None:
        """`rest`: bytes that came already."""
        self._transport = transport
        self._rest = rest
        self._ports = ports
        self._other: Half | None = None
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._is_full = False
        self._is_over = False
        self._paced: asyncio.TimerHandle | None = None
        transport.pause_reading()
        transport.set_write_buffer_limits(high=buffer_bytes)
        transport.set_protocol(self)

    def join(self, other: Half) -> None:
        self._other, other._other = other, self
        self._begin()
        other._begin()

    def abort(self) -> None:
        self._transport.abort()

    # ------------------------------------------------------------ what the loop calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._pass_on(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        self._end_other()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            if self._paced is not None:
                self._paced.cancel()
            self._end_other()
            self._ports.ended()

    def pause_writing(self) -> None:
        self._is_full = True
        if self._other is not None:
            self._other._read_or_rest()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._other is not None:
            self._other._read_or_rest()

    # ------------------------------------------------------------ inside

    def _begin(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._pass_on(rest)
        self._read_or_rest()

    def _pass_on(self, data: bytes) -> None:
        if self._other is None or self._is_over:
            return
        self._other._transport.write(data)
        wait_s = self._ports.passed(len(data))
        if wait_s > 0.0 and self._paced is None:
            loop = asyncio.get_running_loop()
            self._paced = loop.call_later(wait_s, self._waited)
            self._read_or_rest()

    def _waited(self) -> None:
        self._paced = None
        self._read_or_rest()

    def _read_or_rest(self) -> None:
        if self._is_over or self._other is None:
            return
        if self._other._is_full or self._paced is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _end_other(self) -> None:
        """What it was given still leaves."""
        if self._other is not None and not self._other._is_over:
            self._other._transport.close()
