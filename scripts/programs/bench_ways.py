"""What each kind of link costs: direct, by way of a third host, WebRTC data channel. For each there
are three hosts (network namespaces: root is needed), two of which hold half of a small model; walls
between these two leave one kind of link only. The same answer is asked of all in turn.

The namespaces have no wire: a round trip is all software. On a radio the third host doubles it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rig import console, end_orderly, print_machine, print_table, spread

import swarm_netns
from bench_hop import MAKE_SMALL, SMALL_LAYERS
from swarm_http import Json
from swarm_netns import Lan
from swarm_procs import Node, NodePlan, Swarm

KINDS = {"direct": "", "relayed": "all", "webrtc": "tcp"}
"""What the walls stop."""
NORTH, SOUTH, MIDDLE = range(3)
LINK_DEADLINE_S = 60.0
PROMPT_TOKENS = 2048
GOODPUT_PROBE_S = "2"


@dataclass(slots=True)
class Site:
    """Three hosts. `figures`: of each round, by what was measured."""

    kind: str
    swarm: Swarm
    nodes: list[Node]
    figures: dict[str, list[float]] = field(default_factory=dict)

    @property
    def origin(self) -> Node:
        return self.nodes[NORTH]

    def link(self) -> Json | None:
        pair = {self.nodes[NORTH].node_id, self.nodes[SOUTH].node_id}
        links = self.origin.state()["links"]
        return next((link for link in links if {link["node"], link["peer"]} == pair), None)

    def processor_s(self, *hosts: int) -> float:
        """Of the daemons alone."""
        times = [psutil.Process(self.nodes[host].process.pid).cpu_times() for host in hosts]
        return sum(t.user + t.system for t in times)

    def add(self, what: str, value: float) -> None:
        self.figures.setdefault(what, []).append(value)


def build(stack: ExitStack, folder: Path, kind: str, model: Path) -> Site:
    lan = stack.enter_context(Lan(3, kind[0]))
    if KINDS[kind]:
        lan.part(NORTH, SOUTH, KINDS[kind])
    home = folder / kind
    home.mkdir()
    swarm = stack.enter_context(Swarm(home))
    half = SMALL_LAYERS // 2
    environment = {
        "SWARM_LINK_WEBRTC": "on" if kind == "webrtc" else "off",
        "SWARM_LINK_GOODPUT_PROBE_INTERVAL_S": GOODPUT_PROBE_S,
    }
    nodes = [
        swarm.start(
            NodePlan(
                f"{kind}-{host}",
                model=None if layers is None else model,
                layers=layers,
                listen="0.0.0.0:0",
                gateway="127.0.0.1:8000",
                mdns=True,
                namespace=lan.hosts[host],
                connect=lan.connect_inside(host),
                environment=tuple(environment.items()),
            )
        )
        for host, layers in (
            (NORTH, f"0:{half}"),
            (SOUTH, f"{half}:{SMALL_LAYERS}"),
            (MIDDLE, None),
        )
    ]
    site = Site(kind, swarm, nodes)

    def stands() -> bool:
        link = site.link()
        return link is not None and link["kind"] == kind

    swarm.wait(stands, f"the {kind} link", LINK_DEADLINE_S)
    return site


def ask(node: Node, name: str, prompt: int, tokens: int, salt: int = 0) -> list[float]:
    """When the request went out and each token came, seconds. `salt`: no prompt begins like one
    that was computed before."""
    ids = [10 + (7 * at + 13 * salt) % 400 for at in range(prompt)]
    began = time.monotonic()
    answer = node.ask(model=name, prompt=ids, max_tokens=tokens, ignore_eos=True).finish()
    assert answer.error is None, answer.error
    return [began, *answer.arrivals]


def round_of(site: Site, name: str, tokens: int, salt: int) -> None:
    hosts = (NORTH, SOUTH, MIDDLE)
    before, middle = site.processor_s(*hosts), site.processor_s(MIDDLE)
    times = ask(site.origin, name, 32, tokens, salt)
    gaps = [b - a for a, b in zip(times[4:], times[5:], strict=False)]
    site.add("token", 1000 * statistics.median(gaps))
    site.add("processor", 1000 * (site.processor_s(*hosts) - before) / tokens)
    site.add("middle", 1000 * (site.processor_s(MIDDLE) - middle) / tokens)
    times = ask(site.origin, name, PROMPT_TOKENS, 2, 100 + salt)
    site.add("prompt", 1000 * (times[1] - times[0]))
    link = site.link()
    assert link is not None
    assert link["kind"] == site.kind, "another kind of link than the one measured"
    site.add("rtt", link["rtt_ms"])
    site.add("goodput", link["goodput_bytes_s"] / 1e6)


def measure(model: Path, rounds: int, tokens: int) -> list[Site]:
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, ExitStack() as stack:
        sites = [build(stack, Path(folder), kind, model) for kind in KINDS]
        for site in sites:
            site.swarm.await_ready()
            ask(site.origin, model.name, 32, 16)
        for number in range(1, 1 + rounds):
            for site in sites:
                round_of(site, model.name, tokens, number)
        return sites


def main() -> int:
    end_orderly()
    parser = argparse.ArgumentParser("scripts/bench_ways", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96, help="per answer")
    options = parser.parse_args()
    if (reason := swarm_netns.why_not()) is not None:
        console.print(f"nothing can be measured: {reason}")
        return 1
    print_machine()
    with tempfile.TemporaryDirectory(prefix="swarm-small-") as folder:
        small = Path(folder) / "small"
        made = [sys.executable, "-c", MAKE_SMALL, str(small), str(SMALL_LAYERS)]
        subprocess.run(made, check=True, capture_output=True)
        sites = measure(small, options.rounds, options.tokens)
    columns: dict[str, Callable[[Site], object]] = {
        "round trip, ms": lambda site: spread(site.figures["rtt"]),
        "ms per token, one link there and back": lambda site: spread(site.figures["token"]),
        "processor ms of daemons per token": lambda site: spread(site.figures["processor"]),
        "of these in the middle": lambda site: spread(site.figures["middle"]),
        "MB/s": lambda site: spread(site.figures["goodput"]),
        f"ms to the first token of {PROMPT_TOKENS}": lambda site: spread(site.figures["prompt"]),
    }
    rows = [(what, *(figure(site) for site in sites)) for what, figure in columns.items()]
    print_table("Kinds of link, three hosts each", ["what", *KINDS], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
