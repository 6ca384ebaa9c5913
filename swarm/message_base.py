"""What peer messages and worker messages are both made of. Import these names from `messages`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import ClassVar


class Lane(Enum):
    """Control and rows travel on two connections, so that a prefill never delays a heartbeat.

    Weights have a third one, made only when they are asked for: no row waits behind them.
    """

    CONTROL = "control"
    DATA = "data"
    BULK = "bulk"
    RELAY = "relay"
    """A leg of a relayed link: one message, then bytes of others."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages."""

    NUMBER: ClassVar[int]
    LANE: ClassVar[Lane] = Lane.CONTROL


class FailureCode(IntEnum):
    LINK_DOWN = 1
    SILENT = 2
    WORKER_LOST = 3
    STEP_FAILED = 4
    OUT_OF_MEMORY = 5
    LEAVING = 6
    STUCK = 7
    UNREACHABLE = 8
    PREEMPTED = 9
    GUIDE_FAILED = 10


class StepKind(IntEnum):
    """PREFILL rows go through the model together; DECODE rows one position at a time."""

    PREFILL = 1
    DECODE = 2


class RowType(IntEnum):
    """Element type of the rows in a step's payload. IDS are int32 token ids (to the embedding)."""

    IDS = 0
    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3
