"""Which own addresses are announced, what is read from others, and the invite line."""

from __future__ import annotations

import asyncio

import pytest

from swarm.discovery.announcement import Announcement, read_entry
from swarm.discovery.interfaces import (
    AddressClass,
    Interface,
    announced_addresses,
    announced_hosts,
    classify,
    multicast_hosts,
    scoped_hosts,
)
from swarm.discovery.interfaces_io import InterfaceWatch, read_interfaces
from swarm.discovery.invite import invite_line
from swarm.terms import Address, NodeId

LOOPBACK = (Interface("lo", "127.0.0.1"), Interface("lo", "::1"))
DOCKER = (Interface("docker0", "172.17.0.1"), Interface("br-0a1b2c", "172.18.0.1"))
VPN = (Interface("tailscale0", "100.64.1.2"), Interface("utun3", "10.9.0.2"))
WIFI = (Interface("wlan0", "192.168.1.20"), Interface("wlan0", "fe80::1"))
CABLE = (Interface("eth0", "192.168.1.10"), Interface("eth0", "fd00::10"))
SELF_GIVEN = (Interface("eth1", "169.254.3.4"),)


@pytest.mark.parametrize(
    ("interface", "kind"),
    [
        (LOOPBACK[0], AddressClass.LOOPBACK),
        (LOOPBACK[1], AddressClass.LOOPBACK),
        (DOCKER[0], AddressClass.VIRTUAL),
        (DOCKER[1], AddressClass.VIRTUAL),
        (Interface("veth12ab", "10.0.0.1"), AddressClass.VIRTUAL),
        (Interface("virbr0", "192.168.122.1"), AddressClass.VIRTUAL),
        (VPN[0], AddressClass.TUNNEL),
        (VPN[1], AddressClass.TUNNEL),
        (WIFI[0], AddressClass.LAN),
        (WIFI[1], AddressClass.UNUSABLE),
        (SELF_GIVEN[0], AddressClass.LINK_LOCAL),
        (Interface("Ethernet", "10.1.1.1"), AddressClass.LAN),
        (Interface("eth0", "not an address"), AddressClass.UNUSABLE),
        (Interface("eth0", "0.0.0.0"), AddressClass.UNUSABLE),
    ],
)
def test_address_classes(interface: Interface, kind: AddressClass) -> None:
    assert classify(interface) is kind


@pytest.mark.parametrize(
    ("interfaces", "bound", "hosts"),
    [
        (LOOPBACK + DOCKER + VPN + WIFI + CABLE, "", ("192.168.1.10", "192.168.1.20", "fd00::10")),
        (LOOPBACK + DOCKER + VPN + WIFI, "0.0.0.0", ("192.168.1.20",)),
        (LOOPBACK + DOCKER + SELF_GIVEN, "", ("169.254.3.4",)),
        (LOOPBACK + DOCKER + VPN, "", ("10.9.0.2", "100.64.1.2")),
        (LOOPBACK + DOCKER, "", ("172.17.0.1", "172.18.0.1")),
        (LOOPBACK, "", ("127.0.0.1", "::1")),
        ((), "", ()),
        (CABLE + WIFI, "127.0.0.1", ("127.0.0.1",)),
        (CABLE + WIFI, "192.168.1.20", ("192.168.1.20",)),
    ],
)
def test_announced_hosts(interfaces: tuple[Interface, ...], bound: str, hosts: object) -> None:
    assert announced_hosts(interfaces, bound) == hosts


def test_announced_addresses_carry_the_port_and_keep_the_limit() -> None:
    many = tuple(Interface("eth0", f"10.0.0.{number}") for number in range(1, 20))
    addresses = announced_addresses(many, Address("0.0.0.0", 7000), 8)
    assert len(addresses) == 8 and addresses[0] == Address("10.0.0.1", 7000)


def test_multicast_speaks_where_the_node_listens() -> None:
    everything = LOOPBACK + DOCKER + WIFI + CABLE
    assert multicast_hosts(everything, "::") == ("192.168.1.10", "192.168.1.20")
    assert multicast_hosts(everything, "127.0.0.1") == ("127.0.0.1",)
    assert multicast_hosts(everything, "192.168.1.10") == ("192.168.1.10",)
    assert multicast_hosts(everything, "10.99.99.99") == (), "not one of ours"
    assert multicast_hosts(LOOPBACK, "") == ("127.0.0.1",)


def test_addresses_with_a_scope_are_announced_where_they_lead_somewhere() -> None:
    tunnel = (Interface("tailscale0", "fe80::9"), Interface("docker0", "fe80::8"))
    everything = LOOPBACK + tunnel + WIFI + CABLE
    assert scoped_hosts(everything, "::") == ("fe80::1",)
    assert scoped_hosts(everything, "0.0.0.0") == ()
    assert scoped_hosts(everything, "192.168.1.20") == ()
    assert scoped_hosts((Interface("eth0", "no address"),), "") == ()
    assert "fe80::1" not in announced_hosts(everything, "::")


def test_this_machine_has_interfaces_that_can_be_read() -> None:
    assert all(interface.name and interface.host for interface in read_interfaces())


def test_a_change_of_interfaces_is_told_once() -> None:
    looks = iter([CABLE, CABLE, WIFI, WIFI])
    told: list[tuple[Interface, ...]] = []
    watch = InterfaceWatch(5.0, told.append, read=lambda: next(looks))
    assert [watch.look() for _ in range(3)] == [False, True, False]
    assert told == [WIFI] and watch.interfaces == WIFI


def test_the_watch_looks_until_it_is_cancelled() -> None:
    looks = iter([CABLE, WIFI])
    done = asyncio.Event()

    async def watch() -> None:
        task = asyncio.create_task(
            InterfaceWatch(0.0, lambda _: done.set(), read=lambda: next(looks)).run()
        )
        await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())


OWN = Announcement(NodeId("a" * 32), "tag1", "a name", Address("0.0.0.0", 7000), 1, 2)


def test_an_announcement_reads_back() -> None:
    properties = {k.encode(): v.encode() for k, v in OWN.properties().items()}
    heard = read_entry(properties, ["192.168.1.10", "fd00::10"], 7000)
    assert heard is not None
    assert (heard.node, heard.tag, heard.name) == (OWN.node, "tag1", "a name")
    assert heard.addresses == (Address("192.168.1.10", 7000), Address("fd00::10", 7000))
    assert properties[b"v"] == b"1-2"
    assert OWN.instance == "aaaaaaaaaaaaaaaa._swarm._tcp.local."


def test_a_long_name_is_cut_between_letters() -> None:
    long = Announcement(NodeId("a" * 32), "t", "é" * 60, Address("", 1), 1, 1)
    assert long.properties()["name"] == "é" * 31


@pytest.mark.parametrize(
    ("changes", "hosts", "port"),
    [
        ({b"id": b"short"}, ["10.0.0.1"], 7000),
        ({b"id": b"A" * 32}, ["10.0.0.1"], 7000),
        ({b"id": None}, ["10.0.0.1"], 7000),
        ({b"id": b"\xff" * 32}, ["10.0.0.1"], 7000),
        ({b"tag": b""}, ["10.0.0.1"], 7000),
        ({b"tag": b"x y\n"}, ["10.0.0.1"], 7000),
        ({}, ["10.0.0.1"], None),
        ({}, ["10.0.0.1"], 0),
        ({}, ["10.0.0.1"], 70000),
    ],
)
def test_what_is_no_entry_is_not_read(
    changes: dict[bytes, bytes | None], hosts: list[str], port: int | None
) -> None:
    properties: dict[bytes, bytes | None] = {b"id": b"a" * 32, b"tag": b"t", b"name": b"n"}
    assert read_entry(properties | changes, hosts, port) is None


def test_addresses_that_cannot_be_dialled_are_left_out() -> None:
    properties: dict[bytes, bytes | None] = {b"id": b"a" * 32, b"tag": b"t", b"name": b"\x1b[2Jn"}
    hosts = ["fe80::1", "fe80::1%0", "fe80::1%2", "224.0.0.1", "0.0.0.0", "junk", "10.0.0.1"]
    heard = read_entry(properties, hosts, 7000)
    assert heard is not None
    assert [address.host for address in heard.addresses] == ["fe80::1%2", "10.0.0.1"]
    assert heard.name == " [2Jn", "nothing that a terminal obeys"


def test_invite_line_can_be_typed_as_it_is() -> None:
    assert invite_line("sk-abc") == "swarm join --key sk-abc"
    line = invite_line("a b", (Address("10.0.0.1", 7000), Address("fd00::1", 7001)))
    assert line == "swarm join --key 'a b' --peer 10.0.0.1:7000 --peer '[fd00::1]:7001'"
