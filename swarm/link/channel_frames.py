"""What goes through the data channels of one pair: frames, credit, and whose turn it is. Pure.

A data channel takes whatever it is given and tells nothing of a reader that has stopped. So each
lane has a window: no more bytes of it are under way than the other side has granted. And little is
given to the channel at once, so that control need not wait behind rows.

    frame = kind u8 | rows of the lane, or the total granted (u64), or nothing
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from swarm.errors import RemoteProtocolError

PIECE_BYTES = 16 * 1024
"""Of a lane in one frame. Larger: less work a byte, and control waits longer."""
OUTSTANDING_BYTES = 2 * PIECE_BYTES
"""Given to the channel and not yet taken up by it, before rows must wait."""
OUTSTANDING_LIMIT_BYTES = 8 * PIECE_BYTES
"""The same before control must wait too."""
WINDOW_BYTES = 1024 * 1024
"""Of one lane and direction, sent and not yet read. Larger: more goodput over long round trips."""
_GRANT_BYTES = WINDOW_BYTES // 4
_TOTAL = struct.Struct(">Q")


class Kind(IntEnum):
    BYTES = 0
    GRANT = 1
    """How many bytes of the lane may have been sent in all."""
    END = 2
    """Nothing follows; what came before is to be read."""
    RESET = 3
    """The lane is broken off."""
    ALIVE = 4
    """There was nothing to say."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    data: bytes | memoryview = b""
    total: int = 0


def parse(frame: bytes) -> Frame:
    """Raises RemoteProtocolError for what is no frame."""
    if not frame or len(frame) > 1 + PIECE_BYTES or frame[0] > max(Kind):
        raise RemoteProtocolError("a frame of a data channel that is none")
    kind = Kind(frame[0])
    if kind is Kind.BYTES:
        return Frame(kind, memoryview(frame)[1:])
    if len(frame) != 1 + (_TOTAL.size if kind is Kind.GRANT else 0):
        raise RemoteProtocolError("a frame of a data channel of wrong length")
    return Frame(kind, total=_TOTAL.unpack(frame[1:])[0] if kind is Kind.GRANT else 0)


@dataclass(slots=True)
class Outgoing:
    """What one lane has to send."""

    waiting_bytes: int = 0
    _pieces: deque[memoryview] = field(default_factory=deque)
    _sent_total: int = 0
    _granted_total: int = WINDOW_BYTES
    _last: Kind | None = None
    """END or RESET, while it has not left."""
    is_over: bool = False
    """It has said its last."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self.is_over and self._last is None:
            self._pieces.append(memoryview(bytes(data)))
            self.waiting_bytes += len(data)

    def end(self) -> None:
        """After what was written."""
        if not self.is_over and self._last is None:
            self._last = Kind.END

    def reset(self) -> None:
        """Instead of it."""
        if not self.is_over:
            self._last = Kind.RESET
            self._pieces.clear()
            self.waiting_bytes = 0

    def granted(self, total: int) -> None:
        """Raises RemoteProtocolError for a grant beyond what the window can be."""
        if total > self._sent_total + WINDOW_BYTES:
            raise RemoteProtocolError("a grant of more than was ever sent")
        self._granted_total = max(self._granted_total, total)

    def next_frame(self) -> bytes | None:
        """None while it has nothing to send, or may not."""
        if not self._pieces:
            if self._last is None or self.is_over:
                return None
            self.is_over = True
            return bytes((self._last,))
        room = min(PIECE_BYTES, self._granted_total - self._sent_total)
        if room <= 0:
            return None
        parts: list[bytes | memoryview] = [bytes((Kind.BYTES,))]
        while self._pieces and room:
            piece = self._pieces.popleft()
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            parts.append(piece)
            room -= len(piece)
        frame = b"".join(parts)
        self._sent_total += len(frame) - 1
        self.waiting_bytes -= len(frame) - 1
        return frame


@dataclass(slots=True)
class Incoming:
    """What has come for one lane and not been read. `is_ended`: nothing follows."""

    is_ended: bool = False
    waiting_bytes: int = 0
    _pieces: deque[bytes | memoryview] = field(default_factory=deque)
    _read_total: int = 0
    _granted_total: int = WINDOW_BYTES

    def arrived(self, data: bytes | memoryview) -> None:
        """Raises RemoteProtocolError for more than was granted, or for what follows an end."""
        self.waiting_bytes += len(data)
        if self.is_ended or self._read_total + self.waiting_bytes > self._granted_total:
            raise RemoteProtocolError("more on a data channel than was granted")
        if data:
            self._pieces.append(data)

    def read(self, limit: int) -> bytes | memoryview:
        """At most so many bytes; empty when there are none."""
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        if len(piece) > limit:
            self._pieces.appendleft(memoryview(piece)[limit:])
            piece = memoryview(piece)[:limit]
        self._read_total += len(piece)
        self.waiting_bytes -= len(piece)
        return piece

    def grant(self) -> bytes | None:
        """The frame that is due when enough was read."""
        total = self._read_total + WINDOW_BYTES
        if self.is_ended or total - self._granted_total < _GRANT_BYTES:
            return None
        self._granted_total = total
        return bytes((Kind.GRANT,)) + _TOTAL.pack(total)


class Turns:
    """Which lane sends next: the first that has something. Rows wait where control need not."""

    def __init__(self, lanes: int) -> None:
        self.out = tuple(Outgoing() for _ in range(lanes))
        self.into = tuple(Incoming() for _ in range(lanes))

    def next_frame(self, outstanding_bytes: int) -> tuple[int, bytes] | None:
        """Lane and frame. `outstanding_bytes`: what the channel has not yet taken up."""
        if outstanding_bytes >= OUTSTANDING_LIMIT_BYTES:
            return None
        for lane, incoming in enumerate(self.into):
            if (frame := incoming.grant()) is not None:
                return lane, frame
        for lane, outgoing in enumerate(self.out):
            if lane and outstanding_bytes >= OUTSTANDING_BYTES:
                return None
            if (frame := outgoing.next_frame()) is not None:
                return lane, frame
        return None


class Pulse:
    """Whether the other side still is there: a datagram path does not tell of its own end.

    Ticks are counted, not seconds: a loop that stood still has not listened meanwhile.
    """

    def __init__(self, silent_ticks_max: int) -> None:
        self._silent_ticks_max = silent_ticks_max
        self._silent_ticks = 0
        self._has_sent = False

    def heard(self) -> None:
        self._silent_ticks = 0

    def sent(self) -> None:
        self._has_sent = True

    def tick(self) -> bool | None:
        """True: say that this side lives; False: nothing is to be done; None: nobody is there."""
        self._silent_ticks += 1
        if self._silent_ticks > self._silent_ticks_max:
            return None
        must_speak, self._has_sent = not self._has_sent, False
        return must_speak
