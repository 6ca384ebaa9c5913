"""Reads what the doctor wants to know of this machine: cards, ports, folders, memory, torch."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from swarm.commands.doctor.facts import Card, Compute, Folder, Machine, Port, RunningNode
from swarm.discovery.interfaces import Interface, classify
from swarm.errors import SwarmError
from swarm.gateway.client_io import running_node
from swarm.notes import printable
from swarm.terms import Address

PROBE_BYTES = 256 * 1024
"""Written and thrown away; more than a home folder holds of keys and counters."""
FITNESS_TIMEOUT_S = 120.0
FULL = (errno.ENOSPC, errno.EDQUOT)
Json = dict[str, Any]


def read_cards() -> tuple[Card, ...]:
    """All addresses of interfaces that are up, IPv6 link-local ones left out."""
    try:
        addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    except OSError:
        return ()
    cards = []
    for name in sorted(addresses):
        if name in states and not states[name].isup:
            continue
        for entry in addresses[name]:
            host = entry.address.partition("%")[0]
            if entry.family not in (socket.AF_INET, socket.AF_INET6) or host.startswith("fe80:"):
                continue
            prefix = _prefix_length(entry.netmask, is_v6=entry.family == socket.AF_INET6)
            kind = classify(Interface(name, host))
            cards.append(Card(name, host, prefix, kind, _is_wireless(name)))
    return tuple(cards)


def _prefix_length(netmask: str | None, *, is_v6: bool) -> int:
    """Of a mask in the form of an address; without one, that of a single host."""
    if not netmask:
        return 128 if is_v6 else 32
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    try:
        return int.from_bytes(
            socket.inet_pton(family, netmask.partition("/")[0]), "big"
        ).bit_count()
    except OSError:
        return 128 if is_v6 else 32


def _is_wireless(name: str) -> bool:
    return Path(f"/sys/class/net/{name}/wireless").exists() or name.startswith(("wl", "Wi-Fi"))


def neighbours() -> frozenset[str] | None:
    """IPv4 hosts that answered on the link layer; None where this system does not tell."""
    try:
        rows = Path("/proc/net/arp").read_text().splitlines()[1:]
    except OSError:
        return None
    fields = [row.split() for row in rows]
    return frozenset(row[0] for row in fields if len(row) > 3 and int(row[2], 16) & 0x2)


# -------------------------------------------------------------------- machine


def read_machine(home: Path, kernels: Path, ports: tuple[Port, ...]) -> Machine:
    memory = psutil.virtual_memory()
    folders = (_folder("the home", home), _folder("built kernels", kernels))
    return Machine(memory.total, memory.available, _files_max(), folders, ports)


def _files_max() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def _folder(purpose: str, path: Path) -> Folder:
    """Tried with a file of some size, in the folder or in the nearest one above that exists."""
    there = next((p for p in (path, *path.parents) if p.is_dir()), Path("/"))
    problem, is_full, free = "", False, 0
    try:
        free = psutil.disk_usage(str(there)).free
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem, is_full = _reason(error), error.errno in FULL
    return Folder(purpose, str(path), free, problem, is_full)


def try_port(purpose: str, address: Address, *, is_asked: bool) -> Port:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family) as server:
            if sys.platform != "win32":
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address.host, address.port))
            server.listen()
    except OSError as error:
        is_busy = error.errno == errno.EADDRINUSE
        holder = _holder(address.port) if is_busy else ""
        return Port(purpose, address, is_asked, _reason(error), is_busy, holder)
    return Port(purpose, address, is_asked)


def _holder(port: int) -> str:
    """The program that listens on a port, where this user may see it."""
    try:
        for entry in psutil.net_connections("tcp"):
            if entry.laddr and entry.laddr.port == port and entry.status == psutil.CONN_LISTEN:
                if entry.pid is None:
                    continue
                return f"{printable(psutil.Process(entry.pid).name())} (process {entry.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# -------------------------------------------------------------------- the running node


def read_node(home: Path) -> tuple[RunningNode | None, Json]:
    """The node that runs from a home, and its state; (None, {}) without one."""
    if not (home / "gateway.json").exists():
        return None, {}
    url = ""
    try:
        node = running_node(home)
        url, state = node.url, node.client().state()
        own = next(entry for entry in state["nodes"] if entry["self"])
        listening = tuple(read_address(text) for text in own["addresses"])
        return RunningNode(url, state["swarm"], printable(state["name"]), listening), state
    except SwarmError as error:
        return RunningNode(url, "", "", (), printable(str(error))), {}
    except (LookupError, TypeError, ValueError, StopIteration):
        return RunningNode(url, "", "", (), f"{url} does not answer as a swarm gateway"), {}


def read_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))


# -------------------------------------------------------------------- torch


def read_compute(wanted: str) -> Compute:
    """Asked of a process of its own, which may be slow or die."""
    has_nvidia = Path("/proc/driver/nvidia/version").exists()
    command = [sys.executable, "-m", "swarm.shard.fitness_io"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FITNESS_TIMEOUT_S, check=False
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        problem = f"importing it took more than {FITNESS_TIMEOUT_S:.0f} s"
        return Compute("", problem, has_nvidia=has_nvidia, wanted=wanted)
    except (OSError, ValueError, IndexError):
        return Compute("", "the process that imports it died", has_nvidia=has_nvidia, wanted=wanted)
    if "problem" in told:
        return Compute("", printable(told["problem"]), has_nvidia=has_nvidia, wanted=wanted)
    return Compute(
        torch=told["torch"],
        devices=tuple((name, shown) for name, shown in told["devices"]),
        broken_devices=tuple((name, trouble) for name, trouble in told["broken"]),
        flash_attention=told["flash"],
        flash_problem=told["flash_problem"],
        compiler=told["compiler"],
        has_nvidia=has_nvidia,
        wanted=wanted,
    )
