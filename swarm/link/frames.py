"""Sealed frames on a byte stream: length, then AEAD ciphertext.

    length  u32, of the ciphertext, additional data of the AEAD | ciphertext with its 16-byte tag

The nonce is a 64-bit counter that is not sent: it rises by exactly one per frame and direction, so
a frame that is lost, repeated or moved does not open. After `rekey_frames` frames both sides take
a new key by the Noise rekey rule.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag

from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.link.noise import TAG_BYTES, Cipher
from swarm.link.suite import NOISE, FrameState, Suite
from swarm.messages import CONTROL_FRAME_LIMIT, DATA_FRAME_LIMIT, Lane

LENGTH = struct.Struct(">I")
LENGTH_BYTES = LENGTH.size
FRAME_LIMITS = {Lane.CONTROL: CONTROL_FRAME_LIMIT, Lane.DATA: DATA_FRAME_LIMIT}
"""Plaintext bytes of one frame."""
BUFFER_BYTES = 128 * 1024
_JOIN_BELOW = 16 * 1024
"""Below this a frame is one buffer (one system call); above, copying it costs more than a call."""
_MIN_SPACE = 4096
_SMALL_READS_TO_SHRINK = 1024

Piece = bytes | memoryview


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
        if len(plaintext) > self._limit:
            raise LocalProtocolError(f"a frame of {len(plaintext)} bytes, limit {self._limit}")
        header = LENGTH.pack(len(plaintext) + TAG_BYTES)
        sealed = self._state.encrypt(header, plaintext)
        _rekey_when_due(self._state, self._rekey_frames)
        return [header + sealed] if len(sealed) < _JOIN_BELOW else [header, sealed]


class Opener:
    """Opens frames, in the order they were sealed."""

    __slots__ = ("_rekey_frames", "_state")

    def __init__(self, cipher: Cipher, key: bytes, rekey_frames: int, suite: Suite = NOISE) -> None:
        self._state = suite.frames(cipher, key)
        self._rekey_frames = rekey_frames

    def open(self, body: memoryview) -> bytes:
        """The plaintext of one frame's ciphertext. Raises RemoteProtocolError."""
        try:
            plaintext = self._state.decrypt(LENGTH.pack(len(body)), body)
        except InvalidTag as error:
            raise RemoteProtocolError("a frame is forged, repeated or out of order") from error
        _rekey_when_due(self._state, self._rekey_frames)
        return plaintext


def _rekey_when_due(state: FrameState, rekey_frames: int) -> None:
    if rekey_frames and state.nonce % rekey_frames == 0:
        state.rekey()


class FrameBuffer:
    """Cuts a byte stream into frames in place: the socket writes into it, frames are views of it.

    Grows to the frame that is under way, never beyond `limit` (the largest body allowed now), and
    shrinks again after many reads without a large frame.
    """

    __slots__ = ("_buffer", "_end", "_small_reads", "_start", "_view", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._start = 0
        self._end = 0
        self._small_reads = 0
        self._buffer = bytearray(self._usual_bytes())
        self._view = memoryview(self._buffer)

    def allow(self, limit: int) -> None:
        """From now on bodies may have up to `limit` bytes."""
        self.limit = limit

    def space(self) -> memoryview:
        """Where the next bytes go: never empty. Ends the life of every view given out before."""
        held = self._end - self._start
        wanted = max(self._pending_bytes(), held + 1)
        usual = self._usual_bytes()
        self._small_reads = self._small_reads + 1 if wanted <= usual else 0
        capacity = len(self._buffer)
        idle = capacity > usual and self._small_reads > _SMALL_READS_TO_SHRINK
        if capacity < max(wanted, usual) or idle:
            self._move_into(bytearray(max(wanted, usual)))
        elif held == 0:
            self._start = self._end = 0
        elif self._start and self._start + max(wanted, held + _MIN_SPACE) > capacity:
            self._move_into(self._buffer)
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """`count` bytes were written at the start of `space()`."""
        self._end += count

    def next_body(self) -> memoryview | None:
        """The next whole frame's ciphertext; None until more bytes come.

        The view is good until `space()` is asked for. Raises RemoteProtocolError for a length
        that no frame may have here.
        """
        if self._end - self._start < LENGTH_BYTES:
            return None
        size = self._pending_bytes()
        if not size:
            (length,) = LENGTH.unpack_from(self._buffer, self._start)
            raise RemoteProtocolError(f"a frame claims {length} bytes, limit {self.limit}")
        if self._end - self._start < size:
            return None
        body = self._view[self._start + LENGTH_BYTES : self._start + size]
        self._start += size
        return body

    def _pending_bytes(self) -> int:
        """Size of the frame under way, length field included; 0 where unknown or not allowed."""
        if self._end - self._start < LENGTH_BYTES:
            return 0
        (length,) = LENGTH.unpack_from(self._buffer, self._start)
        return LENGTH_BYTES + int(length) if length <= self.limit else 0

    def _usual_bytes(self) -> int:
        return min(BUFFER_BYTES, LENGTH_BYTES + self.limit)

    def _move_into(self, target: bytearray) -> None:
        held = self._end - self._start
        view = memoryview(target)
        view[:held] = self._view[self._start : self._end]
        self._buffer, self._view = target, view
        self._start, self._end = 0, held
