"""The machine's network interfaces, read and watched."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import psutil

from swarm.discovery.interfaces import Interface

InterfaceReader = Callable[[], tuple[Interface, ...]]


def read_interfaces() -> tuple[Interface, ...]:
    """All IP addresses of interfaces that are up; a short system call, no network."""
    try:
        addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    except OSError:
        return ()
    found = []
    for name in sorted(addresses):
        if name in states and not states[name].isup:
            continue
        for entry in addresses[name]:
            is_ip = entry.family in (socket.AF_INET, socket.AF_INET6)
            if is_ip and not _is_tentative(entry.address):
                found.append(Interface(name, entry.address.partition("%")[0]))
    return tuple(found)


def _is_tentative(address: str) -> bool:
    """Whether an IPv6 address cannot be bound yet: for a second or two after it came, its machine
    asks whether anybody else has it (RFC 4862). `address`: with its scope, as psutil gives it."""
    if ":" not in address or (address.lower().startswith("fe8") and "%" not in address):
        return False
    try:
        place = socket.getaddrinfo(address, 0, socket.AF_INET6, flags=socket.AI_NUMERICHOST)[0][4]
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(place)
    except OSError as error:
        return error.errno == errno.EADDRNOTAVAIL
    return False


class InterfaceWatch:
    """Calls `on_change` with the new interfaces when they differ from the last look.

    Addresses change with cables, Wi-Fi and sleep, and no system tells Python of it.
    """

    def __init__(
        self,
        interval_s: float,
        on_change: Callable[[tuple[Interface, ...]], None],
        read: InterfaceReader = read_interfaces,
    ) -> None:
        self._interval_s = interval_s
        self._on_change = on_change
        self._read = read
        self.interfaces = read()

    async def run(self) -> None:
        """Look again and again until cancelled. The owner keeps the task."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.look()

    def look(self) -> bool:
        """Look once; True when something changed."""
        now = self._read()
        if now == self.interfaces:
            return False
        self.interfaces = now
        self._on_change(now)
        return True
