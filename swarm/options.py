"""What `swarm join` is told on the command line, and how such texts are read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import ConfigError
from swarm.terms import Address, LayerRange

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^:\[\]/\s]+)):(\d{1,5})")
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")
PORT_MAX = 65535
SIZE_MIN_BYTES = 1 << 20
"""Less is a forgotten unit (`--memory 8`): not one layer of any model fits into it."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Flags of `swarm join` named as `ShardConfig`'s fields. None leaves a field to the config."""

    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    exact: bool | None = None
    copies: int | None = None


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The flags of `swarm join`. None: not given, so the config file or the default decides."""

    model: tuple[str, ...]
    """Folders or GGUF files to serve; none: take part in a model of the swarm."""
    layers: LayerRange | None
    memory_bytes: int | None
    """On each device."""
    device: str | None
    """One, or several with commas between."""
    dtype: str | None
    threads: int | None
    gateway: Address | None
    """Where to listen for HTTP, exactly there; port 0 takes any that is free."""
    listen: Address | None
    """Where to listen for peers."""
    peers: tuple[Address, ...]
    key: str | None
    open_swarm: bool
    home: Path
    name: str | None
    mdns: bool
    """False with `--no-mdns`; True leaves it to the config."""
    log_json: bool
    engine: EngineOptions = EngineOptions()
    served_model_name: tuple[str, ...] = ()
    """What the models are called, in their order; those not named: what their files are called."""
    no_auth: bool = False
    """The gateway asks for no key, wherever it listens."""
    allow_origin: tuple[str, ...] = ()
    """Origins whose web pages may use the gateway."""
    hub: tuple[tuple[str, str], ...] = ()
    """Models that are not on this machine: what the hub calls them, and what they are called."""
    yield_to_owner: bool = False
    """Give the layers up while other programs need the machine."""
    gateway_only: bool = False
    """Without a model of its own, the node takes no layers of one that the swarm has either."""
    device_memory: str | None = None
    """Sizes with commas between, where each device has its own."""


def parse_layers(text: str) -> LayerRange:
    """`A:B`, half-open. Raises ConfigError."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(f"layers are given as A:B with A below B, such as 0:10, not {text!r}")
    return LayerRange(int(match[1]), int(match[2]))


def parse_bytes(text: str) -> int:
    """`8GiB`, `512M`, `1.5 TB` or plain bytes. Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"a size is given as 8GiB, 512MiB or plain bytes, not {text!r}")
    unit = (match[2] or "").lower()
    count = int(float(match[1]) * (_UNITS | _BINARY_UNITS)[unit])
    if count < SIZE_MIN_BYTES:
        raise ConfigError(
            f"a size is given with its unit, such as 8GiB: {text!r} is less than a megabyte"
        )
    return count


SPAN_CHARS_MAX = 32


def parse_span_s(text: str) -> float:
    """`90s`, `5m`, `1h30m`, `2d` or plain seconds. Raises ConfigError."""
    plain = text.strip().lower()
    if len(plain) > SPAN_CHARS_MAX:
        raise ConfigError(f"a time span is given in at most {SPAN_CHARS_MAX} characters")
    if plain.isdecimal():
        return float(plain)
    match = _SPAN.fullmatch(plain)
    if match is None or not plain:
        raise ConfigError(f"a time span is given as 90s, 5m, 1h30m or 2d, not {text!r}")
    lengths_s = (86400.0, 3600.0, 60.0, 1.0)
    return sum(int(n or 0) * length for n, length in zip(match.groups(), lengths_s, strict=True))


def parse_address(text: str) -> Address:
    """`HOST:PORT`, IPv6 in brackets. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        hint = "; IPv6 goes in brackets: [::1]:8000" if text.count(":") > 1 else ""
        raise ConfigError(f"an address is given as HOST:PORT, not {text!r}{hint}")
    port = int(match[3])
    if port > PORT_MAX:
        raise ConfigError(f"a port is at most {PORT_MAX}, not {port}")
    return Address(match[1] or match[2], port)
