"""Invariants about what must not grow: tasks, queues, memories, dials and logs."""

from __future__ import annotations

from collections import Counter

from sims.inside import queue_sizes, task_names
from sims.invariants import Invariant
from sims.node import SimNode
from swarm.routing.relay_rules import unanswered_max

WAITING = ("peers waited for", "messages held for a link")
"""What a calm node has none of."""
FRESH_TASKS = Counter({"SimNode._live": 1, "Event.wait": 2})
"""What a node has running that was only just started: its life, and the two ends that it waits
for."""
ADDRESSES_PER_START = 2
"""As it was heard of, and as the peer that dialled in showed itself."""
DIALS = "Dialler._connect"


class NoTaskLeft(Invariant):
    """Dials go on for ever, to each address at which a machine that is away was ever known."""

    name = "no task is left"
    says = "when all is over a node has the tasks of a fresh one, and dials to machines it knows"

    def on_end(self) -> None:
        known = ADDRESSES_PER_START * sum(node.starts for node in self.world.nodes)
        for node in self.world.running():
            tasks = task_names(node)
            dials = tasks.pop(DIALS, 0)
            if tasks != FRESH_TASKS:
                self.violated(f"{node} has tasks {dict(tasks)}, a fresh one {dict(FRESH_TASKS)}")
            if dials > known:
                self.violated(f"{node} dials {dials} at once, and {known} are explained")


class ShortQueues(Invariant):
    """Looked at whenever a worker has finished a step, and at the end."""

    name = "queues are short"
    says = "what waits in a node, for a link, a worker or a client, stays within stated limits"

    def on_step(self, node: SimNode) -> None:
        if node.is_up:
            self._check(node)

    def on_end(self) -> None:
        for node in self.world.running():
            self._check(node)
            for what in WAITING:
                if count := queue_sizes(node)[what]:
                    self.violated(f"{node}: {count} {what} when all was over")

    def _check(self, node: SimNode) -> None:
        sizes = queue_sizes(node)
        members = len(self.world.nodes) + sum(other.starts for other in self.world.nodes)
        longest = max((r.order.max_tokens for r in self.world.requests), default=0)
        routing = self.world.config.routing
        limits = {
            "bytes unsent on one connection": self.world.config.link.send_buffer_limit_bytes,
            "peers remembered as out of reach": members,
            "peers waited for": members,
            "messages held for a link": members * (1 + len(self.world.requests)),
            "events unread by one client": longest + EVENTS_BESIDE_TOKENS,
            "steps under way of one session": unanswered_max(routing.credit_steps),
        }
        for what, size in sizes.items():
            if size > limits[what]:
                self.violated(f"{node}: {size} {what}, {limits[what]} are allowed")


EVENTS_BESIDE_TOKENS = 64
"""Started, stalled and recovered: some for each of the reroutes that an answer may have."""


class PacedDials(Invariant):
    name = "dials are paced"
    says = "a node does not dial in vain more often than a stated rate for each machine"
    DIALS_FREE = 30
    DIALS_PER_S = 0.4
    """For each machine that there is: tries come close together at first, then seldom."""

    def on_end(self) -> None:
        lived_s = self.world.now_s - self.world.began_s
        allowed = self.DIALS_FREE + self.DIALS_PER_S * lived_s * len(self.world.nodes)
        for node in self.world.nodes:
            count = self.world.note_counts[node.number, "link.dial_failed"]
            if count > allowed:
                self.violated(f"{node} dialled {count} times in vain in {lived_s:.0f} s")


class BoundedTalk(Invariant):
    """Notes a node may write: in a swarm of many more happens, and each may see all of it."""

    name = "bounded"
    says = "what nodes write to their logs stays within a stated rate"
    LINES_FREE = 200
    LINES_PER_S = 1.0
    """For each machine that there is."""

    def on_end(self) -> None:
        lived_s = self.world.now_s - self.world.began_s
        lines: Counter[int] = Counter()
        for (number, _), count in self.world.note_counts.items():
            lines[number] += count
        allowed = self.LINES_FREE + self.LINES_PER_S * lived_s * len(self.world.nodes)
        for number, count in lines.items():
            if count > allowed:
                common = self.world.note_counts.most_common(3)
                self.violated(f"n{number} wrote {count} notes in {lived_s:.0f} s; most: {common}")
