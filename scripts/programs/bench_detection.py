"""How fast a lost host is noticed, in network namespaces (needs root): four hosts on a bridge find
each other by multicast; then, in mid-answer, the last hop's process is killed, or its host is
unplugged; then a host is unplugged while nothing is asked. The decision time runs from the loss to
the origin's `session.reroute`, or to the survivors' `member.suspect` and `member.dead`. Beside a
kill stands the floor: when a plain socket to the killed process saw its end, which is when the
kernel got round to closing it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rig import console, end_orderly, print_machine, print_table, spread
import swarm_netns
from sims import reality
from sims.reality import BURIED, KILLED, SUSPECTED, UNPLUGGED, Host, Setting
from sims.worker import Speed
from swarm_netns import Lan
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

from swarm.terms import NodeId, short

LAYER_COUNT = 30
HOSTS = {"origin": None, "first": "0:15", "last1": "15:30", "last2": "15:30"}
VICTIMS = ("first", "last1", "last2")
"""Unplugged in turn while idle."""
LIMITS_MS = {KILLED: 20.0, UNPLUGGED: 400.0, SUSPECTED: None, BURIED: None}
FOUND_LIMIT_S = 2.0
WIRE_PAUSE_S = 0.0005
WIRE_SILENCE_S = 0.1
"""A wire that was silent for so long is cut."""


def plan(lan: Lan, index: int, name: str, layers: str | None) -> NodePlan:
    return NodePlan(
        name,
        SMOLLM2 if layers else None,
        layers,
        listen="0.0.0.0:0",
        gateway="127.0.0.1:8000",
        mdns=True,
        namespace=lan.hosts[index],
        connect=lan.connect_inside(index),
    )


def found_s(swarm: Swarm, lan: Lan) -> float:
    """Start all hosts at once; seconds from the last gateway's opening until all see all."""
    for index, (name, layers) in enumerate(HOSTS.items()):
        swarm.start(plan(lan, index, name, layers))
    began = time.monotonic()

    def met() -> bool:
        states = [node.state() for node in swarm.running()]
        return all(
            node.view(state).get("state") == "alive" for state in states for node in swarm.running()
        )

    swarm.wait(met, "all hosts to see all")
    return time.monotonic() - began


class Witness:
    """A plain connection to a node's gateway, read by a thread that notes when it ends."""

    def __init__(self, node: Node) -> None:
        parts = urlsplit(node.gateway.url)
        self._socket = node.plan.connect(str(parts.hostname), int(parts.port or 0))
        self._ended = 0.0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.recv(1)
        self._ended = time.monotonic()

    def ended(self) -> float:
        """The moment of its end; waits for it."""
        self._thread.join()
        self._socket.close()
        return self._ended


class Wire:
    """Datagrams from one host to another, until a cable is pulled: when the last one came."""

    def __init__(self, lan: Lan, source: int, target: int) -> None:
        with swarm_netns.inside(lan.hosts[target]):
            self._there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with swarm_netns.inside(lan.hosts[source]):
            self._here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._there.bind((lan.address(target), 0))
        self._there.settimeout(WIRE_SILENCE_S)
        self._last = 0.0
        self._works, self._is_over = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=part) for part in (self._send, self._receive)]

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over.wait(WIRE_PAUSE_S):
                self._here.sendto(b"0", self._there.getsockname())

    def _receive(self) -> None:
        with contextlib.suppress(TimeoutError):
            while self._there.recv(1):
                self._last = time.monotonic()
                self._works.set()

    def cut(self, unplug: Callable[[], None]) -> float:
        """Pull the cable by `unplug`; the moment from which nothing came through."""
        for thread in self._threads:
            thread.start()
        assert self._works.wait(1.0), "no datagram came through"
        unplug()
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._here.close()
        self._there.close()
        return self._last


@dataclass(slots=True)
class Bench:
    """What happens to the hosts, and how long each loss took to be noticed."""

    swarm: Swarm
    lan: Lan
    samples: reality.Samples = field(default_factory=lambda: {c: [] for c in reality.CASES})
    floors: list[float] = field(default_factory=list)
    """Milliseconds from each kill until a plain socket saw its end."""
    teardowns_s: list[float] = field(default_factory=list)
    """From each kill until the first saw it who does not decide: that socket, or another daemon."""
    reactions_s: list[float] = field(default_factory=list)
    """From then until each of them had seen it."""

    def measure(self, runs: int) -> None:
        with console.status("killing processes"):
            for _ in range(runs):
                self.samples[KILLED].append(self._in_use(self._kill, self._restart))
        with console.status("unplugging hosts of a running answer"):
            for _ in range(runs):
                self.samples[UNPLUGGED].append(self._in_use(self._unplug, self._replug))
        with console.status("unplugging idle hosts"):
            for run in range(runs):
                self._idle(self.swarm.nodes[VICTIMS[run % len(VICTIMS)]])

    def setting(self) -> Setting:
        """What the simulator must know to do the same."""
        hosts = tuple(self._host(name, layers) for name, layers in HOSTS.items())
        teardowns_s, reactions_s = tuple(self.teardowns_s), tuple(self.reactions_s)
        return Setting(LAYER_COUNT, hosts, VICTIMS, teardowns_s, reactions_s)

    # ------------------------------------------------------------ one loss

    def _in_use(self, lose: Callable[[Node], float], back: Callable[[Node], None]) -> float:
        """Lose the last hop of one answer by `lose`, which returns the moment; then bring it back.
        Milliseconds until the origin decided."""
        origin = self.swarm.nodes["origin"]
        body = {"model": "smollm2", "prompt": "Rain", "max_tokens": reality.TOKENS}
        wanted = origin.ask(**body, ignore_eos=True).finish().ids
        answer = origin.ask(**body, ignore_eos=True)
        hop = self.swarm.hops(origin, answer.session)[-1]
        answer.read_to(reality.TOKENS_BEFORE_LOSS)
        time.sleep(random.random() * reality.PHASE_S)
        moment = lose(hop)
        told = self.swarm.await_note(origin, "session.reroute", since=moment)
        answer.finish()
        assert answer.error is None, answer.error
        assert answer.ids == wanted
        back(hop)
        self.swarm.await_ready()
        return 1000 * (float(told["monotonic_s"]) - moment)

    def _idle(self, victim: Node) -> None:
        """Pull its cable while nobody asks anything, and hear the survivors."""
        time.sleep(reality.IDLE_S + random.random() * reality.BEAT_S)
        survivors = [node for node in self.swarm.running() if node is not victim]
        moment = self._unplug(victim)
        for case, event in ((SUSPECTED, "member.suspect"), (BURIED, "member.dead")):
            for node in survivors:
                told_s = self._noted(node, event, victim, moment)
                self.samples[case].append(1000 * (told_s - moment))
        self.lan.plug(self._index(victim))
        self.swarm.await_ready()

    def _noted(self, by: Node, event: str, victim: Node, since: float) -> float:
        """When `by` said so of `victim`."""
        subject = short(NodeId(victim.node_id))

        def look() -> float | None:
            for note in list(by.notes):
                named = note.get("node", note.get("peer"))
                if note["event"] == event and named == subject and note["seen"] >= since:
                    return float(note["monotonic_s"])
            return None

        return self.swarm.wait(look, f"{event} of {victim.name} at {by.name}", 30.0)

    # ------------------------------------------------------------ what is done to a host

    def _kill(self, node: Node) -> float:
        witness = Witness(node)
        moment = node.kill()
        others = [other for other in self.swarm.running() if other.name != "origin"]
        seen = [witness.ended()]
        self.floors.append(1000 * (seen[0] - moment))
        seen += [self._noted(other, "link.down", node, moment) for other in others]
        self.teardowns_s.append(min(seen) - moment)
        self.reactions_s += [at - min(seen) for at in seen]
        return moment

    def _restart(self, node: Node) -> None:
        self.swarm.restart(node)

    def _unplug(self, node: Node) -> float:
        index = self._index(node)
        wire = Wire(self.lan, index, (index + 1) % len(self.lan.hosts))
        return wire.cut(lambda: self.lan.unplug(index))

    def _replug(self, node: Node) -> None:
        """A new incarnation starts without the penalty of the old one."""
        node.kill()
        self.lan.plug(self._index(node))
        self.swarm.restart(node)

    def _index(self, node: Node) -> int:
        return self.lan.hosts.index(str(node.plan.namespace))

    def _host(self, name: str, layers: str | None) -> Host:
        if layers is None:
            return Host(name)
        node = self.swarm.nodes[name]
        shard = node.view(node.state())["shards"][0]
        speed = Speed(
            decode_s=shard["decode_s_per_layer"],
            prefill_s=shard["prefill_s_per_token_layer"],
            head_s=shard["head_s"] or 0.0,
        )
        return Host(name, (shard["start"], shard["stop"]), speed)


@contextlib.contextmanager
def bench() -> Iterator[tuple[Bench, float]]:
    """Four hosts that all serve, and the seconds in which they found each other."""
    with (
        tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder,
        Lan(len(HOSTS), "b") as lan,
        Swarm(Path(folder)) as swarm,
    ):
        found = found_s(swarm, lan)
        swarm.await_ready()
        yield Bench(swarm, lan), found


def main() -> int:
    end_orderly()
    parser = argparse.ArgumentParser("scripts/bench_detection", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="losses of each kind")
    options = parser.parse_args()
    if reason := swarm_netns.why_not():
        console.print(reason)
        return 2
    print_machine()
    with bench() as (measured, found):
        measured.measure(options.runs)
    rows = [
        _row(
            case, LIMITS_MS[case], measured.samples[case], measured.floors if case == KILLED else []
        )
        for case in reality.CASES
    ]
    console.print(f"four hosts found each other in {found:.2f} s (limit {FOUND_LIMIT_S:g} s)")
    columns = ["loss", "floor", "decision", "limit", "within"]
    print_table("ms from the loss to the decision", columns, rows)
    return 0


def _row(what: str, limit: float | None, values: list[float], floors: list[float]) -> list[object]:
    floor = str(spread(floors)) if floors else "-"
    if limit is None:
        return [what, floor, spread(values), "-", "-"]
    within = sum(value <= limit for value in values)
    return [what, floor, spread(values), f"{limit:g}", f"{within} of {len(values)}"]


if __name__ == "__main__":
    raise SystemExit(main())
