"""Log lines in plain words. What a stranger needs no word of is not told at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sims.trails import SHORT_ID
from sims.world import LogLine, World
from swarm.notes import FieldValue, Level, Note, as_text
from swarm.terms import short

PHRASES: dict[str, str] = {
    "host.killed": "killed (kill -9)",
    "host.vanished": "power lost",
    "host.leave": "told to leave",
    "host.left": "left in good order",
    "host.stalled": "stalled for {duration_s} s",
    "host.asleep": "asleep for {duration_s} s",
    "host.slow": "worker slow for {duration_s} s",
    "host.drift": "clock runs {ppm} millionths fast from now on",
    "host.disk_loss": "file with the restart counter lost",
    "host.cloned": "set up from a copy of {of}'s disk",
    "worker.crash": "worker crashes",
    "worker.wedge": "worker takes work and answers no more",
    "net.heal": "{other} within reach again",
    "net.heal_all": "all cuts mended",
    "net.partition": "the network falls apart: {groups}",
    "net.clog": "heard {extra_s} s late by {other} from now on",
    "net.reset": "all connections with {other} reset",
    "world.calm": "from here on nothing is done to anybody",
    "client.asks": "asked for {tokens} tokens after a prompt of {prompt}",
    "client.refused": "refuses a client: {detail}",
    "session.route": "{session} goes over {route}",
    "session.reroute": "{session} needs another route: {cause}",
    "session.recovered": "{session} goes on after {stall_ms} ms: detection {detection_ms},"
    " planning {planning_ms}, replay {replay_ms}",
    "session.waiting": "{session} waits: {detail}",
    "session.finished": "{session} complete: {tokens} tokens, {reroutes} reroutes, exact: {exact}",
    "session.failed": "{session} ends after {tokens} tokens with an error: {detail}",
    "session.gap": "{session}: {node} holds other positions than thought",
    "peer.quiet": "{peer} not heard for {silence_ms} ms: soft alarm",
    "peer.penalty": "{peer} avoided for {length_s} s: {cause}",
    "member.suspect": "{node} suspected",
    "member.dead": "{node} held for dead",
    "member.left": "{node} known to have left",
    "member.alive": "{node} seen alive again",
    "member.cloned": "two machines seen as {node}",
    "member.discredited": "suspicions by {node} not believed for a while",
    "gossip.refuted": "own death denied (incarnation {incarnation})",
    "node.key": "new identity taken",
    "node.copied": "a copy of this node found at {address}",
    "worker.lost": "worker lost: {reason}",
    "worker.stuck": "worker ended: {reason}",
    "shard.failed": "cannot serve: {reason}",
}
STAYS_UNTOLD = frozenset(
    ("link.dial_failed", "link.refused", "link.down", "link.copied", "node.copy_reported")
)
"""Warnings that say no more than a line which is told anyway."""
FAULT_EVENTS = ("host.", "net.", "worker.crash", "worker.wedge", "world.")
NAMED_MAX = 6


class Words:
    """Says lines of one world in words; nodes and answers get the names that people use."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._doubted: set[tuple[str, str]] = set()
        """(who, whom): held for suspect, dead or gone."""

    def of(self, line: LogLine) -> Event | None:
        """None: not worth telling."""
        what = self._what(line)
        name = line.entry.event
        is_fault = name.startswith(FAULT_EVENTS) and name != "host.start"
        return None if what is None else Event(line.at_s, (line.who,), what, is_fault)

    def _what(self, line: LogLine) -> str | None:
        entry = line.entry
        if entry.event.startswith("member."):
            return self._of_member(line.who, entry)
        if entry.event == "host.start":
            return "switched on" if entry.get("run") == 1 else "switched on again"
        if entry.event == "net.cut":
            way = "{other} no longer reached" if entry.get("one_way") else "cut off from {other}"
            return self._fill(way, entry)
        phrase = PHRASES.get(entry.event)
        if phrase is not None:
            return self._fill(phrase, entry)
        if entry.level >= Level.WARNING and entry.event not in STAYS_UNTOLD:
            return self._named(as_text(entry))
        return None

    def _of_member(self, who: str, entry: Note) -> str | None:
        pair = (who, str(entry.get("node")))
        if entry.event == "member.alive":
            if pair not in self._doubted:
                return None
            self._doubted.discard(pair)
        elif entry.event in ("member.suspect", "member.dead", "member.left"):
            self._doubted.add(pair)
        return self._fill(PHRASES.get(entry.event, as_text(entry)), entry)

    def _fill(self, phrase: str, entry: Note) -> str:
        fields = {name: self._shown(name, value) for name, value in entry.fields}
        return phrase.format_map(_Known(fields))

    def _shown(self, name: str, value: FieldValue) -> str:
        if name == "session":
            return self._answer(str(value))
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.4g}"
        return self._named(str(value))

    def _answer(self, session: str) -> str:
        for request in self._world.requests:
            if request.session is not None and short(request.session) == session:
                return f"answer {request.number}"
        return f"answer {session}"

    def _named(self, text: str) -> str:
        """Machine names in the place of ids."""
        return SHORT_ID.sub(lambda match: self._name_of(match.group()), text)

    def _name_of(self, short_id: str) -> str:
        node = self._world.node_called(short_id)
        return node.machine.name if node is not None else short_id


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


@dataclass(frozen=True, slots=True)
class Event:
    """`what` befell `who`, or was done by them."""

    at_s: float
    who: tuple[str, ...]
    what: str
    is_fault: bool = False

    @property
    def names(self) -> str:
        if len(self.who) <= NAMED_MAX:
            return ", ".join(self.who)
        shown = NAMED_MAX - 1
        return f"{', '.join(self.who[:shown])} and {len(self.who) - shown} more"


class Chorus:
    """Joins what several nodes do alike within a moment into one event; faults stay apart."""

    MOMENT_S = 0.5

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._groups: dict[tuple[str, float], Event] = {}

    def add(self, event: Event) -> None:
        self.flush(event.at_s - self.MOMENT_S)
        key = (event.what, event.at_s if event.is_fault else 0.0)
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = event
        elif event.who[0] not in group.who:
            self._groups[key] = replace(group, who=(*group.who, *event.who))

    def flush(self, until_s: float = float("inf")) -> None:
        """Tell of all that began before."""
        due = [key for key, group in self._groups.items() if group.at_s <= until_s]
        for key in sorted(due, key=lambda key: self._groups[key].at_s):
            self._tell(self._groups.pop(key))
