"""What must hold in every simulated run, whatever befalls the swarm.

Each invariant watches a world and reports a violation the moment it sees one. `ALL` is what every
run is checked by; other files hold those about answers, their pace, members, and limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from sims.world import Watcher, World


@dataclass(frozen=True, slots=True)
class Violation:
    at_s: float
    invariant: str
    detail: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.detail} (at {self.at_s:.6f} s)"


class Invariant(Watcher):
    """`name` is how reports call it, `says` the rule in one line."""

    name: ClassVar[str]
    says: ClassVar[str]

    def __init__(self, world: World, report: Callable[[Violation], None]) -> None:
        self.world = world
        self._report = report

    def violated(self, detail: str) -> None:
        self._report(Violation(self.world.now_s, self.name, detail))


class NoFaults(Invariant):
    """Exceptions that reach the loop are bugs, as are those that a link swallowed."""

    name = "no fault of our own"
    says = "no exception reaches an event loop, no link is broken off over a bug"

    def on_end(self) -> None:
        for fault in self.world.loop.faults:
            self.violated(
                f"{fault.get('exception')!r}: {fault.get('message')} in {fault['process']}"
            )
        for (number, event), count in self.world.note_counts.items():
            if event in ("link.fault", "gossip.unfit_own"):
                self.violated(f"{count} x {event} on n{number}")
