"""What a node says of itself by mDNS, and how the words of others are read. Pure.

The swarm tag is a hash; the key is never on the air. Nothing here is proof of anything: the
handshake finds out who really answers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarm.notes import printable
from swarm.terms import Address, NodeId

SERVICE_TYPE = "_swarm._tcp.local."
INSTANCE_LETTERS = 16
NAME_BYTES_MAX = 63
TAG_LETTERS_MAX = 64
_NODE_ID = re.compile(r"[a-z2-7]{32}")
_TAG = re.compile(r"[0-9a-z]{1,64}")


@dataclass(frozen=True, slots=True)
class Announcement:
    """The node's own entry. `listen.host` is the host it was told to bind, often all of them."""

    node: NodeId
    tag: str
    """Swarm tag: lower-case letters and digits."""
    name: str
    listen: Address
    protocol_min: int
    protocol_max: int
    start: str = ""
    """Letters that keep the entries of two starts under one id apart (a copied home folder)."""

    @property
    def instance(self) -> str:
        return f"{self._label}.{SERVICE_TYPE}"

    @property
    def server(self) -> str:
        """A host name of our own, so that address records of one machine's nodes stay apart."""
        return f"swarm-{self._label}.local."

    @property
    def _label(self) -> str:
        node = self.node[:INSTANCE_LETTERS]
        return f"{node}-{self.start}" if self.start else node

    def properties(self) -> dict[str, str]:
        """The TXT record."""
        name = self.name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")
        version = f"{self.protocol_min}-{self.protocol_max}"
        return {"tag": self.tag, "id": self.node, "v": version, "name": name}


@dataclass(frozen=True, slots=True)
class Heard:
    """Another node's entry."""

    node: NodeId
    tag: str
    name: str
    addresses: tuple[Address, ...]


def read_entry(
    properties: Mapping[bytes, bytes | None], hosts: Iterable[str], port: int | None
) -> Heard | None:
    """Another node's entry, or None when it is not one (anybody on the LAN may send anything)."""
    node, tag, name = (_text(properties, key) for key in (b"id", b"tag", b"name"))
    if not _NODE_ID.fullmatch(node) or not _TAG.fullmatch(tag):
        return None
    if port is None or not 0 < port < 65536:
        return None
    usable = [host for host in hosts if _is_dialable(host)]
    addresses = tuple(Address(host, port) for host in usable)
    return Heard(NodeId(node), tag, printable(name), addresses)


def _text(properties: Mapping[bytes, bytes | None], key: bytes) -> str:
    return (properties.get(key) or b"").decode(errors="replace")


def _is_dialable(host: str) -> bool:
    """Whether a host literal can be dialled; scoped IPv6 needs a scope that means something."""
    literal, _, scope = host.partition("%")
    try:
        ip = ipaddress.ip_address(literal)
    except ValueError:
        return False
    if ip.is_multicast or ip.is_unspecified:
        return False
    return not (ip.version == 6 and ip.is_link_local and scope in ("", "0"))
