"""The voice and the phase of an origin's session: what it says, and to whom."""

from __future__ import annotations

from swarm.effects import Effect, Failed, Finished, Reply, Send, SessionEvent, Tell
from swarm.errors import LocalProtocolError
from swarm.messages import History, MirrorTo, Open, Release, Resume, Step
from swarm.notes import FieldValue, Level, note
from swarm.routing.phases import MOVES, Phase
from swarm.terms import NodeId, SessionId, short


class SessionVoice:
    def __init__(self, session: SessionId) -> None:
        self.session = session
        self.phase = Phase.WAITING
        self.deadline: float | None = None
        """When `tick` has something to do."""
        self.outcome = "cancelled"
        """Once it is done: how it ended."""
        self._effects: list[Effect] = []

    @property
    def is_done(self) -> bool:
        return self.phase is Phase.DONE

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _enter(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            raise LocalProtocolError(f"session cannot go from {self.phase} to {phase}")
        self.phase = phase
        if phase is Phase.DONE:
            self.deadline = None

    def _send(
        self, node: NodeId, message: Open | History | Resume | Release | MirrorTo | Step
    ) -> None:
        self._effects.append(Send(node, message))

    def _reply(self, event: SessionEvent) -> None:
        if isinstance(event, Finished | Failed):
            self.outcome = event.reason if isinstance(event, Finished) else "failed"
        self._effects.append(Reply(self.session, event))

    def _tell(self, event: str, level: Level, **fields: FieldValue) -> None:
        self._effects.append(Tell(note(event, level, session=short(self.session), **fields)))
