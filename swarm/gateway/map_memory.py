"""What a map knows: the state of a node, what happened lately, and what just changed. Pure.

Fed with the events of `/swarm/events`; times are the reader's own monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from swarm.gateway.changes import apply
from swarm.notes import printable
from swarm.terms import SHORT_ID_LENGTH

Json = dict[str, Any]

EVENTS_KEPT = 500
LINGER_S = 4.0
"""How long a change stays in sight: a new hop, a lost one, an answer that ended."""
PACE_S = 3.0
"""Over so long the tokens per second of an answer are counted."""
PACE_SAMPLES = 16
FIELD_CHARACTERS = 200
QUIET = frozenset({"event", "level", "at", "session"})


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the event log."""

    at: float
    """Seconds since 1970."""
    event: str
    level: str
    session: str
    """The first letters of the session's id, where it is about one."""
    detail: str


@dataclass(frozen=True, slots=True)
class Reroute:
    """A session's route has just changed."""

    former: tuple[Json, ...]
    until: float


class MapMemory:
    def __init__(self) -> None:
        self.state: Json | None = None
        self.happenings: deque[Happening] = deque(maxlen=EVENTS_KEPT)
        self.missed = 0
        """Events that this reader was too slow for."""
        self._reroutes: dict[str, Reroute] = {}
        self._lost: dict[tuple[str, str], float] = {}
        """Session and node, both shortened: until when the loss is shown."""
        self._ended: dict[str, float] = {}
        self._paces: dict[str, deque[tuple[float, int]]] = {}

    def take(self, name: str, data: Json, now: float) -> None:
        """An event of the stream. Names that a newer node may know are passed over."""
        match name:
            case "snapshot":
                self._seen(data, now)
            case "change" if self.state is not None:
                self._seen(apply(self.state, data), now)
            case "note":
                self._heard(data, now)
            case "lost":
                self.missed += int(data.get("events", 0))

    def forget_past(self, now: float) -> bool:
        """Let go of what was shown long enough; whether anything was."""
        past = [key for key, reroute in self._reroutes.items() if reroute.until <= now]
        for key in past:
            del self._reroutes[key]
        gone = [key for key, until in self._ended.items() if until <= now]
        for key in gone:
            del self._ended[key]
        found = [pair for pair, until in self._lost.items() if until <= now]
        for pair in found:
            del self._lost[pair]
        return bool(past or gone or found)

    # ------------------------------------------------------------ what is drawn

    @property
    def sessions(self) -> list[Json]:
        """Those that run, and those that ended a moment ago."""
        if self.state is None:
            return []
        ended = [session for session in self.state["recent"] if session["id"] in self._ended]
        return [*ended, *self.state["sessions"]]

    @property
    def traceable(self) -> list[Json]:
        """All sessions that a trace can be shown of, the last one first."""
        if self.state is None:
            return []
        return [*reversed(self.state["sessions"]), *reversed(self.state["recent"])]

    def reroute(self, session: str) -> Reroute | None:
        return self._reroutes.get(session)

    def is_lost(self, session: str, node: str) -> bool:
        """Whether the session lost the node a moment ago."""
        return (session[:SHORT_ID_LENGTH], node[:SHORT_ID_LENGTH]) in self._lost

    def pace(self, session: str) -> float | None:
        """Tokens per second."""
        samples = self._paces.get(session)
        if not samples or len(samples) < 2:
            return None
        (began, first), (ended, last) = samples[0], samples[-1]
        return (last - first) / (ended - began) if ended > began else None

    # ------------------------------------------------------------ inside

    def _seen(self, state: Json, now: float) -> None:
        before = self.state
        self.state = state
        known = {session["id"]: session for session in before["sessions"]} if before else {}
        for session in state["sessions"]:
            self._compare(known.get(session["id"]), session, now)
        ended = {session["id"] for session in state["recent"]}
        for key in known.keys() & ended:
            self._ended.setdefault(key, now + LINGER_S)
        running = {session["id"] for session in state["sessions"]}
        self._paces = {key: pace for key, pace in self._paces.items() if key in running}

    def _compare(self, before: Json | None, session: Json, now: float) -> None:
        samples = self._paces.setdefault(session["id"], deque(maxlen=PACE_SAMPLES))
        if not samples or samples[-1][1] != session["position"]:
            samples.append((now, session["position"]))
        while samples and now - samples[0][0] > PACE_S:
            samples.popleft()
        if before is None or not before["route"] or before["route"] == session["route"]:
            return
        former = tuple(before["route"])
        self._reroutes[session["id"]] = Reroute(former, now + LINGER_S)

    def _heard(self, entry: Json, now: float) -> None:
        session = _word(entry.get("session", ""))
        fields = (f"{key}={_word(value)}" for key, value in entry.items() if key not in QUIET)
        self.happenings.append(
            Happening(
                at=float(entry.get("at", 0.0)),
                event=_word(entry.get("event", "")),
                level=_word(entry.get("level", "")),
                session=session,
                detail=" ".join(fields),
            )
        )
        if entry.get("event") == "session.hop_failed":
            self._lost[session, _word(entry.get("node", ""))] = now + LINGER_S


def _word(value: object) -> str:
    """A field as text that cannot steer a terminal."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(str(value))[:FIELD_CHARACTERS]
