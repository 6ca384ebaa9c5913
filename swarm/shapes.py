"""Frozen dataclasses <-> msgpack positional arrays, with a strict shape check on the way in.

A message type is a frozen dataclass whose fields are int, float, str, bytes, bool, an Enum, a
NewType of these, another such dataclass, `tuple[X, ...]`, or `X | None`. It travels as the array
of its fields in order. Compatible growth: a field may be appended with a default; a decoder fills
what an older peer left out and ignores what a newer peer added. Everything that does not fit
raises `RemoteProtocolError`, whatever the bytes are.

What a type needs on its way out and in is worked out once, on its first use: each node does this
hundreds of times a second. The one packer is not for several threads at a time.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Hashable
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import msgpack

from swarm.errors import RemoteProtocolError

T = TypeVar("T")
Converter = Callable[[Any], Any]

ARRAY_LIMIT = 512
"""Elements of any one array; 4 KB of nested array headers stall a decoder 193 ms without it."""
STRING_LIMIT = 4096
BYTES_LIMIT = 65536
INTEGER_LIMIT = 1 << 63
_PACKER = msgpack.Packer(use_bin_type=True)


def pack(value: Any) -> bytes:
    """Encode a dataclass of this kind as a msgpack positional array."""
    packed: bytes = _PACKER.pack(_flattener(type(value))(value))  # type: ignore[arg-type]
    return packed


def unpack(kind: type[T], data: bytes | bytearray | memoryview) -> T:
    """Decode bytes as `kind`, or raise RemoteProtocolError."""
    try:
        plain = msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            strict_map_key=True,
            max_array_len=ARRAY_LIMIT,
            max_map_len=0,
            max_str_len=STRING_LIMIT,
            max_bin_len=BYTES_LIMIT,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise RemoteProtocolError(f"undecodable {kind.__name__}: {type(error).__name__}") from error
    value: T = _converter(kind)(plain)  # type: ignore[arg-type]  # classes are hashable
    return value


# -------------------------------------------------------------------- out


@cache
def _flattener(kind: Any) -> Converter:
    """What turns a dataclass of this kind into the sequence of its fields that travels."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in _wire_fields(kind)]
    plain_of = {index: _plain_maker(hints[name]) for index, name in enumerate(names)}
    special = [(index, make) for index, make in plain_of.items() if make is not None]
    fields = _getter(names)
    if not special:
        return fields

    def flatten(value: Any) -> Any:
        plain = list(fields(value))
        for index, make in special:
            plain[index] = make(plain[index])
        return plain

    return flatten


def _getter(names: list[str]) -> Converter:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _plain_maker(kind: Any) -> Converter | None:
    """What makes a field's value plain; None where msgpack takes it as it is."""
    if isinstance(kind, typing.NewType):
        return _plain_maker(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        return _flattener(typing.cast(Hashable, kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return None if issubclass(kind, int) else attrgetter("value")
    if typing.get_origin(kind) is tuple:
        item = _plain_maker(typing.get_args(kind)[0])
        return None if item is None else lambda items: [item(each) for each in items]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (given,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
        make = _plain_maker(given)
        return None if make is None else lambda value: None if value is None else make(value)
    return None


# -------------------------------------------------------------------- in


@cache
def _wire_fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields that travel in the array: all but the one named `payload`."""
    return tuple(field for field in dataclasses.fields(kind) if field.name != "payload")


@cache
def _converter(kind: Any) -> Converter:
    if isinstance(kind, typing.NewType):
        return _converter(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        return _dataclass_converter(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_converter(kind)
    if typing.get_origin(kind) is tuple:
        return _tuple_converter(_converter(typing.get_args(kind)[0]))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in typing.get_args(kind) if arg is not type(None))
        convert = _converter(inner)
        return lambda plain: None if plain is None else convert(plain)
    return {int: _integer, float: _number, str: _string, bytes: _bytes, bool: _boolean}[kind]


def _dataclass_converter(kind: Any) -> Converter:
    hints = typing.get_type_hints(kind)
    fields = _wire_fields(kind)
    converters = [_converter(hints[field.name]) for field in fields]
    leading = dataclasses.fields(kind)[: len(fields)] == fields
    names = [field.name for field in fields]
    required = sum(field.default is dataclasses.MISSING for field in fields)
    name = kind.__name__

    def convert(plain: Any) -> Any:
        if not isinstance(plain, tuple) or len(plain) < required:
            raise RemoteProtocolError(f"{name}: expected at least {required} fields")
        values = [take(item) for take, item in zip(converters, plain, strict=False)]
        try:
            return kind(*values) if leading else kind(**dict(zip(names, values, strict=False)))
        except ValueError as error:
            raise RemoteProtocolError(f"{name}: {error}") from error

    return convert


def _enum_converter(kind: type[Enum]) -> Converter:
    def convert(plain: Any) -> Any:
        try:
            return kind(plain)
        except ValueError as error:
            raise RemoteProtocolError(f"unknown {kind.__name__}") from error

    return convert


def _tuple_converter(inner: Converter) -> Converter:
    def convert(plain: Any) -> Any:
        if not isinstance(plain, tuple):
            raise RemoteProtocolError("expected an array")
        return tuple(inner(item) for item in plain)

    return convert


def _integer(plain: Any) -> int:
    if type(plain) is not int or not -INTEGER_LIMIT <= plain < INTEGER_LIMIT:
        raise RemoteProtocolError("expected an integer")
    return plain


def _number(plain: Any) -> float:
    if type(plain) not in (int, float) or not math.isfinite(plain):
        raise RemoteProtocolError("expected a finite number")
    return float(plain)


def _string(plain: Any) -> str:
    if not isinstance(plain, str):
        raise RemoteProtocolError("expected a string")
    return plain


def _bytes(plain: Any) -> bytes:
    if not isinstance(plain, bytes):
        raise RemoteProtocolError("expected bytes")
    return plain


def _boolean(plain: Any) -> bool:
    if not isinstance(plain, bool):
        raise RemoteProtocolError("expected a boolean")
    return plain
