"""The wire's messages: what is written is read again, and nothing else is accepted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import shapes
from swarm.errors import LocalProtocolError, RemoteProtocolError
from swarm.messages import (
    PAYLOAD_LIMIT,
    PEER_MESSAGES,
    WORKER_MESSAGES,
    Lane,
    Message,
    Open,
    Ping,
    Progress,
    RowType,
    SessionProgress,
    Step,
    StepKind,
    Token,
    decode,
    encode,
)
from swarm.terms import (
    Epoch,
    LayerRange,
    ModelId,
    NodeId,
    SampledToken,
    Sampling,
    SessionId,
    TokenLogprob,
)

SESSION = SessionId("ab" * 8)
STEP = Step(SESSION, Epoch(1), 5, 2, StepKind.DECODE, RowType.FLOAT32, b"12345678")
EXAMPLES: list[Message] = [
    Ping(7),
    Progress((SessionProgress(SESSION, 3, 1),)),
    STEP,
    replace(STEP, origin=NodeId("c")),
    Open(
        SESSION, Epoch(2), ModelId("m"), LayerRange(2, 5), False, True, NodeId("a"), NodeId("b"),
        7, 20, Sampling(temperature=0.5, logprobs=2),
    ),
    Token(SESSION, Epoch(1), SampledToken(9, 4, -0.5, (TokenLogprob(4, -0.5),))),
]  # fmt: skip


def frame(message: Message) -> bytes:
    return b"".join(encode(message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_round_trip(message: Message) -> None:
    assert decode(frame(message), PEER_MESSAGES, message.LANE) == message
    assert decode(frame(message), PEER_MESSAGES, None) == message


def test_numbers_are_unique_and_fit() -> None:
    numbers = [*PEER_MESSAGES, *WORKER_MESSAGES]
    assert len(numbers) == len(set(numbers))
    assert all(0 < number < 256 for number in numbers)


def test_a_message_on_the_wrong_lane_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="control lane"):
        decode(frame(STEP), PEER_MESSAGES, Lane.CONTROL)


def test_an_unknown_number_is_left_to_newer_peers() -> None:
    assert decode(b"\xff\x00\x00", PEER_MESSAGES, Lane.CONTROL) is None


def test_worker_messages_are_not_for_peers() -> None:
    for number in WORKER_MESSAGES:
        assert decode(bytes([number, 0, 0]), PEER_MESSAGES, None) is None


def test_payload_where_none_belongs() -> None:
    with pytest.raises(RemoteProtocolError, match="no payload"):
        decode(frame(Ping(1)) + b"x", PEER_MESSAGES, Lane.CONTROL)


def test_an_oversized_payload_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        encode(Step(SESSION, Epoch(1), 0, 1, StepKind.PREFILL, RowType.IDS,
                    bytes(PAYLOAD_LIMIT + 1)))  # fmt: skip


def test_an_oversized_payload_of_a_peer_is_refused() -> None:
    data = frame(replace(STEP, payload=bytes(PAYLOAD_LIMIT)))
    assert decode(data, PEER_MESSAGES, Lane.DATA) is not None
    with pytest.raises(RemoteProtocolError, match="payload of"):
        decode(data + b"x", PEER_MESSAGES, Lane.DATA)


def test_an_older_peer_names_no_origin() -> None:
    head = msgpack.packb([SESSION, 1, 5, 2, StepKind.DECODE.value, RowType.FLOAT32.value])
    data = bytes([Step.NUMBER]) + len(head).to_bytes(2, "big") + head + b"12345678"
    assert decode(data, PEER_MESSAGES, Lane.DATA) == STEP


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_remote_error(data: bytes) -> None:
    for kinds in (PEER_MESSAGES, WORKER_MESSAGES):
        try:
            found = decode(data, kinds, None)
        except RemoteProtocolError:
            continue
        assert found is None or isinstance(found, Message)


@given(
    st.sampled_from(EXAMPLES),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
def test_mutated_frames(message: Message, changes: list[tuple[int, int]]) -> None:
    data = bytearray(frame(message))
    for index, value in changes:
        data[index % len(data)] = value
    try:
        decode(data, PEER_MESSAGES, None)
    except RemoteProtocolError:
        return


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(sorted(PEER_MESSAGES)), st.lists(values, max_size=12))
def test_any_fields_are_checked(number: int, content: list[Any]) -> None:
    head = msgpack.packb(content)
    data = bytes([number]) + len(head).to_bytes(2, "big") + head
    try:
        message = decode(data, PEER_MESSAGES, None)
    except RemoteProtocolError:
        return
    assert message is not None
    assert frame(message)


def test_a_nest_of_arrays_is_refused_quickly() -> None:
    with pytest.raises(RemoteProtocolError):
        shapes.unpack(Ping, b"\x91" * 4096)


def test_a_newer_peer_may_append_fields_and_an_older_one_may_lack_them() -> None:
    @dataclass(frozen=True, slots=True)
    class Older:
        number: int

    @dataclass(frozen=True, slots=True)
    class Newer:
        number: int
        name: str = "none"

    globals().update(Older=Older, Newer=Newer)
    with pytest.raises(OverflowError):
        shapes.pack(Older(1 << 70))
    assert shapes.unpack(Older, shapes.pack(Newer(1, "x"))) == Older(1)
    assert shapes.unpack(Newer, shapes.pack(Older(1))) == Newer(1)


def test_floats_must_be_finite() -> None:
    sampling = [float("nan"), 1.0, 0, 0, None]
    with pytest.raises(RemoteProtocolError, match="finite"):
        shapes.unpack(Sampling, msgpack.packb(sampling))


def test_layer_ranges_are_checked_on_the_way_in() -> None:
    with pytest.raises(RemoteProtocolError, match="not a layer range"):
        shapes.unpack(LayerRange, msgpack.packb([5, 5]))


def test_the_codec_knows_the_types_of_all_fields() -> None:
    """A field of a type the codec does not know would only be found when it is first sent."""
    for kind in [*PEER_MESSAGES.values(), *WORKER_MESSAGES.values()]:
        wire_fields = [field for field in fields(kind) if field.name != "payload"]
        with pytest.raises(RemoteProtocolError) if wire_fields else nullcontext():
            shapes.unpack(kind, msgpack.packb([]))
