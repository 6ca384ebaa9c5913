"""Many turns under kills and restarts, by the same code as `scripts/soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("processes")

SOAK = Path(__file__).resolve().parents[2] / "scripts" / "programs" / "soak.py"


def soak(*arguments: str) -> None:
    ran = subprocess.run(
        [sys.executable, SOAK, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.usefixtures("smollm2")
def test_some_turns() -> None:
    soak("--turns", "4", "--kill-every", "3", "--parts", "2")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("smollm2")
def test_two_hundred_turns() -> None:
    soak("--turns", "200", "--kill-every", "10")
