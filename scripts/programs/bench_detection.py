"""How fast a lost hop is noticed, in network namespaces (needs root): four hosts on a bridge find
each other by multicast; then, in mid-answer, the last hop's process is killed, or its host is
unplugged. The decision time runs from the loss to the origin's `session.reroute`. Beside a kill
stands the floor: when a plain socket to the killed process saw its end, which is when the kernel
got round to closing it.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rig import console, print_machine, print_table, spread
import swarm_netns
from swarm_netns import Lan
from swarm_procs import SMOLLM2, Node, NodePlan, Swarm

HOSTS = {"origin": None, "first": "0:15", "last1": "15:30", "last2": "15:30"}
KILL_LIMIT_MS = 20.0
UNPLUG_LIMIT_MS = 400.0
FOUND_LIMIT_S = 2.0


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


def decision_ms(swarm: Swarm, lose: Callable[[Node], float], back: Callable[[Node], None]) -> float:
    """Lose the last hop of one answer by `lose`, which returns the moment; then bring it back."""
    origin = swarm.nodes["origin"]
    body = {"model": "smollm2", "prompt": "Rain", "max_tokens": 24, "ignore_eos": True}
    wanted = origin.ask(**body).finish().ids
    answer = origin.ask(**body)
    hop = swarm.hops(origin, answer.session)[-1]
    answer.read_to(6)
    moment = lose(hop)
    told = swarm.await_note(origin, "session.reroute", since=moment)
    answer.finish()
    assert answer.error is None, answer.error
    assert answer.ids == wanted
    back(hop)
    swarm.await_ready()
    return 1000 * (float(told.get("monotonic_s", told["seen"])) - moment)


def main() -> int:
    parser = argparse.ArgumentParser("scripts/bench_detection", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="losses of each kind")
    options = parser.parse_args()
    if reason := swarm_netns.why_not():
        console.print(reason)
        return 2
    print_machine()
    with (
        tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder,
        Lan(len(HOSTS), "b") as lan,
        Swarm(Path(folder)) as swarm,
    ):
        found = found_s(swarm, lan)
        swarm.await_ready()
        floors: list[float] = []
        kills = _kills(swarm, options.runs, floors)
        unplugs = _unplugs(swarm, lan, options.runs)
    rows = [
        _row("process killed", KILL_LIMIT_MS, kills, str(spread(floors))),
        _row("host unplugged", UNPLUG_LIMIT_MS, unplugs, "-"),
    ]
    console.print(f"four hosts found each other in {found:.2f} s (limit {FOUND_LIMIT_S:g} s)")
    columns = ["loss", "floor", "decision", "limit", "within"]
    print_table("ms from the loss to the decision", columns, rows)
    return 0


def _row(what: str, limit: float, values: list[float], floor: str) -> list[object]:
    within = sum(value <= limit for value in values)
    return [what, floor, spread(values), f"{limit:g}", f"{within} of {len(values)}"]


def _kills(swarm: Swarm, runs: int, floors: list[float]) -> list[float]:
    """Decision times; what the witnesses saw goes to `floors`. Both ms."""

    def lose(node: Node) -> float:
        witness = Witness(node)
        moment = node.kill()
        floors.append(1000 * (witness.ended() - moment))
        return moment

    with console.status("killing processes"):
        return [
            decision_ms(swarm, lose, lambda node: void(swarm.restart(node))) for _ in range(runs)
        ]


def _unplugs(swarm: Swarm, lan: Lan, runs: int) -> list[float]:
    def index(node: Node) -> int:
        return lan.hosts.index(str(node.plan.namespace))

    def lose(node: Node) -> float:
        moment = time.monotonic()
        lan.unplug(index(node))
        return moment

    def back(node: Node) -> None:
        """A new incarnation starts without the penalty of the old one."""
        node.kill()
        lan.plug(index(node))
        swarm.restart(node)

    with console.status("unplugging hosts"):
        return [decision_ms(swarm, lose, back) for _ in range(runs)]


def void(_: object) -> None:
    return None


if __name__ == "__main__":
    raise SystemExit(main())
