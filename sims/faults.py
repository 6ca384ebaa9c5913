"""What can befall machines, workers and the network between them, but for life and death.

Each fault is one method of the world: it is done to the simulated parts, entered into the truth,
and told in the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from sims import wire
from sims.loop import SimLoop
from sims.machine import SECOND_NS
from sims.net import SimNet
from sims.node import SimNode
from sims.truth import Truth
from sims.wire import Profile
from sims.worker import SimWorker
from swarm.messages import Message
from swarm.notes import FieldValue
from swarm.terms import NodeId


class Faults(ABC):
    """A part of `world.World`, which has the rest."""

    loop: SimLoop
    net: SimNet
    truth: Truth
    nodes: list[SimNode]
    unsteady: set[int]
    is_lossy: bool
    woke_s: dict[int, float]

    @property
    @abstractmethod
    def now_s(self) -> float: ...

    @abstractmethod
    def tell(self, event: str, node: SimNode, **fields: FieldValue) -> None: ...

    @abstractmethod
    def _tell_world(self, event: str, **fields: FieldValue) -> None: ...

    # ------------------------------------------------------------ slow and still machines

    def stall(self, node: SimNode, duration_s: float) -> None:
        """Its event loop stands still: a blocked thread, a starved core."""
        if node.process is not None and node.is_running and not node.process.is_stalled:
            self._for_a_while("stalled", duration_s, node)
            self.loop.stall(node.process, duration_s)

    def suspend(self, node: SimNode, duration_s: float) -> None:
        """The lid is closed for so long."""
        if node.machine.is_asleep or not node.machine.is_powered:
            return
        self._for_a_while("asleep", duration_s, node)
        self.loop.sleep_machine(node.machine)
        self.net.machine_slept(node.machine)
        self.loop.post(self._in(duration_s), self.loop.world, self._wake, node)

    def _wake(self, node: SimNode) -> None:
        self.woke_s[node.number] = self.now_s
        own = [node.process, *(worker.process for worker in node.workers)]
        processes = [process for process in own if process is not None]
        self.loop.wake_machine(node.machine, processes)
        self.net.machine_woke(node.machine)

    def drift(self, node: SimNode, parts_per_million: float) -> None:
        node.machine.set_drift(parts_per_million, self.loop.now_ns)
        self.tell("host.drift", node, ppm=parts_per_million)

    # ------------------------------------------------------------ workers

    def crash_worker(self, node: SimNode, device: int = 0) -> None:
        self.truth.touch("crash", self.now_s, node.number)
        self.tell("worker.crash", node)
        node.workers[device].crash()

    def wedge(self, node: SimNode, device: int = 0) -> None:
        """It takes work and never answers, until it is started anew."""
        self.truth.begin("wedged", self.now_s, node.number)
        self.tell("worker.wedge", node)
        node.workers[device].is_wedged = True

    def slow_worker(self, node: SimNode, factor: float, duration_s: float, device: int = 0) -> None:
        self._for_a_while("slow", duration_s, node)
        worker = node.workers[device]
        worker.slowness = factor
        self.loop.post(self._in(duration_s), self.loop.world, self._full_speed, worker)

    def _full_speed(self, worker: SimWorker) -> None:
        worker.slowness = 1.0

    def at_step(self, node: SimNode, number: int, action: Callable[[], None]) -> None:
        """Do it just before the result of the worker's n-th step leaves (1 is the next one)."""
        due = node.worker.steps_done + number

        def look(steps: int) -> None:
            if steps == due:
                action()

        node.worker.on_step = look

    # ------------------------------------------------------------ network

    def cut(self, a: SimNode, b: SimNode, *, one_way: bool = False) -> None:
        self.truth.begin("cut", self.now_s, a.number, b.number)
        self.tell("net.cut", a, other=b.machine.name, one_way=one_way)
        self.net.cut(a.machine, b.machine, one_way=one_way)

    def heal(self, a: SimNode, b: SimNode) -> None:
        self.truth.clear(self.now_s, a.number, b.number)
        self.tell("net.heal", a, other=b.machine.name)
        self.net.heal(a.machine, b.machine)

    def partition(self, *groups: Sequence[SimNode]) -> None:
        """Nobody of one group reaches anybody of another."""
        named = "|".join(",".join(node.machine.name for node in group) for group in groups)
        self._tell_world("net.partition", groups=named)
        self.net.partition([[node.machine for node in group] for group in groups])
        for index, (a, b) in enumerate(self._across(groups)):
            self.truth.begin("cut", self.now_s, a.number, b.number, is_part=index > 0)

    def heal_all(self) -> None:
        if self.truth.has_any("cut"):
            self._tell_world("net.heal_all")
        self.net.heal_all()
        for a in self.nodes:
            for b in self.nodes[: a.number - 1]:
                self.truth.clear(self.now_s, a.number, b.number)

    def clog(self, a: SimNode, b: SimNode, extra_s: float, duration_s: float) -> None:
        """What is sent from a to b comes so much later, for a while."""
        self.truth.begin("clogged", self.now_s, a.number, b.number)
        self.tell("net.clog", a, other=b.machine.name, extra_s=extra_s)
        self.net.clog(a.machine, b.machine, extra_s)
        self.loop.post(self._in(duration_s), self.loop.world, self._unclog, a, b)

    def _unclog(self, a: SimNode, b: SimNode) -> None:
        self.truth.end("clogged", self.now_s, a.number, b.number)
        self.net.unclog(a.machine, b.machine)

    def reset(self, a: SimNode, b: SimNode) -> None:
        """Every connection between the two is reset."""
        self.truth.touch("reset", self.now_s, a.number, b.number)
        self.tell("net.reset", a, other=b.machine.name)
        self.net.reset(a.machine, b.machine)

    def access(self, node: SimNode, profile: Profile) -> None:
        """How this machine is attached: by cable, by Wi-Fi."""
        if profile is wire.WIFI:
            self.unsteady.add(node.number)
        self.net.set_access(node.machine, profile)

    def lossy(self, share: float) -> None:
        """Every path loses this share of its segments."""
        self.is_lossy = True
        self.net.loss = share

    def lose(self, node: SimNode, what: type[Message], number: int = 1) -> None:
        """The n-th message of this kind that the node sends from now on is lost on its way out,
        and the link stays: what a bug, a full buffer or a replaced link may do."""
        self.truth.touch("lost", self.now_s, node.number)
        self.tell("link.loses", node, message=what.__name__, number=number)
        links, send, left = node.links, node.links.send, number

        def send_or_lose(peer: NodeId, message: Message) -> bool:
            nonlocal left
            if isinstance(message, what):
                left -= 1
                if left == 0:
                    del links.send
                    return True
            return send(peer, message)

        links.send = send_or_lose  # type: ignore[method-assign]

    # ------------------------------------------------------------ small parts

    def _for_a_while(self, kind: str, duration_s: float, node: SimNode) -> None:
        self.truth.begin(kind, self.now_s, node.number)
        self.tell(f"host.{kind}", node, duration_s=round(duration_s, 3))
        self.loop.post(self._in(duration_s), self.loop.world, self._over, kind, node)

    def _over(self, kind: str, node: SimNode) -> None:
        self.truth.end(kind, self.now_s, node.number)

    def _in(self, duration_s: float) -> int:
        return self.loop.now_ns + int(duration_s * SECOND_NS)

    def _across(self, groups: Sequence[Sequence[SimNode]]) -> list[tuple[SimNode, SimNode]]:
        return [
            (a, b)
            for index, group in enumerate(groups)
            for other in groups[index + 1 :]
            for a in group
            for b in other
        ]
