"""One line of the doctor's report: what, so what, what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Grade(Enum):
    OK = "ok"
    NOTE = "note"
    """Nothing to do; good to know."""
    WARNING = "warning"
    """It works, less well than it could."""
    PROBLEM = "problem"
    """Something will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`cause` is a word for programs, the same for the same cause in every version."""

    grade: Grade
    check: str
    cause: str
    what: str
    so_what: str = ""
    to_do: str = ""

    def json(self) -> dict[str, Any]:
        return {
            "grade": self.grade.value,
            "check": self.check,
            "cause": self.cause,
            "what": self.what,
            "so_what": self.so_what,
            "what_to_do": self.to_do,
        }


def ok(check: str, what: str) -> Finding:
    return Finding(Grade.OK, check, "ok", what)


def exit_status(findings: list[Finding]) -> int:
    """1 when something will not work."""
    return int(any(finding.grade is Grade.PROBLEM for finding in findings))
