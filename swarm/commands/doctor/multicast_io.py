"""Whether multicast goes out and comes in, interface by interface, and which nodes are announced.

Three questions tell the two directions apart, all of them ordinary mDNS (RFC 6762):

* by multicast from a port of our own: who hears it answers by unicast (6.7), so *sent* is known
  even where nothing can come in by multicast;
* by multicast from port 5353: answers come by multicast, so *heard* is known;
* by unicast from port 5353 to hosts known otherwise (5.5): they too answer by multicast, so
  *heard* is known even where nothing goes out by multicast. A unicast question from another port
  shows whether that host takes part at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from zeroconf import Error as ZeroconfError
from zeroconf import IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from swarm.commands.doctor.facts import Card, Heard, Multicast
from swarm.discovery.announcement import SERVICE_TYPE, read_entry

GROUP, PORT = "224.0.0.251", 5353
EVERY_SERVICE = "_services._dns-sd._udp.local."
"""Answered by every responder that announces anything: printers and phones count as witnesses."""
BROWSE_S = 1.5
ROUNDS = 3
ROUND_S = 0.7
"""Answers by multicast come after up to 0.12 s, and the same one at most every second."""
HEARD_MAX = 256
QUERY, POINTER, INTERNET = 0x0000, 12, 1
MULTICAST_ALL = 49
"""IP_MULTICAST_ALL of Linux, which Python does not name: without it a socket gets packets of
groups that others joined, on other interfaces."""


async def browse(hosts: Sequence[str]) -> tuple[Heard, ...]:
    """Nodes that announce themselves on these addresses' networks now, of any swarm."""
    if not hosts:
        return ()
    found: dict[str, Heard] = {}
    lookups: set[asyncio.Task[None]] = set()

    async def look(zeroconf: Zeroconf, info: AsyncServiceInfo) -> None:
        if await info.async_request(zeroconf, int(BROWSE_S * 1000)):
            addresses = info.parsed_scoped_addresses()
            entry = read_entry(dict(info.properties), addresses, info.port)
            if entry is not None and len(found) < HEARD_MAX:
                found[info.name] = Heard(entry.node, entry.tag, entry.name, entry.addresses)

    def changed(
        zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is not ServiceStateChange.Removed and len(lookups) < HEARD_MAX:
            task = asyncio.get_running_loop().create_task(
                look(zeroconf, AsyncServiceInfo(service_type, name))
            )
            lookups.add(task)

    try:
        zeroconf = AsyncZeroconf(interfaces=list(hosts), ip_version=IPVersion.V4Only)
    except (OSError, ZeroconfError):
        return ()
    browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE_TYPE, handlers=[changed])
    await asyncio.sleep(BROWSE_S)
    await browser.async_cancel()
    await asyncio.gather(*lookups, return_exceptions=True)
    await zeroconf.async_close()
    return tuple(sorted(found.values(), key=lambda heard: (heard.tag, heard.node)))


# -------------------------------------------------------------------- both directions


class _Ear(asyncio.DatagramProtocol):
    """Hosts that packets came from; own ones do not count."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._transport: asyncio.DatagramTransport | None = None
        self.hosts: set[str] = set()
        self.is_refused = False
        """This machine's own firewall did not let a question out."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if addr[0] not in self._own:
            self.hosts.add(addr[0])

    def error_received(self, exc: Exception) -> None:
        self.is_refused = self.is_refused or isinstance(exc, PermissionError)

    def ask(self, host: str) -> None:
        if self._transport is not None:
            self._transport.sendto(_question(secrets.randbits(16)), (host, PORT))


@dataclass(frozen=True, slots=True)
class _Ears:
    """`sent` hears answers to our multicast, `heard` packets by multicast, `direct` answers to our
    questions by unicast; `asking` is port 5353 itself."""

    sent: _Ear
    heard: _Ear
    direct: _Ear
    asking: _Ear

    def ask(self, hosts: Sequence[str]) -> None:
        for ear in (self.sent, self.asking):
            ear.ask(GROUP)
        for host in hosts:
            for ear in (self.direct, self.asking):
                ear.ask(host)

    def verdict(self, host: str) -> Multicast:
        takes_part = bool(self.direct.hosts or self.sent.hosts or self.heard.hosts)
        unheard = False if takes_part else None
        unsent = False if self.sent.is_refused else unheard
        return Multicast(host, bool(self.sent.hosts) or unsent, bool(self.heard.hosts) or unheard)


async def try_multicast(card: Card, own: frozenset[str], hosts: Sequence[str]) -> Multicast:
    """`own`: all addresses of this machine. `hosts`: others in the card's network."""
    near = [host for host in hosts if host not in own]
    async with contextlib.AsyncExitStack() as stack:
        try:
            ears = _Ears(
                sent=await _ear(stack, own, card.host, (card.host, 0)),
                heard=await _ear(stack, own, card.host, None),
                direct=await _ear(stack, own, card.host, (card.host, 0)),
                asking=await _ear(stack, own, card.host, (card.host, PORT)),
            )
        except OSError as error:
            return Multicast(card.host, None, None, (error.strerror or str(error)).lower())
        for _ in range(ROUNDS):
            ears.ask(near)
            await asyncio.sleep(ROUND_S)
            if ears.sent.hosts and ears.heard.hosts:
                break
    return ears.verdict(card.host)


async def _ear(
    stack: contextlib.AsyncExitStack,
    own: frozenset[str],
    host: str,
    bound: tuple[str, int] | None,
) -> _Ear:
    """A socket on one interface; `bound` None: it takes what comes by multicast alone."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stack.callback(sock.close)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    if bound is None:
        _join(sock, host)
    else:
        sock.bind(bound)
    loop = asyncio.get_running_loop()
    transport, ear = await loop.create_datagram_endpoint(lambda: _Ear(own), sock=sock)
    stack.callback(transport.close)
    return ear


def _join(sock: socket.socket, host: str) -> None:
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_IP, MULTICAST_ALL, 0)
    sock.bind(("" if sys.platform == "win32" else GROUP, PORT))
    member = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton(host))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)


def _question(number: int) -> bytes:
    """RFC 1035, 4.1: a header that says how many questions follow, and these.

    `number` keeps packets apart: responders drop one that is equal to the last one they got.
    """
    names = (SERVICE_TYPE, EVERY_SERVICE)
    header = struct.pack(">6H", number, QUERY, len(names), 0, 0, 0)
    return header + b"".join(
        b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
        + struct.pack(">BHH", 0, POINTER, INTERNET)
        for name in names
    )
