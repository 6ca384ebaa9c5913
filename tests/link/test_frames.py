"""Sealed frames and their buffer: any cutting of the stream, any damage to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.link.frames import BUFFER_BYTES, FRAME_LIMITS, LENGTH, FrameBuffer, Opener, Sealer
from swarm.link.noise import TAG_BYTES, Cipher
from swarm.messages import PEER_MESSAGES, Lane, Message, decode

KEY = bytes(range(32))
LANES = list(Lane)


def _pair(
    cipher: Cipher, lane: Lane = Lane.CONTROL, rekey_frames: int = 0
) -> tuple[Sealer, Opener]:
    return Sealer(cipher, KEY, lane, rekey_frames), Opener(cipher, KEY, rekey_frames)


def _feed(buffer: FrameBuffer, opener: Opener, chunk: bytes) -> list[bytes]:
    """What a connection does with bytes, however many fit at a time."""
    opened = []
    while chunk:
        space = buffer.space()
        count = min(len(space), len(chunk))
        space[:count] = chunk[:count]
        buffer.filled(count)
        chunk = chunk[count:]
        while (body := buffer.next_body()) is not None:
            opened.append(opener.open(body))
    return opened


@given(
    st.lists(st.binary(max_size=3000), max_size=20),
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    st.sampled_from(Cipher),
    st.sampled_from([0, 1, 2, 3, 7]),
)
@settings(deadline=None)
def test_frames_come_out_as_they_went_in(
    plaintexts: list[bytes], cuts: list[int], cipher: Cipher, rekey_frames: int
) -> None:
    sealer, opener = _pair(cipher, Lane.CONTROL, rekey_frames)
    stream = b"".join(b"".join(sealer.seal([p[:10], memoryview(p[10:])])) for p in plaintexts)
    buffer = FrameBuffer(FRAME_LIMITS[Lane.CONTROL] + TAG_BYTES)
    opened = []
    index = 0
    while stream:
        cut = cuts[index % len(cuts)]
        opened += _feed(buffer, opener, stream[:cut])
        stream = stream[cut:]
        index += 1
    assert opened == plaintexts


@given(st.data(), st.sampled_from(Cipher))
@settings(deadline=None)
def test_damage_is_noticed_and_nothing_false_comes_out(data: st.DataObject, cipher: Cipher) -> None:
    plaintexts = data.draw(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=6))
    sealer, opener = _pair(cipher)
    stream = bytearray(b"".join(b"".join(sealer.seal([p])) for p in plaintexts))
    position = data.draw(st.integers(0, len(stream) - 1))
    stream[position] ^= data.draw(st.integers(1, 255))
    buffer = FrameBuffer(FRAME_LIMITS[Lane.CONTROL] + TAG_BYTES)
    opened: list[bytes] = []
    try:
        opened = _feed(buffer, opener, bytes(stream))
        # A length that grew: the rest of the frame never comes.
        assert len(opened) < len(plaintexts)
    except RemoteProtocolError:
        return
    assert opened == plaintexts[: len(opened)]


@given(st.binary(max_size=400), st.sampled_from(Cipher))
@settings(deadline=None)
def test_garbage_gives_nothing_or_a_protocol_error(garbage: bytes, cipher: Cipher) -> None:
    _, opener = _pair(cipher)
    buffer = FrameBuffer(FRAME_LIMITS[Lane.CONTROL] + TAG_BYTES)
    try:
        assert _feed(buffer, opener, garbage) == []
    except RemoteProtocolError:
        return


@given(st.binary(max_size=300), st.sampled_from(LANES))
@settings(max_examples=500, deadline=None)
def test_any_plaintext_is_a_message_or_nothing_or_a_protocol_error(raw: bytes, lane: Lane) -> None:
    try:
        message = decode(raw, PEER_MESSAGES, lane)
    except RemoteProtocolError:
        return
    assert message is None or isinstance(message, Message)


@pytest.mark.parametrize("cipher", Cipher)
@pytest.mark.parametrize("order", [[0, 0], [1], [1, 0], [0, 2]])
def test_repeated_lost_and_moved_frames_do_not_open(cipher: Cipher, order: list[int]) -> None:
    sealer, opener = _pair(cipher)
    frames = [b"".join(sealer.seal([bytes([n]) * 20])) for n in range(3)]
    with pytest.raises(RemoteProtocolError, match="forged, repeated or out of order"):
        for index in order:
            opener.open(memoryview(frames[index])[4:])


def test_both_sides_rekey_together_and_others_do_not_follow() -> None:
    sealer, opener = _pair(Cipher.AES_GCM, rekey_frames=3)
    _, stubborn = _pair(Cipher.AES_GCM)
    for number in range(10):
        frame = b"".join(sealer.seal([b"x"]))
        assert opener.open(memoryview(frame)[4:]) == b"x"
        if number < 3:
            assert stubborn.open(memoryview(frame)[4:]) == b"x"
    with pytest.raises(RemoteProtocolError):
        stubborn.open(memoryview(frame)[4:])


@pytest.mark.parametrize("lane", LANES)
def test_a_frame_over_the_limit_is_not_sealed(lane: Lane) -> None:
    sealer, opener = _pair(Cipher.AES_GCM, lane)
    largest = bytes(FRAME_LIMITS[lane])
    with pytest.raises(LocalProtocolError):
        sealer.seal([largest, b"x"])
    header, body = _split(b"".join(sealer.seal([largest])))
    assert opener.open(memoryview(body)) == largest
    assert LENGTH.unpack(header)[0] == len(largest) + TAG_BYTES


def _split(frame: bytes) -> tuple[bytes, bytes]:
    return frame[:4], frame[4:]


@pytest.mark.parametrize("claim", [101, 1 << 20, 0xFFFFFFFF])
def test_a_claimed_length_over_the_limit_is_refused_before_it_is_awaited(claim: int) -> None:
    buffer = FrameBuffer(100)
    buffer.space()[:4] = LENGTH.pack(claim)
    buffer.filled(4)
    with pytest.raises(RemoteProtocolError, match=str(claim)):
        buffer.next_body()
    assert len(buffer.space()) > 0


def test_the_buffer_grows_for_a_large_frame_and_shrinks_when_they_stop() -> None:
    sealer, opener = _pair(Cipher.AES_GCM, Lane.DATA)
    buffer = FrameBuffer(FRAME_LIMITS[Lane.DATA] + TAG_BYTES)
    large = bytes(5_000_000)
    assert _feed(buffer, opener, b"".join(sealer.seal([large]))) == [large]
    assert len(buffer.space()) > 5_000_000
    for _ in range(3000):
        assert _feed(buffer, opener, b"".join(sealer.seal([b"small"]))) == [b"small"]
    assert len(buffer.space()) <= BUFFER_BYTES


def test_before_the_handshake_the_buffer_is_small() -> None:
    buffer = FrameBuffer(1024)
    assert len(buffer.space()) == 1028
    buffer.allow(100_000)
    assert len(buffer.space()) == 1028


def test_the_buffer_grows_while_reads_fill_it() -> None:
    buffer = FrameBuffer(1_000_000)
    sizes = []
    for _ in range(6):
        space = buffer.space()
        sizes.append(len(space))
        frame = LENGTH.pack(len(space) - LENGTH.size) + bytes(len(space) - LENGTH.size)
        space[:] = frame
        buffer.filled(len(frame))
        body = buffer.next_body()
        assert body is not None
        assert bytes(body) == frame[LENGTH.size :]
    assert sizes == [4096, 16384, 65536, *[BUFFER_BYTES] * 3]


def test_bytes_held_back_are_kept_when_the_limit_rises() -> None:
    buffer = FrameBuffer(1024)
    stream = LENGTH.pack(3) + b"abc" + LENGTH.pack(5) + b"de"
    buffer.space()[: len(stream)] = stream
    buffer.filled(len(stream))
    body = buffer.next_body()
    assert body is not None
    assert bytes(body) == b"abc"
    buffer.allow(1 << 20)
    buffer.space()[:3] = b"fgh"
    buffer.filled(3)
    body = buffer.next_body()
    assert body is not None
    assert bytes(body) == b"defgh"
