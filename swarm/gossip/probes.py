"""Probes under way: those this node wants answered, and those it runs for others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarm.messages import ProbeAnswer
from swarm.terms import NodeId

DUTY_SHARE = 0.8
"""A helper answers within this part of a probe's timeout, so that its word comes in time."""


@dataclass(slots=True)
class _Probe:
    begun_at: float
    deadline: float
    helpers: dict[int, NodeId] = field(default_factory=dict)
    """Those whose word is awaited, by nonce."""
    helper_count: int = 0
    is_reached: bool = False
    is_direct_over: bool = False
    """The dial has failed; only helpers can still bring news."""


@dataclass(frozen=True, slots=True)
class EndedProbe:
    """Time is up and `subject` was not heard. `unanswered`: helpers that said nothing at all."""

    subject: NodeId
    helper_count: int
    unanswered: int
    is_reached: bool
    """A helper hears it."""


@dataclass(slots=True)
class _Duty:
    asker: NodeId
    nonce: int
    deadline: float


class Probes:
    """One probe per subject at a time. All times are awake time."""

    def __init__(self) -> None:
        self._probes: dict[NodeId, _Probe] = {}
        self._duties: dict[NodeId, list[_Duty]] = {}
        self._nonce = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything at all is under way."""
        return bool(self._probes or self._duties)

    def has_duty(self, subject: NodeId) -> bool:
        return subject in self._duties

    def is_open(self, subject: NodeId) -> bool:
        return subject in self._probes

    def begin(
        self, subject: NodeId, helpers: list[NodeId], now: float, timeout_s: float
    ) -> list[tuple[NodeId, int]]:
        """Open a probe; returns whom to ask for help, with the nonce each is to answer."""
        probe = self._probes[subject] = _Probe(now, now + timeout_s)
        for helper in helpers:
            self._nonce += 1
            probe.helpers[self._nonce] = helper
        probe.helper_count = len(helpers)
        return [(helper, nonce) for nonce, helper in probe.helpers.items()]

    def answered(self, helper: NodeId, answer: ProbeAnswer) -> NodeId | None:
        """A helper's word: of whom, or None for what was not asked."""
        for subject, probe in self._probes.items():
            if probe.helpers.get(answer.nonce) == helper:
                del probe.helpers[answer.nonce]
                probe.is_reached = probe.is_reached or answer.reached
                self._shorten(probe)
                return subject
        return None

    def dial_failed(self, subject: NodeId) -> None:
        """Nobody answers where the subject should live."""
        probe = self._probes.get(subject)
        if probe is not None:
            probe.is_direct_over = True
            self._shorten(probe)
        self.fail_duties(subject)

    def fail_duties(self, subject: NodeId) -> None:
        """Those who asked about the subject are answered with the next `failed_duties`."""
        for duty in self._duties.get(subject, ()):
            duty.deadline = -math.inf

    def _shorten(self, probe: _Probe) -> None:
        if probe.is_direct_over and not probe.helpers:
            probe.deadline = -math.inf

    def close(self, subject: NodeId) -> bool:
        """The subject showed life, or nobody cares any more. Returns whether a probe was open."""
        return self._probes.pop(subject, None) is not None

    def ended(self, now: float) -> list[EndedProbe]:
        if not self._probes:
            return []
        due = sorted(s for s, probe in self._probes.items() if now >= probe.deadline)
        ended = []
        for subject in due:
            probe = self._probes.pop(subject)
            ended.append(
                EndedProbe(subject, probe.helper_count, len(probe.helpers), probe.is_reached)
            )
        return ended

    def take_duty(
        self, subject: NodeId, asker: NodeId, nonce: int, now: float, timeout_s: float
    ) -> None:
        """`asker` wants to know whether this node hears from `subject` soon."""
        duty = _Duty(asker, nonce, now + timeout_s * DUTY_SHARE)
        self._duties.setdefault(subject, []).append(duty)

    def fulfilled(self, subject: NodeId) -> list[tuple[NodeId, ProbeAnswer]]:
        """`subject` was heard: the answers to those who asked."""
        duties = self._duties.pop(subject, [])
        return [(duty.asker, ProbeAnswer(duty.nonce, True)) for duty in duties]

    def failed_duties(self, now: float) -> list[tuple[NodeId, ProbeAnswer]]:
        answers: list[tuple[NodeId, ProbeAnswer]] = []
        for subject in sorted(self._duties):
            waiting = []
            for duty in self._duties[subject]:
                if now >= duty.deadline:
                    answers.append((duty.asker, ProbeAnswer(duty.nonce, False)))
                else:
                    waiting.append(duty)
            self._duties[subject] = waiting
            if not waiting:
                del self._duties[subject]
        return answers

    def next_deadline(self) -> float | None:
        if not self._probes and not self._duties:
            return None
        probes = [probe.deadline for probe in self._probes.values()]
        duties = [duty.deadline for waiting in self._duties.values() for duty in waiting]
        return min([*probes, *duties], default=None)
