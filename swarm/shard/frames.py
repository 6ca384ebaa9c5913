"""Frames on the socketpair between daemon and worker: u32 little-endian length, then the message.

Both sides use these; `messages.py` says what is in a frame.
"""

from __future__ import annotations

import struct

from swarm.errors import RemoteProtocolError
from swarm.messages import PAYLOAD_LIMIT, WORKER_MESSAGES, Message, decode, encode

_LENGTH = struct.Struct("<I")
_START_BYTES = 256 * 1024
FRAME_LIMIT = PAYLOAD_LIMIT + 128 * 1024
"""Whatever can be encoded fits: a head has at most 64 KiB. (A peer's step of the largest size
becomes a `Run` that is a little larger.)"""


def pack(message: Message) -> list[bytes | memoryview]:
    """The buffers to write, one after the other."""
    buffers = encode(message)
    return [_LENGTH.pack(sum(len(buffer) for buffer in buffers)), *buffers]


class FrameReader:
    """Collects bytes in one growing buffer and gives the messages that are complete.

    Write into `space()`, then tell `filled(count)` how many bytes came.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_START_BYTES)
        self._start = 0
        self._stop = 0

    def space(self) -> memoryview:
        """Room for the next bytes; never empty."""
        need = max(self._frame_bytes(), _START_BYTES // 4)
        if len(self._buffer) - self._start < need or self._stop == len(self._buffer):
            self._move(need)
        return memoryview(self._buffer)[self._stop :]

    def filled(self, count: int) -> list[Message]:
        """Messages that are complete now.

        Raises RemoteProtocolError on a frame over the limit or a message that does not decode.
        """
        self._stop += count
        messages: list[Message] = []
        while (size := self._frame_bytes()) and self._stop - self._start >= size:
            frame = memoryview(self._buffer)[self._start + _LENGTH.size : self._start + size]
            message = decode(frame, WORKER_MESSAGES, None)
            frame.release()
            self._start += size
            if message is not None:
                messages.append(message)
        if self._start == self._stop:
            self._start = self._stop = 0
        return messages

    def _frame_bytes(self) -> int:
        """Size of the frame at the start, its length field included; 0 while unknown."""
        if self._stop - self._start < _LENGTH.size:
            return 0
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        if size > FRAME_LIMIT:
            raise RemoteProtocolError(f"a frame of {size} bytes between daemon and worker")
        return int(size) + _LENGTH.size

    def _move(self, need: int) -> None:
        """Bring what waits to the front of a buffer that has room for `need` bytes."""
        waiting = bytes(memoryview(self._buffer)[self._start : self._stop])
        if len(self._buffer) < need + _LENGTH.size or len(waiting) == len(self._buffer):
            self._buffer = bytearray(max(2 * len(self._buffer), need + _LENGTH.size))
        self._buffer[: len(waiting)] = waiting
        self._start, self._stop = 0, len(waiting)
