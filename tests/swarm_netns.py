"""Hosts on one LAN as network namespaces: a bridge in a namespace of its own, one veth per host.

Nothing of the machine's own network is touched, so several such LANs can exist side by side.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from types import TracebackType

from swarm_http import READ_TIMEOUT_S

CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"


def why_not() -> str | None:
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"swt{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return None


class Lan:
    """`hosts` namespaces named after `tag`, host i at 10.77.0.(i+1)."""

    def __init__(self, hosts: int, tag: str) -> None:
        prefix = f"sw{tag}{os.getpid()}"
        self.switch = f"{prefix}s"
        self.hosts = [f"{prefix}h{i}" for i in range(hosts)]

    def __enter__(self) -> Lan:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("netns", "add", self.switch)
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for index, host in enumerate(self.hosts):
            _ip("netns", "add", host)
            peer = ["type", "veth", "peer", "name", f"port{index}", "netns", self.switch]
            _ip("-n", host, "link", "add", "eth0", *peer)
            _ip("-n", self.switch, "link", "set", f"port{index}", "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{self.address(index)}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "lo", "up")
            self.plug(index)

    def _remove(self) -> None:
        for name in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def address(self, index: int) -> str:
        return f"{SUBNET}.{index + 1}"

    def unplug(self, index: int) -> None:
        """The host is gone from one moment to the next: nobody is told."""
        _ip("-n", self.hosts[index], "link", "set", "eth0", "down")

    def plug(self, index: int) -> None:
        _ip("-n", self.hosts[index], "link", "set", "eth0", "up")
        _ip("-n", self.hosts[index], "route", "replace", "default", "dev", "eth0")

    def forget_ipv4(self, index: int) -> None:
        """The host keeps the address that it gave itself: IPv6 link-local."""
        _ip("-n", self.hosts[index], "-4", "addr", "flush", "dev", "eth0")

    def move(self, index: int, address: str) -> None:
        """The host gets another address and loses the one it had, as from Wi-Fi to cable."""
        _ip("-n", self.hosts[index], "addr", "del", f"{self.address(index)}/24", "dev", "eth0")
        _ip("-n", self.hosts[index], "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", self.hosts[index], "route", "replace", "default", "dev", "eth0")

    def part(self, one: int, other: int, protocol: str = "all") -> None:
        """The two hosts drop all that comes from each other, as isolated clients of one radio do,
        or only `protocol` (tcp, udp), as a firewall does: nobody is told."""
        for here, there in ((one, other), (other, one)):
            rule = ["iptables", "-w", "-A", "INPUT", "-s", self.address(there), "-p", protocol]
            _ip("netns", "exec", self.hosts[here], *rule, "-j", "DROP")

    def connect_inside(self, index: int) -> _Inside:
        return _Inside(self.hosts[index])


class _Inside:
    """Makes sockets that live in a namespace, for the calling thread alone."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def __call__(self, host: str, port: int) -> socket.socket:
        with inside(self.namespace):
            return socket.create_connection((host, port), timeout=READ_TIMEOUT_S)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in `namespace` for the length of the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        open("/proc/thread-self/ns/net") as own,
        open(f"/var/run/netns/{namespace}") as other,
    ):
        _enter(libc, other.fileno())
        try:
            yield
        finally:
            _enter(libc, own.fileno())


def _enter(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
