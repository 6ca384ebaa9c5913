"""Which of a machine's own addresses are worth announcing. Pure; `interfaces_io` reads them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from swarm.terms import Address

VIRTUAL_PREFIXES = (
    "docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "cni", "flannel", "cali", "lxc", "lxdbr",
    "podman", "vethernet", "bridge",
)  # fmt: skip
"""Bridges and containers: others on the LAN cannot reach what is behind them."""
TUNNEL_PREFIXES = ("utun", "tun", "tap", "wg", "tailscale", "zt", "ppp", "ipsec", "awdl", "llw")
"""VPNs and peer-to-peer radios: slow, or another network altogether."""
ANY_HOSTS = ("", "0.0.0.0", "::", "*")
"""Listening hosts that mean every interface."""


class AddressClass(IntEnum):
    """In the order of preference; only the best class that is present is announced."""

    LAN = 0
    """Private or public address of a physical interface."""
    LINK_LOCAL = 1
    """IPv4 that the machine gave itself because nobody else did (169.254/16)."""
    TUNNEL = 2
    VIRTUAL = 3
    LOOPBACK = 4
    UNUSABLE = 5
    """Among them IPv6 link-local, which means nothing without the scope of the machine that dials:
    see `scoped_hosts`."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one network interface that is up. `host` is an IP literal, no scope."""

    name: str
    host: str


def classify(interface: Interface) -> AddressClass:
    """What kind of network the address belongs to, by its value and its interface's name."""
    try:
        ip = ipaddress.ip_address(interface.host)
    except ValueError:
        return AddressClass.UNUSABLE
    if ip.is_multicast or ip.is_unspecified or (ip.version == 6 and ip.is_link_local):
        return AddressClass.UNUSABLE
    if ip.is_loopback:
        return AddressClass.LOOPBACK
    name = interface.name.lower()
    if name.startswith(VIRTUAL_PREFIXES):
        return AddressClass.VIRTUAL
    if name.startswith(TUNNEL_PREFIXES):
        return AddressClass.TUNNEL
    return AddressClass.LINK_LOCAL if ip.is_link_local else AddressClass.LAN


def announced_hosts(interfaces: Iterable[Interface], bound_host: str) -> tuple[str, ...]:
    """The IP literals at which others may try this node, IPv4 first; () without any network.

    `bound_host`: where the node listens. A particular one is all that can be reached.
    """
    if bound_host not in ANY_HOSTS:
        return (bound_host,)
    usable = [i for i in interfaces if classify(i) is not AddressClass.UNUSABLE]
    if bound_host == "0.0.0.0":
        usable = [i for i in usable if not _is_v6(i.host)]
    if not usable:
        return ()
    best = min(classify(interface) for interface in usable)
    hosts = {i.host for i in usable if classify(i) is best}
    return tuple(sorted(hosts, key=lambda host: (_is_v6(host), ipaddress.ip_address(host).packed)))


def scoped_hosts(interfaces: Iterable[Interface], bound_host: str) -> tuple[str, ...]:
    """IPv6 link-local addresses of physical interfaces, where the node listens on all.

    Whoever hears them by multicast knows the scope: the interface that they came in on. They go
    into no record and no invite.
    """
    if bound_host not in ANY_HOSTS or bound_host == "0.0.0.0":
        return ()
    found = {i.host for i in interfaces if _is_scoped(i.host) and _is_physical(i.name)}
    return tuple(sorted(found, key=lambda host: ipaddress.ip_address(host).packed))


def announced_addresses(
    interfaces: Iterable[Interface], bound: Address, limit: int
) -> tuple[Address, ...]:
    """`announced_hosts` with the port, at most `limit`."""
    hosts = announced_hosts(interfaces, bound.host)
    return tuple(Address(host, bound.port) for host in hosts[:limit])


def multicast_hosts(interfaces: Iterable[Interface], bound_host: str) -> tuple[str, ...]:
    """The IPv4 addresses of the interfaces on which mDNS is to speak; () means nowhere."""
    known = tuple(interfaces)
    wanted = announced_hosts(known, "0.0.0.0" if bound_host in ANY_HOSTS else bound_host)
    own = {interface.host for interface in known}
    return tuple(host for host in wanted if host in own and not _is_v6(host))


def _is_physical(name: str) -> bool:
    return not name.lower().startswith((*VIRTUAL_PREFIXES, *TUNNEL_PREFIXES))


def _is_scoped(host: str) -> bool:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return ip.version == 6 and ip.is_link_local


def _is_v6(host: str) -> bool:
    return ":" in host
