"""Work that the nodes of one simulated swarm would do alike, done once.

A record that goes to all nodes has the same bytes for each of them, and messages never change.
"""

from __future__ import annotations

from swarm.gossip.sealing import Content, checked_content_of
from swarm.messages import Lane, Message, RecordKind, SignedRecord, decode

KEPT_MAX = 64
"""Copies of one message arrive within moments of each other."""


class SharedDecoder:
    """`messages.decode` for several nodes. What does not decode is tried anew each time."""

    def __init__(self) -> None:
        self._known: dict[bytes, Message] = {}

    def __call__(
        self,
        frame: bytes | bytearray | memoryview,
        kinds: dict[int, type[Message]],
        lane: Lane | None,
    ) -> Message | None:
        if type(frame) is not bytes or lane is not Lane.CONTROL:
            return decode(frame, kinds, lane)
        known = self._known
        message = known.get(frame)
        if message is not None and message.LANE is lane:
            return message
        message = decode(frame, kinds, lane)
        if message is not None:
            if len(known) >= KEPT_MAX:
                known.clear()
            known[frame] = message
        return message


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
