"""Where a GGUF file keeps its tensors, read from its first bytes alone. Pure.

The head of a file (metadata, tokenizer and the table of tensors) travels as a text of the model:
with it, a node that has fetched some tensors can lay them out as the file they came from
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from swarm.errors import ShardError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = b"general.alignment"
ALIGNMENT = 32
DIMENSIONS_MAX = 16
NESTING_MAX = 8
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Of values of a fixed size, by the number of their type."""
_UINT32, _STRING, _ARRAY = 4, 8, 9


@dataclass(frozen=True, slots=True)
class GgufHead:
    """`byte_count`: up to the first tensor's place. `starts`: of each tensor, in the file."""

    byte_count: int
    starts: Mapping[str, int]


def gguf_head(data: bytes | memoryview) -> GgufHead:
    """From the beginning of a file, at least its head. Raises ShardError."""
    try:
        return _read(_Cursor(memoryview(data)))
    except (struct.error, UnicodeDecodeError, RecursionError) as error:
        raise ShardError("the head of a GGUF file is cut short or damaged") from error


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def skip(self, count: int) -> None:
        if count < 0 or self.at + count > len(self.data):
            raise ShardError("the head of a GGUF file is cut short")
        self.at += count

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def string(self) -> bytes:
        count = self.number("<Q")
        begin = self.at
        self.skip(count)
        return bytes(self.data[begin : self.at])

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind in _SIZES:
            self.skip(_SIZES[kind])
        elif kind == _STRING:
            self.skip(self.number("<Q"))
        elif kind == _ARRAY and depth < NESTING_MAX:
            inner, count = self.number("<I"), self.number("<Q")
            if inner in _SIZES:
                self.skip(count * _SIZES[inner])
                return
            for _ in range(count):
                self.skip_value(inner, depth + 1)
        else:
            raise ShardError("the head of a GGUF file holds values of an unknown kind")


def _read(cursor: _Cursor) -> GgufHead:
    if bytes(cursor.data[:4]) != MAGIC:
        raise ShardError("not a GGUF file")
    cursor.skip(4)
    if (version := cursor.number("<I")) not in VERSIONS:
        raise ShardError(f"a GGUF file of version {version}, of which no parts can be had")
    tensor_count, value_count = cursor.number("<Q"), cursor.number("<Q")
    alignment = ALIGNMENT
    for _ in range(value_count):
        key, kind = cursor.string(), cursor.number("<I")
        if key == ALIGNMENT_KEY and kind == _UINT32:
            alignment = cursor.number("<I")
        else:
            cursor.skip_value(kind)
    if alignment <= 0 or alignment & (alignment - 1):
        raise ShardError("the head of a GGUF file names no alignment")
    offsets = dict(_tensor(cursor) for _ in range(tensor_count))
    start = -(-cursor.at // alignment) * alignment
    return GgufHead(start, {name: start + offset for name, offset in offsets.items()})


def _tensor(cursor: _Cursor) -> tuple[str, int]:
    name = cursor.string().decode()
    dimensions = cursor.number("<I")
    if dimensions > DIMENSIONS_MAX:
        raise ShardError("the head of a GGUF file is damaged")
    cursor.skip(8 * dimensions + 4)
    return name, cursor.number("<Q")
