"""Socket options, addresses and this machine's AES, as far as the platform tells."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm import notes
from swarm.terms import Address

ALL_HOSTS = "::"
_ALL_V4 = "0.0.0.0"  # noqa: S104
_PORT_ATTEMPTS = 5
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""Seconds, seconds, count: an idle connection to a host that vanished is reaped in 11 s."""
_LOWER_EFFORT = 0x20
_BULK_PRIORITY = 2
"""TC_PRIO_BULK."""
_TEXT_MAX = 200
_RESOLVED_MAX = 4


async def listen_on(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> list[asyncio.Server]:
    """Servers on a host; `::` is every interface, on one port of both families.

    Raises OSError where not even IPv4 can be had, or the port is free in one family only.
    """
    loop = asyncio.get_running_loop()
    if host != ALL_HOSTS:
        return [await loop.create_server(factory, host, port)]
    for attempt in range(_PORT_ATTEMPTS):
        first = await loop.create_server(factory, _ALL_V4, port)
        bound = int(first.sockets[0].getsockname()[1])
        try:
            return [first, await loop.create_server(factory, ALL_HOSTS, bound)]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return [first]  # a machine without IPv6
            first.close()
            if port or attempt == _PORT_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def set_options(sock: Any) -> None:
    """No delay, keepalive. `sock`: as `get_extra_info` gives it, or None."""
    if sock is None:
        return
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in options:
        _try_option(sock, level, option, value)


def set_user_timeout(sock: Any, timeout_ms: int) -> None:
    """Bytes unacknowledged this long end the connection.

    For control lanes only: it also counts time in which a live peer's receive window is shut, and
    a data lane may be shut that long by a reader that is merely slow.
    """
    if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        _try_option(sock, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)


def set_background(sock: Any, buffer_bytes: int) -> None:
    """What goes out here makes way for all else, where there is a choice, and never queues long.

    The marking is RFC 3662's lower effort (CS1, which Wi-Fi takes for background), the priority
    the lowest band of a Linux network card's queue. The small buffer bounds what waits in it.
    """
    if sock is None:
        return
    options = [
        (socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes),
        (socket.IPPROTO_IP, socket.IP_TOS, _LOWER_EFFORT),
    ]
    if hasattr(socket, "SO_PRIORITY"):
        options.append((socket.SOL_SOCKET, socket.SO_PRIORITY, _BULK_PRIORITY))
    for level, option, value in options:
        _try_option(sock, level, option, value)


def _try_option(sock: Any, level: int, option: int, value: int) -> None:
    """Options are an extra: a platform that lacks one works without."""
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return


async def resolve(address: Address) -> list[str]:
    """The IP literals behind an address, at least one. Raises OSError or ValueError.

    Names are looked up here and not by `create_connection`: uvloop leaves the error of a look-up
    that is no longer wanted to the loop's exception handler.
    """
    try:
        ipaddress.ip_address(address.host.partition("%")[0])
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in found))[:_RESOLVED_MAX]
    return [address.host]


def remote_host(peername: Any) -> str:
    """The host of a `peername`, IPv4 in its own form; empty where there is none."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    return str(peername[0]).removeprefix("::ffff:")


def printable(text: str) -> str:
    """Text from the other side, fit for a log line."""
    return notes.printable(text[:_TEXT_MAX])


def plain_error(error: Exception) -> str:
    """A short reason without addresses and error numbers."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return printable(str(error)) or type(error).__name__


def aes_in_hardware() -> bool:
    """Whether AES-GCM is fast here: then it beats ChaCha20-Poly1305 threefold, else it loses."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        return any(
            "aes" in line.split()
            for line in cpuinfo.read_text(errors="replace").splitlines()
            if line.lower().startswith(("flags", "features"))
        )
    return platform.machine().lower() in ("x86_64", "amd64", "arm64")
