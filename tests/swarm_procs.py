"""Real nodes as processes: started, watched, killed, restarted, and gone at the end.

`Swarm` is a context manager that owns its nodes. It waits for states and log entries, never for
time: every wait has a deadline and shows the nodes' logs when it passes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil
from swarm_http import Answer, Connect, Gateway, Json, plain_connect

from swarm.link.identity import SwarmKey

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = ROOT / "models" / "smollm2"
GEMMA3 = ROOT / "models" / "gemma3"
PROGRAM = Path(sys.executable).with_name("swarm")
"""What a user types, as installed beside this Python."""
READY_DEADLINE_S = 120.0
GONE_DEADLINE_S = 60.0
"""A worker that is still importing when its daemon is killed ends when it looks for its parent."""
RECHECK_S = 0.05
"""A waited-for state is looked at after every log line, and at least this often."""
LOG_TAIL = 40
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """How one node is started."""

    name: str
    model: Path | None = None
    layers: str | None = None
    dtype: str = "float32"
    threads: int = 1
    listen: str = "127.0.0.1:0"
    gateway: str = "127.0.0.1:0"
    mdns: bool = False
    namespace: str | None = None
    connect: Connect = plain_connect
    takes_part: bool = False
    """Without a model of its own: takes layers of one that the swarm has."""
    extra: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    program: tuple[str, ...] = (str(PROGRAM),)

    def command(self, home: Path, key: str, peers: Iterable[str]) -> list[str]:
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        command = [*inside, *self.program, "join", "--log-json"]
        command += ["--home", str(home), "--name", self.name, "--key", key]
        command += ["--listen", self.listen, "--gateway", self.gateway]
        command += ["--threads", str(self.threads), "--dtype", self.dtype]
        command += ["--model", str(self.model)] if self.model else []
        command += [] if self.model or self.takes_part else ["--gateway-only"]
        command += ["--layers", self.layers] if self.layers else []
        command += [] if self.mdns else ["--no-mdns"]
        command += [part for peer in peers for part in ("--peer", peer)]
        return [*command, *self.extra]


@dataclass(slots=True)
class Node:
    """One node: its process, its workers, and what it logged."""

    plan: NodePlan
    home: Path
    process: subprocess.Popen[str]
    gateway: Gateway
    node_id: str = ""
    notes: list[Json] = field(default_factory=list)
    """Log entries that were JSON, each with `seen`, the monotonic time it was read."""
    lines: list[str] = field(default_factory=list)
    family: dict[int, psutil.Process] = field(default_factory=dict)
    reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return "\n".join(self.lines[-LOG_TAIL:])

    def state(self) -> Json:
        return self.gateway.state()

    def ask(self, **body: object) -> Answer:
        return self.gateway.ask(**body)

    def note_family(self) -> list[psutil.Process]:
        """The node's process and its children, remembered so that their end can be checked."""
        try:
            own = psutil.Process(self.process.pid)
            found = [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        self.family |= {process.pid: process for process in found}
        return [p for p in self.family.values() if is_running(p)]

    def workers(self) -> list[psutil.Process]:
        return [p for p in self.note_family() if p.pid != self.process.pid]

    def kill(self) -> float:
        """kill -9 of the daemon alone; its worker must end by itself. Returns the moment."""
        self.note_family()
        moment = time.monotonic()
        self.process.kill()
        self.process.wait()
        return moment

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit status."""
        self.note_family()
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=30)

    def view(self, state: Json) -> Json:
        """This node's entry in somebody's `/swarm/state`; empty if it is not there."""
        return next((n for n in state["nodes"] if n["id"] == self.node_id), {})


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Swarm:
    """Nodes of one swarm. Leaving the `with` block ends all of them and checks that they ended."""

    def __init__(self, folder: Path, key: str | None = None) -> None:
        self.folder = folder
        self.key = key or fresh_key()
        self.nodes: dict[str, Node] = {}
        self.buried: list[Node] = []
        self.news = threading.Condition()

    def __enter__(self) -> Swarm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logs = self.logs()
        left = self._end_all()
        if error is not None:
            error.add_note(logs)
        elif left:
            raise AssertionError(f"processes outlived their node: {left}\n{logs}")

    # ------------------------------------------------------------ starting

    def start(self, plan: NodePlan, *, peers: Iterable[str] | None = None) -> Node:
        """Start a node and wait until its gateway answers.

        `peers`: endpoints to dial; by default those of all nodes that run now (none with mDNS).
        """
        if peers is None:
            peers = [] if plan.mdns else self.endpoints()
        home = self.folder / plan.name
        home.mkdir(parents=True, exist_ok=True)
        (home / "gateway.json").unlink(missing_ok=True)
        process = subprocess.Popen(
            plan.command(home, self.key, peers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ
            | {"SWARM_WEIGHTS_CACHE_DIR": str(home / "models")}
            | dict(plan.environment),
            start_new_session=True,
        )
        node = Node(plan, home, process, Gateway("", plan.connect))
        if plan.name in self.nodes:
            self.buried.append(self.nodes[plan.name])
        self.nodes[plan.name] = node
        node.reader = threading.Thread(target=self._read_log, args=(node,), daemon=True)
        node.reader.start()
        self._await_gateway(node)
        return node

    def start_split(self, model: Path, cuts: Iterable[str], **common: object) -> list[Node]:
        """One node per layer range, named a, b, c, …, and wait until all see all and all serve."""
        names = (chr(ord("a") + i) for i in range(26))
        plans = [
            NodePlan(name, model, cut, **common)  # type: ignore[arg-type]
            for name, cut in zip(names, cuts, strict=False)
        ]
        nodes = [self.start(plan) for plan in plans]
        self.await_ready()
        return nodes

    def restart(self, node: Node, *, peers: Iterable[str] | None = None) -> Node:
        """The same node again: same home, same key, same layers."""
        assert not node.alive
        return self.start(node.plan, peers=peers)

    def endpoints(self) -> list[str]:
        """Where running nodes listen."""
        found = []
        for node in self.nodes.values():
            if node.alive:
                own = node.view(node.state())
                found.append(own["addresses"][0])
        return found

    def _read_log(self, node: Node) -> None:
        assert node.process.stdout is not None
        with node.process.stdout as lines, (self.folder / f"{node.name}.log").open("a") as copy:
            for line in lines:
                copy.write(line)
                copy.flush()
                entry = _json_line(line)
                with self.news:
                    node.lines.append(line.rstrip())
                    if entry is not None:
                        node.notes.append(entry | {"seen": time.monotonic()})
                    self.news.notify_all()

    def _await_gateway(self, node: Node) -> None:
        file = node.home / "gateway.json"

        def listening() -> Json | None:
            assert node.alive, f"{node.name} ended with {node.process.returncode}\n{node.log}"
            if not file.exists():
                return None
            told = _json_line(file.read_text())
            return told if told and told.get("pid") == node.process.pid else None

        told = self.wait(listening, f"the gateway of {node.name}")
        node.gateway = Gateway(told["url"], node.plan.connect)
        node.node_id = node.state()["node_id"]

    # ------------------------------------------------------------ waiting

    def wait(
        self, look: Callable[[], T | None], what: str, deadline_s: float = READY_DEADLINE_S
    ) -> T:
        """The first true result of `look`, called after every log line of any node."""
        end = time.monotonic() + deadline_s
        while True:
            result = look()
            if result:
                return result
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"waited {deadline_s:g} s for {what}\n{self.logs()}")
            with self.news:
                self.news.wait(min(left, RECHECK_S))

    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def await_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """All running nodes see each other alive and linked, all their shards serve."""
        self.wait(lambda: not self.unready(), "all nodes to see each other serve", deadline_s)

    def unready(self) -> list[str]:
        """What is still missing until all is well, in words."""
        running = self.running()
        return [problem for node in running for problem in _unready(node.state(), running)]

    def await_note(
        self, node: Node, event: str, since: float = 0.0, deadline_s: float = 30.0
    ) -> Json:
        """The first log entry of this kind that was read after `since`."""

        def look() -> Json | None:
            return next(
                (n for n in list(node.notes) if n["event"] == event and n["seen"] >= since), None
            )

        return self.wait(look, f"{event} at {node.name}", deadline_s)

    def await_idle(self, deadline_s: float = 10.0) -> None:
        """No session, no hop and no KV byte is left on any running node."""
        self.wait(lambda: not self.leftovers(), "sessions to be freed", deadline_s)

    def leftovers(self) -> list[str]:
        found = []
        for node in self.running():
            state = node.state()
            for kind in ("sessions", "hops"):
                found += [f"{node.name}: {kind} {entry}" for entry in state[kind]]
            if state["kv_used_bytes"]:
                found.append(f"{node.name}: {state['kv_used_bytes']} KV bytes in use")
        return found

    # ------------------------------------------------------------ looking

    def hops(self, origin: Node, session: str) -> list[Node]:
        """The nodes of a running session's route, in order; waits until it has one.

        `session` "": the only one there is.
        """

        def look() -> list[Json] | None:
            for entry in origin.state()["sessions"]:
                if not session or entry["id"] == session:
                    return entry["route"] or None
            return None

        route = self.wait(look, f"the route of session {session}", 30.0)
        return [self.by_id(hop["node"]) for hop in route]

    def by_id(self, node_id: str) -> Node:
        return next(node for node in self.nodes.values() if node.node_id == node_id)

    def penalties(self) -> dict[str, float]:
        """Every running peer that some running node avoids, and for how long."""
        return {
            f"{node.name} avoids {peer.name}": penalty
            for node in self.running()
            for state in [node.state()]
            for peer in self.running()
            if (penalty := peer.view(state).get("penalty_s", 0.0))
        }

    def logs(self) -> str:
        parts = [f"--- {node.name} (last lines)\n{node.log}" for node in self.nodes.values()]
        return "\n".join(parts)

    # ------------------------------------------------------------ ending

    def _end_all(self) -> list[str]:
        """End every node; returns the processes that had to be killed one by one."""
        everyone = [*self.nodes.values(), *self.buried]
        for node in everyone:
            node.note_family()
            if node.alive:
                node.process.kill()
                node.process.wait()
        named = end_processes([p for node in everyone for p in node.family.values()])
        for node in everyone:
            if node.reader is not None:
                node.reader.join()
        return named


def end_processes(processes: list[psutil.Process]) -> list[str]:
    """Wait until they are gone; kill and name those that are not."""
    _, left = psutil.wait_procs([p for p in processes if is_running(p)], timeout=GONE_DEADLINE_S)
    named = []
    for process in left:
        if is_running(process):
            named.append(f"{process.pid} {process.name()}")
            process.kill()
    return named


def _unready(state: Json, running: list[Node]) -> list[str]:
    problems = []
    for node in running:
        entry = node.view(state)
        where = f"{state['node_id'][:8]} sees {node.name}"
        if entry.get("state") != "alive":
            problems.append(f"{where} {entry.get('state', 'not at all')}")
        elif not (entry.get("linked") or entry.get("self")):
            problems.append(f"{where} without a link")
        elif node.plan.model and not any(map(_is_usable, entry["shards"])):
            problems.append(f"{where} not serving")
    return problems


def _is_usable(shard: Json) -> bool:
    return shard["state"] == "serving" and shard["decode_s_per_layer"] is not None


def _json_line(line: str) -> Json | None:
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def fresh_key() -> str:
    return SwarmKey.generate(os.urandom).text
