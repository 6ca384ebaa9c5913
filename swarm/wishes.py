"""Whether anything came of what a node's owner asked it to serve. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.notes import Note


class Wishes:
    """Reads the notes of one node. A checkpoint fails once, and not for a passing reason."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the checkpoints that its start was for; what is loaded later does not end
        it."""
        self._names = names
        self._failed = 0
        self._is_serving = False

    def note(self, entry: Note) -> None:
        self._failed += entry.event == "shard.failed" and entry.get("model") in self._names
        self._is_serving |= entry.event == "shard.serving"

    @property
    def are_hopeless(self) -> bool:
        """None of them can be served here, and none was: the node is of no use to its owner."""
        return 0 < len(self._names) <= self._failed and not self._is_serving
