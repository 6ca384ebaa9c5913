"""Messages by which weights go from peer to peer. Import these names from `messages`.

A tensor is named by its number among the tensor names of the model's manifest, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from swarm.message_base import Lane, Message
from swarm.terms import ModelId

SLICE_BYTES = 128 * 1024
"""Of a piece, in one message: short enough that the loop and a paced link do not stall over it."""


@dataclass(frozen=True, slots=True)
class HoldingRequest(Message):
    """Which tensors of a model can you hand out?"""

    NUMBER: ClassVar[int] = 62
    model_id: ModelId


@dataclass(frozen=True, slots=True)
class Holding(Message):
    """Whole tensors at the sender, as bits by tensor number, lowest first; empty: none."""

    NUMBER: ClassVar[int] = 63
    model_id: ModelId
    tensors: bytes


@dataclass(frozen=True, slots=True)
class PieceRequest(Message):
    """Send a piece of a tensor. Answered by its slices in order, or by `PieceRefused`."""

    NUMBER: ClassVar[int] = 64
    model_id: ModelId
    tensor: int
    piece: int


class PieceFault(IntEnum):
    ABSENT = 1
    BUSY = 2


@dataclass(frozen=True, slots=True)
class PieceRefused(Message):
    NUMBER: ClassVar[int] = 65
    model_id: ModelId
    tensor: int
    piece: int
    fault: PieceFault


@dataclass(frozen=True, slots=True)
class PieceSlice(Message):
    """Bytes of a piece from `offset` on: `SLICE_BYTES`, or what is left of it."""

    NUMBER: ClassVar[int] = 66
    LANE: ClassVar[Lane] = Lane.BULK
    model_id: ModelId
    tensor: int
    piece: int
    offset: int
    payload: bytes | memoryview = b""
