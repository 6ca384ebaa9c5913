"""What another machine needs to join, as one line to type or a short text to scan. Pure.

    invite-  base32, lower case, of:
    version u8 | day made, since 1970, u16 | the swarm's tag, 8 bytes | its secret, 32 bytes
    | count u8, then so many addresses: kind u8 (4, 6 or the length of a name plus 16),
      host, port u16
    | checksum, 3 bytes

Case and blanks do not matter, so that a QR code may use
its denser alphabet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import shlex
import struct
from dataclasses import dataclass, field

from swarm.errors import ConfigError
from swarm.terms import Address

PREFIX = "invite-"
VERSION = 1
SECRET_BYTES = 32
ADDRESSES_MAX = 8
LETTERS_MAX = 2048
_HEAD = struct.Struct(">BH8s32sB")
_PORT = struct.Struct(">H")
_CHECKSUM_BYTES = 3
_NAME_BASE = 16
_NAME_BYTES_MAX = 255 - _NAME_BASE
_DAY_S = 86_400
_DAY_MAX = (1 << 16) - 1
_HINT = "; `swarm invite` on a machine of the swarm prints one"


def invite_line(key: str, peers: tuple[Address, ...] = ()) -> str:
    """A shell command that joins this swarm; `peers` for networks without multicast."""
    words = ["swarm", "join", "--key", key]
    for peer in peers:
        words += ["--peer", str(peer)]
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Invite:
    """`secret`, `tag`: the swarm's; `made_day`: days since 1970."""

    secret: bytes = field(repr=False)
    tag: str
    addresses: tuple[Address, ...] = ()
    made_day: int = 0

    @property
    def text(self) -> str:
        """A secret, as the key in it is: for people, never for a log. Addresses that are too many
        or have names too long are left out."""
        packed = [part for address in self.addresses if (part := _packed(address))]
        packed = packed[:ADDRESSES_MAX]
        day = min(max(0, self.made_day), _DAY_MAX)
        tag = bytes.fromhex(self.tag)
        body = _HEAD.pack(VERSION, day, tag, self.secret, len(packed)) + b"".join(packed)
        letters = base64.b32encode(body + _checksum(body)).decode()
        return PREFIX + letters.rstrip("=").lower()

    def age_days(self, wall_time_s: float) -> int:
        return max(0, day_of(wall_time_s) - self.made_day)


def day_of(wall_time_s: float) -> int:
    """The day, since 1970, of a time in seconds since then."""
    return int(wall_time_s // _DAY_S)


def parse_invite(text: str) -> Invite:
    """Raises ConfigError that says what is wrong, without repeating the text."""
    letters = "".join(text[:LETTERS_MAX].split()).lower()
    if not letters.startswith(PREFIX):
        raise ConfigError(f"an invite begins with {PREFIX!r}{_HINT}")
    letters = letters.removeprefix(PREFIX).upper()
    try:
        raw = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except (binascii.Error, ValueError) as error:
        raise ConfigError(
            f"the invite is mistyped: after {PREFIX!r} it has only the letters a-z and digits 2-7"
        ) from error
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if len(body) < _HEAD.size or not hmac.compare_digest(checksum, _checksum(body)):
        raise ConfigError("the invite is mistyped, or was not copied whole")
    version, day, tag, secret, count = _HEAD.unpack_from(body)
    if version != VERSION:
        raise ConfigError(
            f"the invite is of version {version}, and this program knows version {VERSION};"
            " update it"
        )
    return Invite(secret, tag.hex(), _addresses(body[_HEAD.size :], count), day)


def _packed(address: Address) -> bytes:
    port = _PORT.pack(address.port)
    try:
        ip = ipaddress.ip_address(address.host)
    except ValueError:
        name = address.host.encode()
        fits = 0 < len(name) <= _NAME_BYTES_MAX
        return bytes([_NAME_BASE + len(name)]) + name + port if fits else b""
    if "%" in address.host:
        return b""  # a scope means nothing on another machine
    return bytes([ip.version]) + ip.packed + port


def _addresses(data: bytes, count: int) -> tuple[Address, ...]:
    """Whoever made the checksum made these; all the same nothing is believed."""
    found: list[Address] = []
    at = 0
    for _ in range(count):
        kind = data[at] if at < len(data) else 0
        size = {4: 4, 6: 16}.get(kind, kind - _NAME_BASE)
        end = at + 1 + size + _PORT.size
        if size <= 0 or end > len(data) or count > ADDRESSES_MAX:
            raise ConfigError("the invite is damaged: its addresses cannot be read")
        host = data[at + 1 : at + 1 + size]
        (port,) = _PORT.unpack_from(data, at + 1 + size)
        found.append(Address(_host(kind, host), port))
        at = end
    return tuple(address for address in found if address.host and address.port)


def _host(kind: int, host: bytes) -> str:
    if kind in (4, 6):
        return str(ipaddress.ip_address(host))
    name = host.decode("ascii", errors="replace")
    return name if all(letter.isalnum() or letter in "-._" for letter in name) else ""


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES, person=b"swarm-invite").digest()
