"""Layers, sizes and addresses as people type them."""

from __future__ import annotations

import pytest

from swarm.errors import ConfigError
from swarm.options import parse_address, parse_bytes, parse_layers, parse_span_s
from swarm.terms import Address, LayerRange


def test_layers() -> None:
    assert parse_layers("0:10") == LayerRange(0, 10)
    assert parse_layers(" 10:12 ") == LayerRange(10, 12)


@pytest.mark.parametrize("text", ["", "10", "10:", ":10", "10:10", "10:4", "-1:4", "a:b", "1:2:3"])
def test_layers_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="A:B with A below B"):
        parse_layers(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 << 30), ("8gib", 8 << 30), ("8Gi", 8 << 30), ("512 MiB", 512 << 20),
        ("1.5GiB", 3 << 29), ("2GB", 2 * 10**9), ("2g", 2 * 10**9), ("4194304", 4 << 20),
        ("1TiB", 1 << 40), ("9000kB", 9_000_000),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e9", "8 Gib yte", "8PiB", "0", "0.1", "8", "24", "10kB"]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("tower.lan:0", Address("tower.lan", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[fe80::1%eth0]:7000", Address("fe80::1%eth0", 7000)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "HOST:PORT"), ("8000", "HOST:PORT"), ("host", "HOST:PORT"), ("host:", "HOST:PORT"),
        (":8000", "HOST:PORT"), ("host:http", "HOST:PORT"), ("::1:8000", "in brackets"),
        ("fe80::1", "in brackets"), ("host:65536", "at most 65535"), ("http://h:1", "HOST:PORT"),
    ],
)  # fmt: skip
def test_addresses_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "span_s"),
    [("90s", 90), ("5m", 300), ("5min", 300), ("1h30m", 5400), ("2d", 172800), ("45", 45), ("0", 0),
     (" 1H ", 3600)],
)  # fmt: skip
def test_time_spans(text: str, span_s: float) -> None:
    assert parse_span_s(text) == span_s


@pytest.mark.parametrize("text", ["", "m", "-5m", "5 weeks", "1.5h", "5m1h", "soon", "9" * 400])
def test_time_spans_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="a time span"):
        parse_span_s(text)
