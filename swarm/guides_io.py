"""Compiling guides within a time: llguidance cannot be interrupted, so each guide is compiled in a
thread of its own, and one that takes too long is left to itself. The library lets other threads
run meanwhile.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from swarm.errors import CapacityError
from swarm.guides import GuideError, Matcher, Vocabulary, begun
from swarm.terms import Guide

LEFT_MAX = 4
"""Guides that may be left to themselves at a time; each takes a processor core."""


@dataclass(slots=True)
class _Job:
    done: threading.Event = field(default_factory=threading.Event)
    matcher: Matcher | None = None
    error: BaseException | None = None
    is_left: bool = False


class GuideMaking:
    """Safe to use from several threads."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._left = 0

    @property
    def is_worn(self) -> bool:
        """A guide that was left to itself still takes a core."""
        return self._left > 0

    def make(self, vocabulary: Vocabulary, guide: Guide) -> Matcher:
        """Raises GuideError for a guide that is none, or takes too long, and CapacityError while
        too many others do."""
        if self._left >= LEFT_MAX:
            raise CapacityError("other guides still take too long to compile; try again later")
        job = _Job()
        arguments = (job, vocabulary, guide)
        threading.Thread(target=self._work, args=arguments, name="guide", daemon=True).start()
        if not job.done.wait(self._limit_s):
            with self._lock:
                job.is_left = not job.done.is_set()
                self._left += job.is_left
        if job.is_left:
            raise GuideError(f"it takes more than {self._limit_s:g} s to compile; make it simpler")
        if job.matcher is None:
            assert job.error is not None
            raise job.error
        return job.matcher

    def _work(self, job: _Job, vocabulary: Vocabulary, guide: Guide) -> None:
        try:
            job.matcher = begun(vocabulary, guide)
        except GuideError as error:
            job.error = error
        except BaseException as error:  # noqa: BLE001 - the root of a thread; the library may panic
            job.error = GuideError(f"it could not be compiled ({type(error).__name__})")
        with self._lock:
            job.done.set()
            self._left -= job.is_left
