"""What a running node is about, in one line for the terminal it was started at. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.notes import FieldValue, Note, printable
from swarm.snapshot import ModelView, Snapshot
from swarm.terms import MemberState, SessionId, ShardState

SEPARATOR = " | "
BAR_CELLS = 10
ENDS = ("shard.serving", "shard.failed", "worker.lost", "worker.stuck")
"""Notes after which nothing is being loaded any more."""
PARTS = {
    "checkpoint": "reading the checkpoint",
    "kernels": "building what computes it, the first time",
    "weights": "reading weights",
    "checks": "checking that it computes alike in all pieces",
    "timing": "measuring its speed",
}


@dataclass(slots=True)
class Progress:
    """How far a load is, from the notes of it."""

    text: str = ""
    _what: str = field(default="", repr=False)

    def note(self, entry: Note) -> bool:
        """Take a note; True where the text changed."""
        before = self.text
        if entry.event == "shard.load":
            self._what = f"layers {entry.get('layers')} of {entry.get('model')}"
            self.text = f"loading {self._what}"
        elif entry.event == "shard.loading":
            part = str(entry.get("part"))
            how = PARTS.get(part, part)
            shown = f"{bar(entry.get('percent'))} {self._what}: {how}"
            self.text = how if part == "checkpoint" else shown
        elif entry.event == "shard.fetch":
            self._what = f"layers {entry.get('layers')} of {entry.get('model')}"
            self.text = f"fetching {self._what}"
        elif entry.event == "weights.fetching" and self._what:
            self.text = f"{bar(entry.get('percent'))} {self._what}: fetching from other nodes"
        elif entry.event in ENDS:
            self.text = ""
        return self.text != before


def bar(percent: FieldValue) -> str:
    """`[#####-----]  50 %`."""
    share = min(100.0, max(0.0, float(percent))) if isinstance(percent, int | float) else 0.0
    full = round(share / 100 * BAR_CELLS)
    return f"[{'#' * full}{'-' * (BAR_CELLS - full)}] {share:3.0f} %"


@dataclass(slots=True)
class Pace:
    """Tokens per second of the answers that this node is the origin of."""

    _positions: dict[SessionId, int] = field(default_factory=dict)
    _at: float = 0.0

    def look(self, snapshot: Snapshot, now: float) -> float:
        """Since the last look; sessions that are new count from their next one on."""
        present = {session.session: session.position for session in snapshot.sessions}
        before = self._positions
        gained = sum(max(0, n - before[s]) for s, n in present.items() if s in before)
        passed = now - self._at
        self._positions, self._at = present, now
        return gained / passed if passed > 0 else 0.0


def status_line(snapshot: Snapshot, tokens_per_s: float) -> str:
    """Models, nodes, and what runs here."""
    parts = [_models(snapshot.models), _nodes(snapshot)]
    answers = len(snapshot.sessions)
    if answers:
        parts.append(f"{answers} {_many(answers, 'answer')} at {tokens_per_s:.0f} tokens/s")
    if snapshot.hops:
        others = len(snapshot.hops)
        parts.append(f"works for {others} {_many(others, 'answer')} of others")
    if snapshot.kv_used_bytes and snapshot.kv_capacity_bytes:
        share = 100 * snapshot.kv_used_bytes / snapshot.kv_capacity_bytes
        parts.append(f"KV {share:.0f} % full")
    return printable(SEPARATOR.join(part for part in parts if part))


def _models(models: Sequence[ModelView]) -> str:
    if not models:
        return "no model yet"
    return ", ".join(f"{model.spec.name} {_cover(model)}" for model in models)


def _cover(model: ModelView) -> str:
    if model.covered:
        return "ready"
    missing = ", ".join(str(layers) for layers in model.missing)
    return f"lacks layers {missing}" if missing else "lacks an end"


def _nodes(snapshot: Snapshot) -> str:
    living = [n for n in snapshot.nodes if n.state in (MemberState.ALIVE, MemberState.SUSPECT)]
    loading = [n for n in living if any(s.info.state is ShardState.LOADING for s in n.shards)]
    others = [n for n in loading if not n.is_self]
    text = "alone so far" if len(living) < 2 else f"{len(living)} nodes"
    return f"{text}, {len(others)} loading" if others else text


def _many(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
