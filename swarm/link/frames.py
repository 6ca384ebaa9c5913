"""Sealed frames on a byte stream: length, then AEAD ciphertext.

    length  u32, of the ciphertext, additional data of the AEAD | ciphertext with its 16-byte tag

The nonce is a 64-bit counter that is not sent: it rises by exactly one per frame and direction, so
a frame that is lost, repeated or moved does not open. After `rekey_frames` frames both sides take
a new key by the Noise rekey rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidTag

from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.link.noise import TAG_BYTES, Bytes, Cipher
from swarm.link.suite import NOISE, Suite
from swarm.messages import (
    BULK_FRAME_LIMIT,
    CONTROL_FRAME_LIMIT,
    DATA_FRAME_LIMIT,
    RELAY_FRAME_LIMIT,
    Lane,
    Message,
    encode,
)

LENGTH = struct.Struct(">I")
LENGTH_BYTES = LENGTH.size
FRAME_LIMITS = {
    Lane.CONTROL: CONTROL_FRAME_LIMIT,
    Lane.DATA: DATA_FRAME_LIMIT,
    Lane.BULK: BULK_FRAME_LIMIT,
    Lane.RELAY: RELAY_FRAME_LIMIT,
}
"""Plaintext bytes of one frame."""
BUFFER_BYTES = 128 * 1024
FIRST_BYTES = 4 * 1024
_JOIN_BELOW = 16 * 1024
"""Below this a frame is one buffer (one system call); above, copying it costs more than a call."""
_MIN_SPACE = 4096
_SMALL_READS_TO_SHRINK = 1024
_pack_length = LENGTH.pack
_unpack_length = LENGTH.unpack_from

Piece = bytes | memoryview
Encode = Callable[[Message], list[Piece]]
"""What `messages.encode` is to its callers."""


class Sealer:
    """Makes frames, in sending order."""

    __slots__ = ("_limit", "_rekey_frames", "_state")

    def __init__(
        self, cipher: Cipher, key: bytes, lane: Lane, rekey_frames: int, suite: Suite = NOISE
    ) -> None:
        self._state = suite.frames(cipher, key)
        self._limit = FRAME_LIMITS[lane]
        self._rekey_frames = rekey_frames

    def seal(self, pieces: Sequence[Piece]) -> list[bytes]:
        """One frame with the pieces' bytes, as buffers to be written one after the other.

        Raises LocalProtocolError when they are too many for the lane.
        """
        plaintext = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        size = len(plaintext)
        if size > self._limit:
            raise LocalProtocolError(f"a frame of {size} bytes, limit {self._limit}")
        state = self._state
        header = _pack_length(size + TAG_BYTES)
        sealed = state.encrypt(header, plaintext)
        if self._rekey_frames and state.nonce % self._rekey_frames == 0:
            state.rekey()
        return [header + sealed] if size < _JOIN_BELOW else [header, sealed]


class Opener:
    """Opens frames, in the order they were sealed."""

    __slots__ = ("_rekey_frames", "_state")

    def __init__(self, cipher: Cipher, key: bytes, rekey_frames: int, suite: Suite = NOISE) -> None:
        self._state = suite.frames(cipher, key)
        self._rekey_frames = rekey_frames

    def open(self, body: memoryview) -> Bytes:
        """The plaintext of one frame's ciphertext, good as long as that. Raises
        RemoteProtocolError."""
        state = self._state
        try:
            plaintext = state.decrypt(_pack_length(len(body)), body)
        except InvalidTag as error:
            raise RemoteProtocolError("a frame is forged, repeated or out of order") from error
        if self._rekey_frames and state.nonce % self._rekey_frames == 0:
            state.rekey()
        return plaintext


class Encoder:
    """`encode` that does its work once for a message that goes to several peers in a row."""

    __slots__ = ("_encode", "_message", "_pieces")

    def __init__(self, encode: Encode = encode) -> None:
        self._encode = encode
        self._message: Message | None = None
        self._pieces: list[Piece] = []

    def __call__(self, message: Message) -> list[Piece]:
        """The message's bytes; good until the next call. Payloads are not kept."""
        if message is self._message:
            return self._pieces
        pieces = self._encode(message)
        if len(pieces) == 1:
            self._message, self._pieces = message, pieces
        return pieces


class FrameBuffer:
    """Cuts a byte stream into frames in place: the socket writes into it, frames are views of it.

    Begins small, and grows while reads fill it or a larger frame is under way, never beyond what
    `limit` (the largest body allowed now) calls for. It shrinks again after many reads without a
    large frame.
    """

    __slots__ = (
        "_buffer",
        "_capacity",
        "_end",
        "_small_reads",
        "_start",
        "_usual",
        "_view",
        "limit",
    )

    def __init__(self, limit: int) -> None:
        self._start = 0
        self._end = 0
        self._small_reads = 0
        self.allow(limit)
        self._capacity = min(FIRST_BYTES, self._usual)
        self._buffer = bytearray(self._capacity)
        self._view = memoryview(self._buffer)

    def allow(self, limit: int) -> None:
        """From now on bodies may have up to `limit` bytes."""
        self.limit = limit
        self._usual = min(BUFFER_BYTES, LENGTH_BYTES + limit)

    def space(self) -> memoryview:
        """Where the next bytes go: never empty. Ends the life of every view given out before."""
        capacity = self._capacity
        if self._start == self._end and capacity <= self._usual:
            self._start = self._end = 0
            return self._view
        held = self._end - self._start
        wanted = max(self._pending_bytes(), held + 1)
        self._small_reads = self._small_reads + 1 if wanted <= self._usual else 0
        idle = capacity > self._usual and self._small_reads > _SMALL_READS_TO_SHRINK
        if idle:
            self._move_into(bytearray(self._usual))
        elif capacity < wanted:
            self._move_into(bytearray(max(wanted, min(self._usual, 4 * capacity))))
        elif held == 0:
            self._start = self._end = 0
        elif self._start and self._start + max(wanted, held + _MIN_SPACE) > capacity:
            self._move_into(self._buffer)
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """`count` bytes were written at the start of `space()`."""
        self._end += count
        if self._end == self._capacity < self._usual:
            self._move_into(bytearray(min(self._usual, 4 * self._capacity)))

    def next_body(self) -> memoryview | None:
        """The next whole frame's ciphertext; None until more bytes come.

        The view is good until `space()` is asked for. Raises RemoteProtocolError for a length
        that no frame may have here.
        """
        start, held = self._start, self._end - self._start
        if held < LENGTH_BYTES:
            return None
        length = _unpack_length(self._buffer, start)[0]
        if length > self.limit:
            raise RemoteProtocolError(f"a frame claims {length} bytes, limit {self.limit}")
        size = LENGTH_BYTES + length
        if held < size:
            return None
        self._start = start + size
        return self._view[start + LENGTH_BYTES : start + size]

    def take_rest(self) -> bytes:
        """What came after the last whole body. The stream is somebody else's from here on."""
        rest = bytes(self._view[self._start : self._end])
        self._start = self._end = 0
        return rest

    def _pending_bytes(self) -> int:
        """Size of the frame under way, length field included; 0 where unknown or not allowed."""
        if self._end - self._start < LENGTH_BYTES:
            return 0
        (length,) = _unpack_length(self._buffer, self._start)
        return LENGTH_BYTES + int(length) if length <= self.limit else 0

    def _move_into(self, target: bytearray) -> None:
        held = self._end - self._start
        view = memoryview(target)
        view[:held] = self._view[self._start : self._end]
        self._buffer, self._view, self._capacity = target, view, len(target)
        self._start, self._end = 0, held
