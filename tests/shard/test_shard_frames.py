"""Frames between daemon and worker, in whatever pieces they come."""

from __future__ import annotations

import random

import pytest
from engine_chain import ids_run

from swarm.errors import RemoteProtocolError
from swarm.messages import End, LoadProgress, Message
from swarm.shard.frames import FrameReader, pack
from swarm.terms import SessionId


def feed(reader: FrameReader, data: bytes, pieces: random.Random, largest: int) -> list[Message]:
    messages: list[Message] = []
    while data:
        space = reader.space()
        count = min(len(data), len(space), pieces.randint(1, largest))
        space[:count] = data[:count]
        space.release()
        messages += reader.filled(count)
        data = data[count:]
    return messages


@pytest.mark.parametrize("largest", [1, 7, 1000, 10**6])
def test_messages_come_out_as_they_went_in(largest: int) -> None:
    rng = random.Random(largest)
    sizes = [0, 1, 50, 3000] if largest < 1000 else [0, 1, 200_000, 1_000_000, 3, 70_000]
    sent: list[Message] = [End(SessionId("s")), LoadProgress(0.5, "x")]
    sent += [ids_run("s", i, [rng.randrange(1000)] * max(1, n)) for i, n in enumerate(sizes)]
    rng.shuffle(sent)
    stream = b"".join(bytes(buffer) for message in sent for buffer in pack(message))
    assert feed(FrameReader(), stream, rng, largest) == sent


def test_a_frame_over_the_limit_is_refused_by_its_length() -> None:
    reader = FrameReader()
    with pytest.raises(RemoteProtocolError, match="a frame of 4294967295 bytes"):
        feed(reader, b"\xff" * 4, random.Random(0), 4)


def test_a_frame_that_is_no_message_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        feed(FrameReader(), b"\x05\0\0\0" + b"\x6e\0\x02\xc1\xc1", random.Random(0), 100)


def test_messages_of_a_newer_kind_are_skipped() -> None:
    newer = b"\x03\0\0\0" + b"\xfa\0\0"
    stream = newer + b"".join(bytes(buffer) for buffer in pack(End(SessionId("s"))))
    assert feed(FrameReader(), stream, random.Random(0), 100) == [End(SessionId("s"))]
