"""Invariants about members: nobody is wronged, nobody is forgotten, all agree in the end."""

from __future__ import annotations

from collections.abc import Callable

from sims.inside import state_hash
from sims.invariants import Invariant, Violation
from sims.node import SimNode
from sims.truth import NEVER
from sims.world import World
from swarm.notes import Note
from swarm.routing.avoidance import Offence

FAIR_S = 15.0
"""Trouble longer ago than this excuses no verdict: the longest suspicion and a probe."""
WOKEN_S = 2.0
"""Retries of what was sent to a sleeping machine come within this time of its waking."""
SILENT = Offence.SILENT.value
"""What paths with gaps of their own may make of anybody; they make nobody's worker stuck."""
LATE_S = 1.0
"""A handshake with a life that has just ended may still be finished so long after the next began,
or after whatever kept the observer from doing it."""
EVIDENCE_S = 8.0
"""Trouble longer ago than this excuses no penalty."""


class NoLivingBuried(Invariant):
    name = "no living node is buried"
    says = "a node that lives and can be reached is never declared dead"

    def on_note(self, node: SimNode, entry: Note) -> None:
        if entry.event != "member.dead":
            return
        subject = self.world.node_called(str(entry.get("node")))
        if subject is None or entry.get("incarnation") != subject.disk.incarnation:
            return
        if is_reachable(self.world, node, subject, FAIR_S):
            self.violated(f"{node} buries {subject}, which lives and can be reached")


def is_reachable(world: World, a: SimNode, b: SimNode, for_s: float) -> bool:
    """Whether two nodes were well, and linked well by themselves or through a third, all along."""
    truth, now_s = world.truth, world.now_s
    if min(truth.quiet_s(now_s, a.number), truth.quiet_s(now_s, b.number)) < for_s:
        return False
    if truth.quiet_s(now_s, a.number, b.number) >= for_s:
        return True
    return any(
        truth.direct_quiet_s(now_s, a.number, c.number) >= for_s
        and truth.direct_quiet_s(now_s, c.number, b.number) >= for_s
        for c in world.running()
        if c is not a and c is not b
    )


class NoResurrection(Invariant):
    name = "the dead stay dead"
    says = "nobody is alive again without a higher incarnation"

    def __init__(self, world: World, report: Callable[[Violation], None]) -> None:
        super().__init__(world, report)
        self._buried: dict[tuple[int, int, str], int] = {}

    def on_note(self, node: SimNode, entry: Note) -> None:
        if not entry.event.startswith("member.") or entry.get("incarnation") is None:
            return
        key = (node.number, node.starts, str(entry.get("node")))
        incarnation = int(str(entry.get("incarnation")))
        if entry.event in ("member.dead", "member.left"):
            self._buried[key] = max(incarnation, self._buried.get(key, 0))
        elif entry.event == "member.alive" and incarnation <= self._buried.get(key, -1):
            self.violated(f"{node} holds {key[2]} for alive at incarnation {incarnation}")


class ViewsConverge(Invariant):
    name = "views converge"
    says = "when all is calm, every node sees exactly the running ones, and the same records"

    def on_end(self) -> None:
        """Fresh records go round all the time, so what counts is that there was such a moment."""
        if self.world.became_clean:
            return
        running = self.world.running()
        ids = {node.id for node in running}
        for node in running:
            alive = self.world.alive_in(node)
            if alive != ids:
                missing = sorted(self.world.node_of(i).machine.name for i in ids - alive)
                ghosts = sorted(self.world.node_of(i).machine.name for i in alive - ids)
                self.violated(f"{node} misses {missing} and sees the ghosts {ghosts}")
        if len({state_hash(node) for node in running}) > 1:
            self.violated("state hashes differ")


class NoUnfairPenalty(Invariant):
    name = "nobody is punished without evidence"
    says = "a penalty has a reason: the node, its worker or the way to it was in trouble"

    def on_note(self, node: SimNode, entry: Note) -> None:
        """That the observer itself stood still is no evidence against anybody. After its machine
        slept, what was sent to it meanwhile comes late, and no clock of its own tells it why."""
        if entry.event != "peer.penalty":
            return
        if self.world.now_s - self.world.woke_s.get(node.number, NEVER) < WOKEN_S:
            return
        subject = self.world.node_called(str(entry.get("peer")))
        if subject is None:
            return
        if entry.get("cause") == SILENT and self.world.has_gaps(node.number, subject.number):
            return
        truth, now_s = self.world.truth, self.world.now_s
        own_s = truth.quiet_s(now_s, subject.number)
        if min(own_s, truth.quiet_s(now_s, node.number, subject.number)) > EVIDENCE_S:
            self.violated(f"{node} punishes {subject} ({entry.get('cause')}), which did nothing")


class LivesApart(Invariant):
    name = "lives are told apart"
    says = "who is started again comes with a higher incarnation, unless its disk has lost it"

    def __init__(self, world: World, report: Callable[[Violation], None]) -> None:
        super().__init__(world, report)
        self._seen: dict[str, tuple[int, int]] = {}
        """Per identity the run in which it was seen last, and its incarnation then."""

    def on_note(self, node: SimNode, entry: Note) -> None:
        if entry.event != "link.up" or self.world.has_clones:
            return
        peer = str(entry.get("peer"))
        subject = self.world.node_called(peer)
        if subject is None or not subject.is_up or subject.disk.has_forgotten:
            return
        incarnation = int(str(entry.get("incarnation")))
        if incarnation < subject.disk.incarnation and self._may_be_late(node, subject):
            return
        run, before = self._seen.get(peer, (0, 0))
        if subject.starts > run and incarnation <= before:
            self.violated(f"{subject} is back with incarnation {incarnation}, it had {before}")
        self._seen[peer] = (subject.starts, max(incarnation, before))

    def _may_be_late(self, node: SimNode, subject: SimNode) -> bool:
        """Whether it may be the life before the present one that this is about."""
        quiet_s = self.world.truth.direct_quiet_s(self.world.now_s, node.number, subject.number)
        return quiet_s < LATE_S


class NoFalseCopies(Invariant):
    name = "nobody is called a copy"
    says = "copies of an identity are reported only where there are some"
    SAID = ("member.cloned", "node.copied", "node.copy_reported", "node.renewed")

    def on_note(self, node: SimNode, entry: Note) -> None:
        if entry.event in self.SAID and not self.world.has_clones:
            self.violated(f"{node} says {entry.event}, and there are no copies")


class CopiesAreTold(Invariant):
    """Copies that cannot meet need not be known; at the end of a run all can."""

    name = "copies are told"
    says = "machines that run under one identity find out, say so, and end as two"

    def on_end(self) -> None:
        running = self.world.running()
        for node in running:
            twins = [other for other in running if other is not node and other.id == node.id]
            if twins:
                self.violated(f"{node} and {twins[0]} still share an identity")
        told = sum(self.world.note_counts[n.number, "node.copied"] for n in self.world.nodes)
        if self.world.copies_ran_together and not told:
            self.violated("copies of one identity were at work together, and none said so")
