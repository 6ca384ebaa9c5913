"""Work that the nodes of one simulated swarm would do alike, done once.

A record that goes to all nodes has the same bytes for each of them, and messages never change.
"""

from __future__ import annotations

from swarm.gossip.sealing import Content, checked_content_of
from swarm.messages import (
    PEER_MESSAGES,
    Lane,
    Message,
    RecordKind,
    SignedRecord,
    decode,
    encode,
)

KEPT_MAX = 256
"""Messages under way: most arrive within moments, and copies of one at about the same time."""
CHECKED_EVERY = 16
"""So many messages are remembered unread, then one is read to prove that it says what was sent."""

_CONTROL = Lane.CONTROL


class SharedWire:
    """`messages.encode` and `decode` for several nodes: what one of them has written, or read, no
    other has to read. What does not decode is tried anew each time."""

    def __init__(self) -> None:
        self._known: dict[bytes, Message] = {}
        self._unchecked = 0

    def encode(self, message: Message) -> list[bytes | memoryview]:
        pieces = encode(message)
        frame = pieces[0]
        if len(pieces) == 1 and message.LANE is _CONTROL and type(frame) is bytes:
            self._unchecked += 1
            if self._unchecked == CHECKED_EVERY:
                self._unchecked = 0
                read = decode(frame, PEER_MESSAGES, _CONTROL)
                assert read == message, f"{message} is read as {read}"
            self._keep(frame, message)
        return pieces

    def decode(
        self,
        frame: bytes | bytearray | memoryview,
        kinds: dict[int, type[Message]],
        lane: Lane | None,
    ) -> Message | None:
        if type(frame) is not bytes or lane is not _CONTROL:
            return decode(frame, kinds, lane)
        message = self._known.get(frame)
        if message is not None:
            return message
        message = decode(frame, kinds, lane)
        if message is not None:
            self._keep(frame, message)
        return message

    def _keep(self, frame: bytes, message: Message) -> None:
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        self._known[frame] = message


class SharedReader:
    """`sealing.checked_content_of` for several nodes. What does not fit is tried anew each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[RecordKind, bytes], Content] = {}

    def __call__(self, record: SignedRecord) -> Content:
        key = (record.kind, record.body)
        content = self._known.get(key)
        if content is None:
            content = checked_content_of(record)
            if len(self._known) >= KEPT_MAX:
                self._known.clear()
            self._known[key] = content
        return content
