"""What `swarm doctor` found out, before anybody says what it means. Values, no judgement. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum

from swarm.discovery.interfaces import AddressClass
from swarm.link.found import Found
from swarm.terms import Address, NodeId

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Card:
    """One address of one network interface that is up."""

    name: str
    host: str
    prefix_length: int
    kind: AddressClass
    is_wireless: bool = False

    @property
    def network(self) -> Network:
        return ipaddress.ip_network(f"{self.host}/{self.prefix_length}", strict=False)

    @property
    def is_v6(self) -> bool:
        return ":" in self.host

    def reaches(self, host: str) -> bool:
        """Whether a host is in the network of this address."""
        try:
            return ipaddress.ip_address(host) in self.network
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Multicast:
    """What became of questions sent by multicast from one address.

    `is_sent`: somebody answered one of ours; `is_heard`: a packet of another machine came in by
    multicast. False only where somebody else takes part, as a question by unicast showed; else
    None.
    """

    host: str
    is_sent: bool | None
    is_heard: bool | None
    problem: str = ""
    """Why this machine could not even ask."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A node that announces itself by multicast."""

    node: NodeId
    tag: str
    name: str
    addresses: tuple[Address, ...]


DIRECT = "direct"


class Origin(Enum):
    """How an address came to be looked at."""

    ASKED = "named by --peer"
    STATE = "a member that the running node knows"
    HEARD = "heard by multicast"
    REMEMBERED = "remembered from last time"


@dataclass(frozen=True, slots=True)
class Peer:
    """A look at one node's address, and what else is known of that node."""

    found: Found
    name: str
    origin: Origin
    is_heard: bool = False
    """By multicast, now."""
    is_linked: bool = False
    """The running node has a link with it."""
    kind: str = DIRECT
    """How that link goes: direct, relayed or webrtc."""
    is_neighbour: bool | None = None
    """It answers on the link layer (ARP), as far as this machine tells."""


@dataclass(frozen=True, slots=True)
class RunningNode:
    url: str
    tag: str
    name: str
    listening: tuple[Address, ...]
    problem: str = ""
    """Why its gateway did not answer, or what is wrong with the file that names it."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port that `swarm join` would take."""

    purpose: str
    address: Address
    is_asked: bool
    """It was asked for, and so is not moved."""
    problem: str = ""
    is_busy: bool = False
    holder: str = ""
    """The program that has it, as far as this user may see that."""


@dataclass(frozen=True, slots=True)
class Folder:
    purpose: str
    path: str
    free_bytes: int
    problem: str = ""
    """Why nothing could be written there."""
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    memory_total_bytes: int
    memory_free_bytes: int
    files_max: int
    """Open files allowed to one process; 0: no such limit here."""
    folders: tuple[Folder, ...]
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """What the worker's Python says of this machine. `devices`: names by cuda:N, mps."""

    torch: str
    problem: str = ""
    """Why torch cannot be used at all."""
    devices: tuple[tuple[str, str], ...] = ()
    broken_devices: tuple[tuple[str, str], ...] = ()
    """Devices on which a small sum failed, and how."""
    flash_attention: str = ""
    """Its version."""
    flash_problem: str = ""
    compiler: str = ""
    has_nvidia: bool = False
    """An NVIDIA driver is loaded."""
    wanted: str = "cpu"


@dataclass(frozen=True, slots=True)
class Facts:
    tag: str
    """Of the key of this home; empty: there is none."""
    key_problem: str
    config_problem: str
    cards: tuple[Card, ...]
    multicast: tuple[Multicast, ...]
    uses_multicast: bool
    heard: tuple[Heard, ...]
    peers: tuple[Peer, ...]
    node: RunningNode | None
    machine: Machine
    compute: Compute | None
    """None: not looked at."""
