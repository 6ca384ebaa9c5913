"""Hosts of one LAN, each with a fault of its own, and what `swarm doctor` says on each of them.

All doctors run at once: they mostly wait. Three swarms share the LAN, so that a node with a fault
of its own troubles only the doctor that has its key.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarm_netns import Lan
from swarm_procs import PROGRAM, fresh_key

SKEWED = (
    "import swarm.messages as m; m.PROTOCOL_MIN, m.PROTOCOL_MAX = 7, 9\n"
    "import sys; from swarm.cli import main; sys.exit(main(sys.argv[1:]))"
)
NO_SYN_IN = "chain c { type filter hook input priority 0; tcp flags & (syn|ack) == syn drop; }"
NO_MULTICAST_IN = "chain c { type filter hook input priority 0; ip daddr 224.0.0.0/4 drop; }"
NO_MULTICAST_OUT = "chain c { type filter hook output priority 0; ip daddr 224.0.0.0/4 drop; }"
NODE_PORT = 7946


@dataclass
class Ward:
    """The LAN, its nodes and its patients."""

    folder: Path
    lan: Lan
    stack: contextlib.ExitStack
    keys: dict[str, str] = field(default_factory=lambda: {n: fresh_key() for n in ("a", "b", "c")})
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    _doctors: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _used: int = 0
    _tables: int = 0

    def host(self) -> int:
        self._used += 1
        return self._used - 1

    def inside(self, host: int, *command: str) -> None:
        full = ["ip", "netns", "exec", self.lan.hosts[host], *command]
        done = subprocess.run(full, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{full}: {done.stderr}"

    def firewall(self, host: int, chain: str) -> None:
        self.inside(host, "nft", f"table inet f {{\n{chain}\n}}")

    def on_switch(self, chain: str) -> None:
        """A filter between ports of the switch; each call adds a table of its own."""
        self._tables += 1
        rule = f"table bridge f{self._tables} {{\n{chain}\n}}"
        full = ["ip", "netns", "exec", self.lan.switch, "nft", rule]
        done = subprocess.run(full, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{full}: {done.stderr}"

    def node(self, name: str, key: str, host: int, program: list[str] | None = None) -> str:
        """A node that serves nothing; returns its address once it listens."""
        command = ["ip", "netns", "exec", self.lan.hosts[host], *(program or [str(PROGRAM)])]
        command += ["join", "--home", str(self.folder / name), "--name", name, "--log-json"]
        command += ["--key", self.keys[key], "--listen", f"0.0.0.0:{NODE_PORT}"]
        process = self.stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        )
        self.stack.callback(process.kill)
        assert process.stdout is not None
        assert any("mdns.started" in line for line in process.stdout), f"{name} did not start"
        return f"{self.lan.address(host)}:{NODE_PORT}"

    def examine(
        self, name: str, host: int, key: str, *flags: str, home: Path | None = None
    ) -> None:
        """Let the doctor begin there."""
        command = ["ip", "netns", "exec", self.lan.hosts[host], str(PROGRAM), "doctor", "--json"]
        command += ["--no-torch", "--home", str(home or self.folder / name), "--key", key, *flags]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        self._doctors[name] = self.stack.enter_context(process)
        self.stack.callback(process.kill)

    def collect(self) -> None:
        for name, process in self._doctors.items():
            out, err = process.communicate(timeout=120)
            assert not err, f"{name}: {err}"
            self.reports[name] = json.loads(out) | {"status": process.returncode}

    def causes(self, name: str) -> dict[str, str]:
        """What was found there, by cause -> grade; what is well is left out."""
        rows = self.reports[name]["findings"]
        return {row["cause"]: row["grade"] for row in rows if row["grade"] != "ok"}

    def well(self, name: str) -> set[str]:
        rows = self.reports[name]["findings"]
        return {row["check"] for row in rows if row["grade"] == "ok"}


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A full file system at `path`."""
    path.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    subprocess.run(mounted, check=True, capture_output=True)
    try:
        with contextlib.suppress(OSError):
            (path / "filler").write_bytes(bytes(1 << 20))
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True, capture_output=True)


Patient = Callable[[Ward, str], None]
"""Makes a host ill and sends the doctor there; told the address of a healthy node."""


def healthy(ward: Ward, bert: str) -> None:
    ward.examine("healthy", ward.host(), ward.keys["a"])


def multicast_filtered(ward: Ward, bert: str) -> None:
    host = ward.host()
    ways = ("iifname", "oifname")
    drops = " ".join(f'{way} "port{host}" ip daddr 224.0.0.0/4 drop;' for way in ways)
    ward.on_switch(f"chain c {{ type filter hook forward priority 0; {drops} }}")
    ward.examine("multicast filtered", host, ward.keys["a"], "--peer", bert)


def multicast_in_filtered(ward: Ward, bert: str) -> None:
    host = ward.host()
    ward.firewall(host, NO_MULTICAST_IN)
    ward.examine("multicast in", host, ward.keys["a"])


def multicast_out_filtered(ward: Ward, bert: str) -> None:
    host = ward.host()
    ward.firewall(host, NO_MULTICAST_OUT)
    ward.examine("multicast out", host, ward.keys["a"], "--peer", bert)


def isolated(ward: Ward, bert: str) -> None:
    host = ward.host()
    drops = f'iifname "port{host}" drop; oifname "port{host}" drop;'
    ward.on_switch(f"chain c {{ type filter hook forward priority 0; {drops} }}")
    ward.examine("isolated", host, ward.keys["a"], "--peer", bert)


def firewall_here(ward: Ward, bert: str) -> None:
    host = ward.host()
    ward.firewall(host, NO_SYN_IN)
    ward.examine("firewall here", host, ward.keys["a"])


def firewall_there(ward: Ward, bert: str) -> None:
    shut = ward.host()
    ward.firewall(shut, NO_SYN_IN)
    ward.node("carl", "b", shut)
    ward.examine("firewall there", ward.host(), ward.keys["b"])


def wrong_key(ward: Ward, bert: str) -> None:
    ward.examine("wrong key", ward.host(), fresh_key(), "--peer", bert)


def version_skew(ward: Ward, bert: str) -> None:
    ward.node("dora", "c", ward.host(), [sys.executable, "-c", SKEWED])
    ward.examine("version skew", ward.host(), ward.keys["c"])


def bridge(ward: Ward, bert: str) -> None:
    host = ward.host()
    ward.inside(host, "ip", "link", "add", "br-box", "type", "bridge")
    ward.inside(host, "ip", "addr", "add", f"{ward.lan.address(200)}/24", "dev", "br-box")
    ward.inside(host, "ip", "link", "set", "br-box", "up")
    ward.examine("bridge", host, ward.keys["a"])


def with_node(ward: Ward, bert: str) -> None:
    """The doctor asks the node that runs from its home."""
    host = ward.host()
    ward.node("ella", "a", host)
    ward.examine("with a node", host, ward.keys["a"], home=ward.folder / "ella")


def busy_port(ward: Ward, bert: str) -> None:
    host = ward.host()
    listener = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 8000)); print(flush=True)"
    )
    command = [sys.executable, "-c", listener + "; sys.stdin.read()"]
    full = ["ip", "netns", "exec", ward.lan.hosts[host], *command]
    pipe = subprocess.PIPE
    process = ward.stack.enter_context(subprocess.Popen(full, stdin=pipe, stdout=pipe))
    ward.stack.callback(process.kill)
    assert process.stdout is not None and process.stdout.readline()
    ward.examine("busy port", host, ward.keys["a"], "--gateway", "127.0.0.1:8000")


def full_disk(ward: Ward, bert: str) -> None:
    home = ward.folder / "disk"
    ward.stack.enter_context(small_disk(home))
    ward.examine("full disk", ward.host(), ward.keys["a"], home=home)


PATIENTS: tuple[Patient, ...] = (
    healthy, with_node, multicast_filtered, multicast_in_filtered, multicast_out_filtered, isolated,
    firewall_here, firewall_there, wrong_key, version_skew, bridge, busy_port, full_disk,
)  # fmt: skip
HOSTS = len(PATIENTS) + 3
"""One each, the healthy node's, and those of two nodes that are ill themselves."""


@contextlib.contextmanager
def ward(folder: Path) -> Iterator[Ward]:
    with Lan(HOSTS, "d") as lan, contextlib.ExitStack() as stack:
        made = Ward(folder, lan, stack)
        bert = made.node("bert", "a", made.host())
        for patient in PATIENTS:
            patient(made, bert)
        made.collect()
        yield made
